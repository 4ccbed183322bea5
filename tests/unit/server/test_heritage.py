"""What a run starts from that resumes another: the last checkpoint of that one which counts and is whole."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import BadInput, NotFound
from stoker.model.cause import Cause
from stoker.model.run.run import Attempt, AttemptState, Run
from stoker.model.snapshot import CheckpointSet, Entry, EntryKind, Fence, Snapshot
from stoker.model.wire import dump, load
from stoker.model.workspace import layout
from stoker.server.results.parcels import Heritage
from stoker.server.rounds.outside import Clock
from stoker.stores import Store
from stoker.testing.fakes import MemoryStore

Make = Callable[..., Run]


class TwoStores:
    """The old run is kept in one, the new run in another."""

    def __init__(self) -> None:
        self.stores: dict[str, Store] = {"old": MemoryStore(), "new": MemoryStore()}

    def open(self, name: str) -> Store:
        return self.stores[name]

    def of(self, run: Run) -> Store:
        return self.stores[run.store]


@pytest.fixture
def stores() -> TwoStores:
    return TwoStores()


@pytest.fixture
def heritage(stores: TwoStores, tmp_path: Path) -> Heritage:
    return Heritage(stores, Clock(), tmp_path)  # type: ignore[arg-type]  # all that is asked of it


@pytest.fixture
def old(make_run: Make, now: datetime) -> Run:
    attempts = tuple(Attempt(number, f"k-{number}", AttemptState.LOST, now) for number in (1, 2))
    return make_run(1, store="old", attempts=attempts)


def entry(store: Store, place: Callable[[str], str], path: str, data: bytes) -> Entry:
    sha256 = hashlib.sha256(data).hexdigest()
    store.put(place(sha256), data)
    return Entry(path, EntryKind.FILE, sha256, len(data))


def commit(
    store: Store, run: Run, attempt: int, number: int, text: str, now: datetime, path: str = "checkpoints/w"
) -> CheckpointSet:
    data = entry(store, lambda sha256: layout.checkpoint_file(run.id, sha256), path, text.encode())
    made = CheckpointSet(attempt, number, now, (data,), step=float(number)).sealed
    store.put(layout.checkpoint_set(run.id, attempt, number), dump(made))
    return made


def started(heritage: Heritage, old: Run, make_run: Make) -> Run:
    new = make_run(2, store="new")
    new = replace(new, start=heritage.find(old, new.job))
    heritage.bring(new)
    heritage.bring(new)  # twice is fine
    return new


def brought(store: Store, run: Run) -> tuple[CheckpointSet, bytes]:
    (stored,) = store.list(layout.checkpoint_sets(run.id).rstrip("/"))
    found = load(CheckpointSet, store.get(stored.key))
    assert found.whole
    assert found.attempt == 0, "it counts as older than whatever the new run commits"
    return found, store.get(layout.checkpoint_file(run.id, found.entries[0].sha256))


def test_the_newest_checkpoint_and_its_outputs_are_copied_to_the_store_of_the_new_run(
    stores: TwoStores, heritage: Heritage, old: Run, make_run: Make, now: datetime
) -> None:
    source = stores.open("old")
    for number in (1, 2, 3):
        commit(source, old, 1, number, f"weights {number}", now)
    made = entry(source, lambda sha256: layout.output(old.id, sha256), "curve.csv", b"1,2")
    source.put(layout.outputs(old.id, 2), dump(Snapshot((made,))))
    new = started(heritage, old, make_run)
    assert brought(stores.open("new"), new)[1] == b"weights 3"
    assert new.start and new.start.step == 3.0
    target: Any = stores.open("new")
    assert load(Snapshot, target.get(layout.outputs(new.id, 0))).entries == (made,)
    assert target.get(layout.output(new.id, made.sha256)) == b"1,2"


@pytest.mark.parametrize(
    ("named", "path"),
    [
        ("checkpoint.pth.tar", "checkpoint.pth.tar"),
        ("checkpoint.pth.tar", ".checkpoint.pth.tar.stoker-exact"),
        ("epoch_*.pt", "epoch_3.pt"),
        ("runs/", "runs/exp/last.pt"),
    ],
)
def test_a_checkpoint_that_is_a_file_or_fits_a_glob_is_started_from(
    stores: TwoStores, heritage: Heritage, old: Run, make_run: Make, now: datetime, named: str, path: str
) -> None:
    source = stores.open("old")
    data = entry(source, lambda sha256: layout.checkpoint_file(old.id, sha256), path, b"w")
    source.put(layout.checkpoint_set(old.id, 1, 1), dump(CheckpointSet(1, 1, now, (data,), step=1.0).sealed))
    job = replace(make_run(2).job, checkpoints=(named,))
    assert heritage.find(old, job).step == 1.0
    with pytest.raises(BadInput, match="`checkpoints`"):
        heritage.find(old, replace(job, checkpoints=("others",)))


def test_what_an_attempt_committed_after_it_was_fenced_off_is_not_started_from(
    stores: TwoStores, heritage: Heritage, old: Run, make_run: Make, now: datetime
) -> None:
    source = stores.open("old")
    commit(source, old, 1, 1, "right", now)
    source.put(layout.fence(old.id, 2), dump(Fence(2, 1, 1)))
    commit(source, old, 1, 2, "a zombie's", now)
    assert brought(stores.open("new"), started(heritage, old, make_run))[1] == b"right"


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_it(
    stores: TwoStores, heritage: Heritage, old: Run, make_run: Make, now: datetime
) -> None:
    source = stores.open("old")
    commit(source, old, 1, 1, "good", now)
    bad = commit(source, old, 1, 2, "bad!", now)
    source.put(layout.checkpoint_file(old.id, bad.entries[0].sha256), b"evil")
    assert brought(stores.open("new"), started(heritage, old, make_run))[1] == b"good"


def test_a_forged_manifest_is_not_a_checkpoint(
    stores: TwoStores, heritage: Heritage, old: Run, make_run: Make, now: datetime
) -> None:
    source = stores.open("old")
    source.put(layout.checkpoint_set(old.id, 1, 9), b'{"attempt": 1, "number": 9, "entries": [{"path": "../../x"}]}')
    with pytest.raises(NotFound) as refused:
        heritage.find(old, old.job)
    assert refused.value.cause == Cause.NO_CHECKPOINT


def test_a_job_with_other_checkpoint_folders_is_refused(
    stores: TwoStores, heritage: Heritage, old: Run, now: datetime
) -> None:
    commit(stores.open("old"), old, 1, 1, "weights", now)
    with pytest.raises(BadInput, match="`checkpoints`"):
        heritage.find(old, replace(old.job, checkpoints=("elsewhere",)))


@pytest.mark.parametrize(
    ("named", "path"),
    [
        ("model.pt", "model.pt"),
        ("model.pt", ".model.pt.stoker-exact"),
        ("model.pt", "checkpoints/w"),
        ("runs/*/weights", "runs/exp2/weights/last.pt"),
        ("saved.d/", "saved.d/w"),
    ],
)
def test_a_job_that_names_files_globs_or_folders_finds_its_checkpoint(
    stores: TwoStores, heritage: Heritage, old: Run, now: datetime, named: str, path: str
) -> None:
    commit(stores.open("old"), old, 1, 1, "weights", now, path)
    assert heritage.find(old, replace(old.job, checkpoints=(named,))).step == 1.0


def test_a_checkpoint_that_is_gone_by_now_is_not_mistaken_for_nothing(
    stores: TwoStores, heritage: Heritage, old: Run, make_run: Make, now: datetime
) -> None:
    commit(stores.open("old"), old, 1, 1, "weights", now)
    new = make_run(2, store="new")
    new = replace(new, start=heritage.find(old, new.job))
    stores.stores["old"] = MemoryStore()
    with pytest.raises(NotFound) as refused:
        heritage.bring(new)
    assert refused.value.cause == Cause.CHECKPOINT_GONE
