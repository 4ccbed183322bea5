"""How often a node has saved, and which of its saves are committed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.agent.checkpoints.folders.counting import HeldState, SaveCounter
from stoker.model.job.sections import BESIDE, CheckpointPaths
from stoker.stores.transfer.verified import Mark, mark_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of changes in this way")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    return tmp_path


@pytest.fixture
def counter(work: Path) -> Iterator[SaveCounter]:
    counter = SaveCounter(work, CheckpointPaths([]))
    yield counter
    counter.finish()


def save(work: Path, text: str, name: str = "state.txt") -> None:
    part = work / "checkpoints" / f"{name}.part"
    part.write_text(text)
    part.replace(work / "checkpoints" / name)


def marks(work: Path) -> dict[str, Mark | None]:
    return {f"checkpoints/{one.name}": mark_of(one.lstat()) for one in (work / "checkpoints").iterdir()}


def counted(counter: SaveCounter, work: Path, wanted: dict[str, int]) -> bool:
    until = time.monotonic() + 20
    while (found := counter.counts_of(marks(work))) != wanted and time.monotonic() < until:
        time.sleep(0.01)
    return found == wanted


def test_every_version_counts_and_those_before_a_restart_too(counter: SaveCounter, work: Path) -> None:
    (work / "checkpoints" / "state.txt").write_text("restored")
    (work / "checkpoints" / "config.json").write_text("never written again")
    assert counter.begin({"checkpoints/state.txt": 40})
    assert counted(counter, work, {"checkpoints/state.txt": 40})
    for number in range(3):
        save(work, str(number))
    with (work / "checkpoints" / "state.txt").open("w") as file:
        file.write("in place")
    assert counted(counter, work, {"checkpoints/state.txt": 44})


def test_nothing_is_claimed_of_a_version_that_is_no_longer_the_newest(counter: SaveCounter, work: Path) -> None:
    counter.begin({})
    save(work, "first")
    old = marks(work)
    save(work, "second")
    assert counted(counter, work, {"checkpoints/state.txt": 2})
    assert counter.counts_of(old) == {}


def test_what_lies_beside_a_checkpoint_belongs_to_its_save(counter: SaveCounter, work: Path) -> None:
    """`exact: true` writes it before and after."""
    held: list[HeldState] = []
    counter.wake = lambda: held.append(one) if (one := counter.take()) else None
    counter.begin({})
    until, number = time.monotonic() + 60, 0
    while not held and time.monotonic() < until:
        number += 1
        for name in (f".state.txt{BESIDE}", "state.txt", f".state.txt{BESIDE}"):
            save(work, str(number), name)
        time.sleep(0.05)
    assert held[0].contents.keys() == {"checkpoints/state.txt", f"checkpoints/.state.txt{BESIDE}"}
    assert counted(counter, work, {"checkpoints/state.txt": number})


def test_of_frequent_saves_those_are_held_that_another_node_would_hold_too(counter: SaveCounter, work: Path) -> None:
    held: list[HeldState] = []
    counter.wake = lambda: held.append(one) if (one := counter.take()) else None
    counter.begin({})
    until = time.monotonic() + 60
    number = 0
    while len(held) < 2 and time.monotonic() < until:
        number += 1
        save(work, str(number))
        time.sleep(0.05)
    assert counter.rapid
    for one in held:
        assert one.number % 8 == 0, "a power of two, by the pace"
        assert one.contents == {"checkpoints/state.txt": str(one.number).encode()}


def test_a_folder_that_is_replaced_is_not_counted_any_more(counter: SaveCounter, work: Path) -> None:
    counter.begin({})
    save(work, "1")
    assert counted(counter, work, {"checkpoints/state.txt": 1})
    os.remove(work / "checkpoints" / "state.txt")  # noqa: PTH107
    (work / "checkpoints").rmdir()
    (work / "checkpoints").mkdir()
    save(work, "2")
    time.sleep(0.1)
    assert counted(counter, work, {})


@pytest.mark.parametrize("named", ["snapshot.pt", "out/best/snapshot.pt", "*.pt", "out/*/snapshot.pt"])
def test_a_file_that_is_named_counts_too(tmp_path: Path, named: str) -> None:
    counter = SaveCounter(tmp_path, CheckpointPaths([named]))
    assert counter.begin({})
    path = named.replace("*.pt", "snapshot.pt").replace("*", "best")
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "log.txt").write_text("no checkpoint")
    time.sleep(0.1)  # a script saves well after it has made a folder
    for number in range(3):
        (tmp_path / path).write_text(str(number))
        time.sleep(0.02)
    marks = {path: mark_of((tmp_path / path).lstat())}
    deadline = time.monotonic() + 5
    while (found := counter.counts_of(marks)) != {path: 3} and time.monotonic() < deadline:
        time.sleep(0.01)
    counter.finish()
    assert found == {path: 3}
