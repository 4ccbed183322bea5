"""What is downloaded of a run is what it would resume from, whatever else its node has written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from stoker.model.job.sections import name_beside
from stoker.model.run.run import Run
from stoker.model.snapshot import CheckpointSet, Entry, Fence
from stoker.model.wire import dump
from stoker.model.workspace import layout
from stoker.server.results.parcels import Parcel, merged, newest_set
from stoker.testing.fakes import MemoryStore

NOW = datetime(2026, 3, 1, tzinfo=UTC)
GOOD = CheckpointSet(1, 1, NOW, (Entry("checkpoints/model.pt", sha256="0" * 64, size_bytes=1),)).sealed


@pytest.fixture
def store(make_run: Callable[..., Run]) -> MemoryStore:
    store = MemoryStore()
    store.put(layout.checkpoint_set(make_run().id, *GOOD.position), dump(GOOD))
    return store


@pytest.mark.parametrize(
    "forged",
    [
        replace(GOOD, number=2),  # its seal is that of another
        replace(GOOD, entries=(replace(GOOD.entries[0], size_bytes=2),)),
        replace(GOOD, attempt=7, number=9).sealed,  # it is in another's place
    ],
    ids=["other number", "other content", "other place"],
)
def test_a_set_that_is_not_as_it_was_committed_is_not_brought_back(
    store: MemoryStore, make_run: Callable[..., Run], forged: CheckpointSet
) -> None:
    run = make_run()
    store.put(layout.checkpoint_set(run.id, 1, 2), dump(forged))
    assert newest_set(store, run) == GOOD


def test_a_fence_speaks_for_the_attempt_that_it_is_named_after(
    store: MemoryStore, make_run: Callable[..., Run]
) -> None:
    run = make_run()
    store.put(layout.fence(run.id, 1), dump(Fence(99)))
    assert newest_set(store, run) == GOOD


def test_what_lies_beside_a_checkpoint_stays_with_it_where_nodes_have_files_of_one_name() -> None:
    def of(node: str, **files: str) -> Parcel:
        pairs = [*files.items(), *((name_beside(name), node) for name in files)]
        return Parcel(tuple(Entry(name, sha256=sha * 64, size_bytes=1) for name, sha in pairs), {})

    whole = merged([of("a", same="1", own="2"), of("b", same="1", own="3")])
    assert whole.clashes == ("own",)
    assert {one.path: one.sha256[0] for one in whole.entries} == {
        "same": "1", name_beside("same"): "a", "own": "2", name_beside("own"): "a",
        "node-1/own": "3", f"node-1/{name_beside('own')}": "b",
    }  # fmt: skip
