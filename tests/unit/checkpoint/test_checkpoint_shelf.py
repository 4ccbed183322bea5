"""The files in the folder: complete or absent; damaged ones moved aside; unchanged files not rewritten."""

from __future__ import annotations

import errno
import json
import os
import random
import threading
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.checkpoint import Checkpoint, DoesNotFit, NotStorable
from stoker.checkpoint.read import format, resuming
from stoker.checkpoint.read.resuming import Alone
from stoker.checkpoint.read.shelf import CheckpointFolder
from stoker.checkpoint.save.snapshot import WriteOrders
from stoker.checkpoint.surroundings import Surroundings


class Thing:
    """A part without a framework."""

    def __init__(self, numbers: int = 4, large: int = 0) -> None:
        self.held: dict[str, Any] = {"numbers": array("d", range(numbers)), "frozen": array("d", bytes(large))}

    def state_dict(self) -> dict[str, Any]:
        return self.held

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = state


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Checkpoint]:
    for name in ("STOKER_CHECKPOINTS", "STOKER_NOTICE", "STOKER_METRICS", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def make(**more: Any) -> Checkpoint:
        given: dict[str, Any] = {"folder": tmp_path / "kept", "every": 1}
        return Checkpoint(**(given | more))

    return make


def steps(state: Checkpoint, count: int) -> None:
    for _ in range(count):
        state["best"] = state.steps
        state.step()
        state.finish()


def folders(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "kept").iterdir())


def test_what_was_saved_is_there_again(begin: Callable[..., Checkpoint]) -> None:
    state = begin(thing=(thing := Thing()))
    assert state.restored is None
    thing.held["numbers"][0] = 0.1
    state["best"] = 0.9
    state.step()
    state.finish()
    again = begin(thing=(other := Thing()))
    assert again.restored == state.last_save
    assert (again.steps, again["best"], "worst" in again, again.get("worst", 1)) == (1, 0.9, False, 1)
    assert other.held == thing.held


def test_newest_three_are_kept(begin: Callable[..., Checkpoint], tmp_path: Path) -> None:
    steps(begin(), 5)
    assert folders(tmp_path) == ["step-000000003", "step-000000004", "step-000000005"]


def test_best_is_kept_besides(begin: Callable[..., Checkpoint], tmp_path: Path) -> None:
    state = begin(keep=1, best="-loss")
    for loss in (3.0, 1.0, 2.0, 2.5):
        state.step(loss=loss)
        state.finish()
    assert folders(tmp_path) == ["step-000000002", "step-000000004"]


def test_a_part_that_is_called_best_is_refused_because_best_names_a_metric(begin: Callable[..., Checkpoint]) -> None:
    with pytest.raises(TypeError):
        begin(best=random.Random())


def test_second_save_at_one_step_has_a_name_of_its_own_and_is_the_newer(
    begin: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    state = begin()
    steps(state, 1)
    state["best"] = "later"
    state.save(wait=True)
    assert folders(tmp_path) == ["step-000000001", "step-000000001-2"]
    assert begin()["best"] == "later"


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [cut, flip, empty, remove])
@pytest.mark.parametrize("file", ["manifest.json", "state.json", "thing-000.safetensors"])
def test_damaged_checkpoint_is_moved_aside_and_the_one_before_it_used(
    begin: Callable[..., Checkpoint],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
    file: str,
) -> None:
    state = begin(thing=(thing := Thing()))
    for number in range(2):
        thing.held["numbers"][0] = number  # so that the file is not one with the checkpoint before
        steps(state, 1)
    damage(tmp_path / "kept" / "step-000000002" / file)
    again = begin(thing=Thing())
    assert again.steps == 1
    assert folders(tmp_path) == ["quarantine", "step-000000001"]
    said = capsys.readouterr().err
    assert "step-000000002 is not used" in said
    assert ("manifest" if file == "manifest.json" else file) in said


def test_foreign_and_empty_folders_are_no_checkpoints(begin: Callable[..., Checkpoint], tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    (kept / "step-000000007").mkdir(parents=True)
    (kept / "step-000000008").write_text("a file", encoding="utf-8")
    (kept / "my-model").mkdir()
    (kept / ".writing-000000009-1").mkdir()
    assert begin().restored is None
    assert folders(tmp_path) == ["my-model", "quarantine"]
    assert begin().restored is None


def test_other_code_is_told_the_first_tensor_and_nothing_is_changed(begin: Callable[..., Checkpoint]) -> None:
    steps(begin(thing=Thing(4)), 1)
    thing = Thing(5)
    before = dict(thing.held)
    with pytest.raises(DoesNotFit, match=r"`thing/numbers`.*\[4\].*\[5\]"):
        begin(thing=thing)
    assert thing.held == before
    with pytest.raises(DoesNotFit, match="contains `thing`"):
        begin()
    with pytest.raises(DoesNotFit, match="`other`"):
        begin(thing=Thing(4), other=Thing())


def test_unchanged_files_are_linked_not_written(begin: Callable[..., Checkpoint], tmp_path: Path) -> None:
    state = begin(thing=(thing := Thing(4, large=5 << 20)))
    steps(state, 1)
    first = state.moved_bytes
    thing.held["numbers"][0] = 7.0
    steps(state, 1)
    assert first > 5 << 20 > 100_000 > state.moved_bytes
    one, two = (tmp_path / "kept" / f"step-00000000{n}" / "thing.frozen.safetensors" for n in (1, 2))
    assert one.samefile(two)
    again = begin(thing=Thing(4, large=5 << 20))  # and after a restart, too
    steps(again, 1)
    assert again.moved_bytes < 100_000


def test_unstorable_value_is_refused_at_save_and_the_training_can_continue(begin: Callable[..., Checkpoint]) -> None:
    state = begin()
    state["bad"] = object()
    with pytest.raises(NotStorable, match="`values/bad`"):
        state.step()
    state["bad"] = None
    steps(state, 1)
    assert begin().steps == 2


def test_part_without_a_state_is_refused_at_once(begin: Callable[..., Checkpoint]) -> None:
    with pytest.raises(NotStorable, match=r"`rate`.*`state_dict`") as caught:
        begin(rate=0.1)
    assert 'state["rate"]' in caught.value.hint


def test_full_disk_is_loud_and_the_training_continues(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    full = [True]

    def save(snapshot: Any, orders: WriteOrders) -> Path:
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return tmp_path

    state = Checkpoint(folder=tmp_path / "kept", every=1)
    state._writer._save = save
    state.step()
    state.finish()
    assert state.trouble == "step 1 was not saved: the disk is full"
    assert "the disk is full" in capsys.readouterr().err
    full[0] = False
    state.step()
    state.finish()
    assert state.trouble is None


def test_save_at_the_end_of_the_interpreter_which_starts_no_more_threads_is_made(
    begin: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = begin()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as ending:
        ending.setattr(threading.Thread, "start", refuse)
        state.steps = 3
        state.save(wait=True)
    assert begin().steps == 3


def test_save_that_fails_leaves_nothing_half_made(begin: Callable[..., Checkpoint], tmp_path: Path) -> None:
    state = begin()
    steps(state, 1)
    (tmp_path / "kept" / "step-000000002").mkdir()  # stands in the way of nothing: the next has another name
    steps(state, 1)
    assert "step-000000002-2" in folders(tmp_path)
    assert json.loads((tmp_path / "kept" / "step-000000002-2" / "manifest.json").read_text())["step"] == 2


def test_generators_and_plain_iterables_continue_where_they_were(begin: Callable[..., Checkpoint]) -> None:
    seen: list[int] = []
    state = begin()
    for _ in state.epochs(2):
        for item in state.batches(range(5)):
            seen.append(item)
            state.step()
            if len(seen) == 7:
                break
        if len(seen) == 7:
            break
    state.finish()
    again = begin()
    rest = []
    for epoch in again.epochs(2):
        assert epoch == 1
        for item in again.batches(range(5)):
            rest.append(item)
            again.step()
    assert seen + rest == [0, 1, 2, 3, 4] * 2
    assert list(begin().epochs(2)) == []


def test_several_passes_in_one_epoch_are_distinguished(begin: Callable[..., Checkpoint]) -> None:
    state = begin()
    for _ in state.epochs(1):
        list(state.batches("ab"))
        for letter in state.batches("cdef"):
            state.step()
            if letter == "d":
                state.finish()
                again = begin()
                assert [[list(again.batches("ab")), list(again.batches("cdef"))] for _ in again.epochs(1)] == [
                    [[], ["e", "f"]]
                ]
                return


def test_what_only_another_node_saved_is_no_checkpoint_here(
    begin: Callable[..., Checkpoint], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As if two nodes were evicted between the one's commit and the other's, which then gets the one's files."""
    state = begin()
    steps(state, 1)
    manifest = tmp_path / "kept" / "step-000000001" / "manifest.json"
    manifest.write_bytes(replace(format.load(manifest.read_bytes()), ranks=2).dump())
    shelf = CheckpointFolder(tmp_path / "kept")

    def find(rank: int, world: int) -> str | None:
        seat = Surroundings("", rank=rank, world=world, local_rank=0, local_world=1)
        found = resuming.find(shelf, Alone(), seat)
        return found[0].opened.path.name if found else None

    assert find(0, 2) == "step-000000001"
    assert find(1, 2) is None
    assert "no checkpoint is complete on all ranks" in capsys.readouterr().err
    assert find(1, 3) == "step-000000001", "with another number of ranks, that of the first has to do"
