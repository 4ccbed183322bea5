"""What the first node of a gang says once it has heard of all."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from stoker.agent.attempt.gang import MOST_ROUNDS, agreed, common, workers
from stoker.agent.checkpoints.folders.files import label_of, own_steps
from stoker.agent.processes.remote import LOOPBACK, mine
from stoker.model.job.sections import CheckpointPaths
from stoker.model.run.report import Ready, SavedSet
from stoker.model.snapshot import CheckpointSet, Entry, EntryKind

NEAR = Ready(0, 1, 2, ("10.0.0.4", LOOPBACK), 5000)


def peer(node: int, **facts: object) -> Ready:
    return replace(NEAR, node=node, **{"addresses": (LOOPBACK,), "port": 0, **facts})  # type: ignore[arg-type]


def test_nodes_on_one_computer_meet_at_its_own_address() -> None:
    go = agreed([NEAR, peer(1), peer(2)], 6000)
    assert (go.address, go.port, go.restore, go.trouble) == (LOOPBACK, 6000, False, "")


def test_nodes_elsewhere_meet_at_the_address_that_reaches_the_first() -> None:
    assert agreed([NEAR, peer(1), peer(2, addresses=("10.0.0.4",))], 6000).address == "10.0.0.4"


def test_a_node_that_cannot_reach_the_first_is_named_with_the_addresses() -> None:
    go = agreed([NEAR, peer(1), peer(2, addresses=())], 6000)
    assert "node 2" in go.trouble and "10.0.0.4" in go.trouble and go.hint


def test_different_numbers_of_processes_are_refused() -> None:
    assert "node 1: 4" in agreed([NEAR, peer(1, processes=4)], 6000).trouble


def test_nodes_that_restored_different_checkpoints_take_the_earliest_first() -> None:
    have = [
        replace(NEAR, resumes=True, label=30.0),
        peer(1, resumes=True, label=20.0),
        peer(2, resumes=True, label=30.0),
    ]
    go = agreed(have, 6000)
    assert go.restore and go.label == 20.0
    assert not agreed([replace(one, label=20.0, round=2) for one in have], 6000).restore


def test_where_a_node_has_none_so_early_all_begin_from_nothing() -> None:
    have = [replace(NEAR, resumes=True, label=20.0, round=2), peer(1, resumes=False, round=2)]
    go = agreed(have, 6000)
    assert go.restore and go.label is None
    assert not agreed([replace(one, resumes=False, label=None) for one in have], 6000).restore


def test_where_the_first_node_has_none_and_another_has_all_begin_from_nothing() -> None:
    """The first node's host was gone before it had committed what the other one had."""
    for label in (None, 20.0, 1_795_042_510.4):
        have = [replace(NEAR, resumes=False), replace(peer(1), resumes=True, label=label)]
        assert agreed(have, 6000).restore and agreed(have, 6000).label is None


def test_files_written_within_a_second_belong_together() -> None:
    now = 1.8e9
    have = [replace(NEAR, resumes=True, label=now), peer(1, resumes=True, label=now + 0.4)]
    assert not agreed(have, 6000).restore
    assert agreed([have[0], replace(have[1], label=now + 5)], 6000).label == now


def test_checkpoints_that_nothing_tells_apart_are_taken_as_they_are() -> None:
    assert not agreed([replace(NEAR, resumes=True), peer(1, resumes=True)], 6000).restore


@pytest.mark.parametrize(
    ("paths", "label"),
    [
        (["checkpoints/step-20/model.pt", "checkpoints/step-10/model.pt"], 20),
        (["checkpoints/global_step40/mp_rank_07.pt"], 40),
        (["checkpoints/epoch_3/rank-12.pt"], 3),
        (["checkpoints/step-000000036/state.json", "checkpoints/step-000000033/rank-1/state.json"], 36),
        (["checkpoints/model-1731924000.pt"], None),
        (["checkpoints/rank-12.pt"], None),
        (["checkpoints/last.pt"], None),
    ],
)
def test_the_label_of_a_checkpoint_is_in_its_names(paths: list[str], label: float | None) -> None:
    entries = tuple(Entry(path, EntryKind.FILE, sha256="0" * 64) for path in paths)
    assert label_of(CheckpointSet(1, 1, datetime.now(UTC), entries)) == label


def saves(*numbers: int, path: str = "checkpoints/state.txt", more: int = 0) -> tuple[SavedSet, ...]:
    """Newest first."""
    others = {"checkpoints/log.csv": more} if more else {}
    return tuple(SavedSet(1, place, {path: number, **others}) for place, number in enumerate(numbers, 1))


def test_all_resume_from_the_newest_save_that_every_node_has_counted() -> None:
    mine, theirs = saves(48, 32, 16), saves(37, 32, 17, 16)
    now = 1.8e9
    have = [
        replace(NEAR, resumes=True, label=now, restored=mine[0], sets=mine),
        peer(1, resumes=True, label=now, restored=theirs[0], sets=theirs),
    ]
    go = agreed(have, 6000)
    assert go.restore and [one.saves["checkpoints/state.txt"] for one in go.sets] == [32, 32]
    after = [replace(have[0], restored=mine[1], round=2), replace(have[1], restored=theirs[1], round=2)]
    assert not agreed(after, 6000).restore


def test_a_file_that_only_one_node_writes_does_not_count() -> None:
    mine, theirs = saves(32, more=500), saves(32, path="checkpoints/state.txt")
    assert common([replace(NEAR, sets=mine), peer(1, sets=theirs)]) == (*mine, *theirs)


def test_shards_are_matched_by_name_without_their_numbers() -> None:
    mine, theirs = saves(4, path="checkpoints/rank-0.pt"), saves(4, 3, path="checkpoints/rank-1.pt")
    assert common([replace(NEAR, sets=mine), peer(1, sets=theirs)]) == (mine[0], theirs[0])


def test_nodes_without_a_common_save_begin_from_nothing_rather_than_from_two_steps() -> None:
    mine, theirs = saves(5), saves(4)
    have = [
        replace(NEAR, resumes=True, label=1.8e9, restored=mine[0], sets=mine),
        peer(1, resumes=True, label=1.8e9, restored=theirs[0], sets=theirs),
    ]
    go = agreed(have, 6000)
    assert go.restore and go.label is None and not go.sets


def ranks_of(node: int, *counts: tuple[int, int]) -> tuple[SavedSet, ...]:
    """Sets of two ranks that each rewrite a file of their own, newest first."""
    names = [f"checkpoints/state-{2 * node + local}.pt" for local in range(2)]
    return tuple(SavedSet(1, place, dict(zip(names, each, strict=True))) for place, each in enumerate(counts, 1))


def test_numbers_of_ranks_are_no_steps_and_a_set_between_the_saves_of_two_ranks_does_not_count() -> None:
    mine, theirs = ranks_of(0, (5, 4), (4, 4), (3, 3)), ranks_of(1, (5, 5), (4, 4))
    have = [
        replace(NEAR, resumes=True, label=1.0, written=1.8e9, restored=mine[0], sets=mine),
        peer(1, resumes=True, label=3.0, written=1.8e9, restored=theirs[0], sets=theirs),
    ]
    assert agreed(have, 6000).sets == (mine[1], theirs[1])
    without = [replace(one, sets=(), restored=None) for one in have]
    assert not agreed(without, 6000).restore, "saved within a second of each other"
    steps = [have[0], replace(have[1], written=None)]
    assert agreed(steps, 6000).label == 1.0, "node 1 has numbers that are not of its ranks"


def test_all_restore_a_set_with_the_newest_step_that_every_node_has() -> None:
    mine = tuple(SavedSet(1, 9 - n, steps=steps) for n, steps in enumerate([(60, 57, 48), (39, 36, 32), (9,)]))
    theirs = tuple(SavedSet(1, 5 - n, steps=steps) for n, steps in enumerate([(54, 51, 48), (42, 39, 32)]))
    have = [
        replace(NEAR, resumes=True, label=60.0, restored=mine[0], sets=mine),
        peer(1, resumes=True, label=54.0, restored=theirs[0], sets=theirs),
    ]
    assert not agreed(have, 6000).restore, "their ranks find step 48 by themselves"
    have[1] = replace(have[1], restored=theirs[1], sets=theirs[1:], label=42.0)
    go = agreed(have, 6000)
    assert go.restore and go.sets == (mine[1], theirs[1])
    have[1] = replace(have[1], restored=SavedSet(1, 1, steps=(5,)), sets=(SavedSet(1, 1, steps=(5,)),))
    assert agreed(have, 6000).restore and not agreed(have, 6000).sets


@pytest.mark.parametrize(
    ("paths", "steps"),
    [
        (["checkpoints/step-000000036/manifest.json", "checkpoints/step-000000033-2/manifest.json"], (36, 33)),
        (["checkpoints/step-000000036/state.json"], ()),
        (["checkpoints/rank-1/step-000000036/manifest.json"], ()),
    ],
)
def test_the_steps_that_all_ranks_of_a_node_have_saved_are_in_its_names(paths: list[str], steps: object) -> None:
    entries = tuple(Entry(path, EntryKind.FILE, sha256="0" * 64) for path in paths)
    assert own_steps(CheckpointSet(1, 1, datetime.now(UTC), entries), CheckpointPaths(("checkpoints/",))) == steps


def test_different_code_is_refused() -> None:
    go = agreed([replace(NEAR, code="a" * 64), peer(1, code="b" * 64)], 6000)
    assert "different code" in go.trouble and "node 1: bbbb" in go.trouble


def test_workers_listen_at_addresses_that_all_nodes_can_use() -> None:
    have = [replace(NEAR, free=(1, 2)), peer(1, free=(3, 4)), peer(2, free=(5, 6))]
    near = workers(have, LOOPBACK, {1: (LOOPBACK, 9), 2: (LOOPBACK, 9)})
    assert near == tuple(f"{LOOPBACK}:{port}" for port in range(1, 7))
    far = workers(have, "10.0.0.4", {1: (LOOPBACK, 9), 2: ("10.0.0.5", 9)})
    assert far[2:] == ("10.0.0.4:3", "10.0.0.4:4", "10.0.0.5:5", "10.0.0.5:6")


def test_this_machine_knows_its_addresses_and_the_loopback_comes_last() -> None:
    found = mine()
    assert found[-1] == LOOPBACK and found.count(LOOPBACK) == 1


def test_nodes_that_never_agree_begin_from_nothing_and_are_not_started_without_a_port() -> None:
    have = [replace(NEAR, resumes=True, label=10.0), peer(1, resumes=True, label=20.0)]
    before = agreed([replace(one, round=MOST_ROUNDS - 2) for one in have], 6000)
    assert (before.restore, before.label) == (True, 10.0)
    from_nothing = agreed([replace(one, round=MOST_ROUNDS - 1) for one in have], 6000)
    assert (from_nothing.restore, from_nothing.label, from_nothing.sets) == (True, None, ())
    assert "cannot agree on a checkpoint" in agreed([replace(one, round=MOST_ROUNDS) for one in have], 6000).trouble
    bare = [replace(one, round=MOST_ROUNDS, resumes=False, label=None) for one in have]
    assert agreed(bare, 6000).port == 6000
