"""What happens on a notice: who gets which signal, when the last commit starts, and why a script has ended."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stoker.agent.checkpoints.keeper import Keeper
from stoker.agent.machine.machine import NodeFolder
from stoker.agent.notice import noticing
from stoker.agent.notice.noticing import CAUTION, LEAST_RESERVE_S, WENT_ON_S, Noticing
from stoker.agent.processes.family import CpuPriority
from stoker.agent.processes.ranks import RankProcesses
from stoker.model.orders import Notice


class FakeRanks:
    """Scripts by process id, of which some catch SIGTERM."""

    def __init__(self, *listening: int) -> None:
        self.listening = set(listening)
        self.told: list[int] = []
        self.untold = False

    def listeners(self) -> list[int]:
        return sorted(self.listening - set(self.told))

    def tell(self, listeners: Collection[int]) -> bool:
        self.told += listeners
        return bool(listeners)

    def forget_who_was_told(self) -> None:
        self.told.clear()

    def count_as_untold(self) -> None:
        self.untold = True


class FakeKeeper:
    def __init__(self) -> None:
        self.hurries: list[bool] = []
        self.insured = 0
        self.longest_s, self.last, self.last_at = 0.0, None, 0.0

    def hurry(self, *, for_good: bool = False) -> None:
        self.hurries.append(for_good)

    def insure(self) -> None:
        self.insured += 1

    def calm(self) -> None:
        self.hurries.clear()


class FakePriority:
    """That of a process whose tests would otherwise all go first."""

    def __init__(self) -> None:
        self.raised = False

    def raise_(self) -> None:
        self.raised = True

    def restore(self) -> None:
        self.raised = False


class World:
    def __init__(self, root: Path, ranks: FakeRanks) -> None:
        self.folder = NodeFolder(root)
        self.keeper, self.ranks, self.priority = FakeKeeper(), ranks, FakePriority()
        self.events: list[tuple[str, str]] = []
        keeper, priority = cast(Keeper, self.keeper), cast(CpuPriority, self.priority)
        self.noticing = Noticing(self.folder, keeper, lambda *event: self.events.append(event), priority)

    def hear(self, seconds: float | None, late_s: float = 0.0) -> None:
        at = datetime.now(UTC) - timedelta(seconds=late_s)
        self.noticing.see(None if seconds is None else Notice(at, at + timedelta(seconds=seconds)))
        self.act()

    def act(self) -> None:
        self.noticing.act(cast(RankProcesses, self.ranks))

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A steady clock that stands still until it is moved."""
    hand = SimpleNamespace(now=time.monotonic())
    monkeypatch.setattr(noticing, "time", SimpleNamespace(monotonic=lambda: hand.now))
    return hand


@pytest.fixture
def world(tmp_path: Path, clock: Any) -> World:
    return World(tmp_path, FakeRanks(7))


def test_a_notice_is_a_file_and_a_signal_once(world: World) -> None:
    world.hear(30)
    world.act()
    words = json.loads(world.folder.notice.read_text())
    assert words["kind"] == "evict"
    assert words["deadline"] - words["at"] == pytest.approx(30)
    assert world.ranks.told == [7]
    assert world.kinds == ["notice", "notice-told"]
    assert world.noticing.told


def test_a_script_that_installs_a_handler_later_gets_sigterm_then(world: World) -> None:
    world.ranks.listening.clear()
    world.hear(30)
    assert not world.noticing.told
    world.ranks.listening.add(8)
    world.act()
    assert world.ranks.told == [8]


@pytest.mark.parametrize(
    ("notice_s", "longest_s", "begins_s"),
    [
        (30, 0.2, 30 - LEAST_RESERVE_S),
        (30, 4.0, 30 - 8),  # twice the duration of a commit
        (30, 60.0, 15),  # at most half of the notice
        (2, 0.2, 1),
        (0, 0.2, 0),
    ],
)
def test_the_last_commit_begins_while_there_is_time_for_it(
    world: World, clock: Any, notice_s: float, longest_s: float, begins_s: float
) -> None:
    world.keeper.longest_s = longest_s
    start = clock.now
    clock.now = start
    world.hear(notice_s)
    if begins_s:
        clock.now = start + begins_s - 0.01 - 0.001 * notice_s  # its delay counts
        world.act()
        assert world.keeper.hurries == []
    clock.now = start + begins_s + 0.01
    world.act()
    assert world.keeper.hurries == [True]
    world.act()
    assert world.keeper.hurries == [True], "once"


def test_a_notice_heard_late_has_so_much_less_left(world: World) -> None:
    world.hear(30, late_s=29)
    assert world.keeper.hurries == [True]
    assert "eviction notice: 1.0 s left" in world.events[0][1]


def test_what_the_script_saved_is_committed_at_once(world: World) -> None:
    world.hear(30)
    world.folder.notice_saved.write_text('{"step": 12}')
    world.act()
    assert world.keeper.hurries == [False]
    assert world.events[-1][0] == "notice-saved"
    assert world.events[-1][1].endswith("at step 12")


def last(world: World) -> bool:
    return bool(json.loads(world.folder.notice.read_text()).get("last"))


def save(world: World) -> None:
    world.folder.notice_saved.write_text('{"step": 12}')
    world.act()


def test_the_last_save_is_asked_for_while_there_is_time_for_it_and_its_commit(world: World, clock: Any) -> None:
    start = clock.now
    world.hear(30)
    assert not last(world)
    clock.now = start + 2.0
    save(world)
    clock.now = start + 30 - LEAST_RESERVE_S - 2.0 * CAUTION - 0.1
    world.act()
    assert not last(world)
    clock.now += 0.2
    world.act()
    assert last(world)
    assert world.keeper.hurries == [False], "the last commit waits for the last save"
    assert world.noticing.idle_since is None
    save(world)
    assert world.noticing.idle_since == clock.now
    assert world.keeper.hurries == [False, False]
    assert [words.split(" s after")[0] for _, words in world.events[-2:]] == [
        "the script saved 2.00",
        f"the script saved again {clock.now - start:.2f}",
    ]


@pytest.mark.parametrize(("notice_s", "longest_s"), [(0, 0), (2, 0), (3, 0), (8, 3), (30, 9)])
def test_a_notice_too_short_for_two_saves_asks_for_the_last_at_once(
    world: World, notice_s: float, longest_s: float
) -> None:
    world.keeper.longest_s = longest_s
    world.hear(notice_s)
    assert last(world)


def test_a_withdrawn_notice_leaves_nothing_behind_and_the_next_is_told_again(world: World) -> None:
    world.hear(30)
    world.hear(None)
    assert not world.folder.notice.exists()
    assert world.kinds[-1] == "notice-withdrawn"
    assert world.noticing.told, "it may still be about to end because of it"
    assert world.noticing.idle_since is None
    world.hear(20)
    assert world.ranks.told == [7]


def test_a_script_that_continues_long_after_a_withdrawn_notice_has_ignored_it(world: World, clock: Any) -> None:
    world.hear(30)
    world.hear(None)
    clock.now += WENT_ON_S - 1
    world.act()
    assert world.noticing.told and not world.ranks.untold
    clock.now += 2
    world.act()
    assert not world.noticing.told and world.ranks.untold


def test_only_what_is_said_after_the_signal_counts_as_finished(world: World) -> None:
    world.folder.finished.touch()
    world.hear(30)
    assert not world.noticing.finished
    world.folder.finished.touch()
    world.act()
    assert world.noticing.finished


def test_a_folder_that_cannot_be_written_to_is_reported_and_the_signal_is_sent_anyway(
    tmp_path: Path, clock: Any
) -> None:
    world = World(tmp_path / "gone", FakeRanks(7))
    world.hear(30)
    assert "could not write the notice file" in world.events[0][1]
    assert world.ranks.told == [7]


def test_during_a_notice_the_agent_goes_first_and_what_is_finished_is_committed_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, FakeRanks())
    world.hear(30)
    assert world.priority.raised
    assert world.keeper.insured == 1
    world.hear(None)
    assert not world.priority.raised
