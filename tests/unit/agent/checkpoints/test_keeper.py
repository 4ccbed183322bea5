"""When the thread that commits checkpoints looks, what a notice makes it do at once, and who goes first then."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from test_keeping import CountingStore, Run

from stoker.agent.checkpoints import keeper
from stoker.agent.checkpoints.keeper import Keeper
from stoker.agent.notice.noticing import Noticing
from stoker.agent.processes.family import AHEAD, CpuPriority
from stoker.agent.shipping.worker import StoreTrouble
from stoker.model.orders import Notice
from stoker.model.snapshot import CheckpointSet
from stoker.model.wire import load
from stoker.model.workspace import layout


class Kept:
    """A keeper at work on a folder that never comes to rest."""

    def __init__(self, root: Path) -> None:
        self.run = Run(CountingStore(), root)
        checkpoints = self.run.checkpoints
        checkpoints._clock = time.monotonic
        self.keeper = Keeper(checkpoints, StoreTrouble(), self.run.tell, lambda: None)
        self._over = threading.Event()
        self._script = threading.Thread(target=self._save)

    def _save(self) -> None:
        number = 0
        while not self._over.wait(0.02):
            number += 1
            self.run.write(f"step-{number}.pt", str(number))

    def sets(self) -> list[CheckpointSet]:
        keys = [one.key for one in self.run.store.list(layout.checkpoint_sets("r1"))]
        return [load(CheckpointSet, self.run.store.get(key)) for key in keys]

    def start(self) -> None:
        self._script.start()
        self.keeper.start()

    def end(self) -> None:
        self._over.set()
        self._script.join()
        self.keeper.calm()
        self.keeper.finish()


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    kept = Kept(tmp_path)
    kept.start()
    yield kept
    kept.end()


def eventually(done: Callable[[], object]) -> None:
    until = time.monotonic() + 10
    while not done():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_what_is_finished_when_a_notice_comes_is_committed_at_once_and_once(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "INSURE_S", 1000.0)
    kept.keeper.insure()
    eventually(kept.sets)
    eventually(lambda: not kept.keeper._hurried)  # the last commit comes later
    assert [kind for kind, _ in kept.run.events] == [], "and is the one that is told of"


def test_the_last_commit_is_made_after_the_insurance(kept: Kept) -> None:
    kept.keeper.insure()
    eventually(kept.sets)
    kept.keeper.hurry(for_good=True)
    eventually(lambda: len(kept.sets()) >= 2)
    eventually(lambda: "notice-committed" in [kind for kind, _ in kept.run.events])


class NoRanks:
    """Nobody catches SIGTERM."""

    def listeners(self) -> list[int]:
        return []

    def forget_who_was_told(self) -> None:
        pass


def test_a_notice_of_half_a_minute_is_not_waited_out_before_a_first_commit(kept: Kept) -> None:
    noticing = Noticing(kept.run.folder, kept.keeper, kept.run.tell)
    now = datetime.now(UTC)
    noticing.see(Notice(now, now + timedelta(seconds=30)))
    try:
        noticing.act(NoRanks())  # type: ignore[arg-type]  # all that is asked of them
        eventually(kept.sets)
    finally:
        noticing.see(None)
        noticing.act(NoRanks())  # type: ignore[arg-type]  # likewise


def nice_of_threads() -> set[int]:
    return {os.getpriority(os.PRIO_PROCESS, int(one.name)) for one in Path("/proc/self/task").iterdir()}


def test_all_threads_of_an_agent_go_first_during_a_notice_where_that_is_allowed() -> None:
    waiting = threading.Event()
    thread = threading.Thread(target=waiting.wait)
    thread.start()
    usual, ahead = os.getpriority(os.PRIO_PROCESS, 0), CpuPriority()
    try:
        ahead.raise_()
        ahead.raise_()  # a second notice
        assert nice_of_threads() == ({AHEAD} if os.geteuid() == 0 else {usual})
        ahead.restore()
        assert nice_of_threads() == {usual}
    finally:
        waiting.set()
        thread.join()
