"""An attempt without processes: its crew is real, the ranks are fakes, and the store fails on demand."""

from __future__ import annotations

import hashlib
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, cast

from stoker.agent.attempt.attempt import AttemptRunner
from stoker.agent.attempt.crew import Crew
from stoker.agent.machine.machine import NodeFolder, NodeMachine
from stoker.agent.notice.stopping import Stopping
from stoker.agent.processes.launch import RankCommand
from stoker.agent.processes.ranks import RankProcesses
from stoker.errors import Missing, StoreFailed, StoreUnavailable
from stoker.model.job.job import Job
from stoker.model.orders import Notice, Orders
from stoker.model.run.report import RankEnd, Report
from stoker.model.snapshot import Entry, Snapshot
from stoker.model.wire import dump, load
from stoker.model.workspace import layout
from stoker.testing.fakes import MemoryStore

RUN = "r1"
Play = Callable[["PlayedRanks"], int | None]  # the exit code of the script; None: it runs on


class FailingStore(MemoryStore):
    """`fails` says how often access to a key with such a text fails, and with what; `hooks` are called before."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: dict[str, tuple[int, StoreFailed]] = {}
        self.hooks: dict[str, Callable[[], None]] = {}

    def away(self, text: str, times: int) -> None:
        self.fails[text] = (times, StoreUnavailable("the store is away"))

    def full(self, text: str, times: int) -> None:
        self.fails[text] = (times, StoreFailed("the disk is full: could not write", hint="free some space"))

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        self._touch(key)
        return super().get(key, start, size)

    def put(self, key: str, data: bytes | BinaryIO, *, only_new: bool = False) -> None:
        self._touch(key)
        super().put(key, data, only_new=only_new)

    def append(self, key: str, offset: int, data: bytes) -> int:
        self._touch(key)
        return super().append(key, offset, data)

    def _touch(self, key: str) -> None:
        for text in [one for one in self.hooks if one in key]:
            self.hooks.pop(text)()
        for text, (times, error) in self.fails.items():
            if text in key and times:
                self.fails[text] = (times - 1, error)
                raise error


class PlayedRanks:
    """One rank, as the phases see it: `play` is asked at each look whether the script has ended."""

    def __init__(self, folder: NodeFolder, play: Play, *, listens: bool = True) -> None:
        self.folder = folder
        self.grace_s = 10.0
        self.ends: dict[int, RankEnd] = {}
        self.first_failed: int | None = None
        self.asked_to_end = self.killed = self.told = False
        self.commands: Sequence[RankCommand] = ()
        self._play = play
        self._listens = listens

    def start(self, commands: Sequence[RankCommand]) -> None:
        self.commands = commands
        self.folder.log(0).touch()

    def prints(self, text: str) -> None:
        with self.folder.log(0).open("a") as log:
            log.write(text)

    def watch(self, stopping: Stopping, each_time: Callable[[], None]) -> None:
        code = None
        while code is None:
            each_time()
            if stopping.outcome:
                self.asked_to_end, self.ends[0] = True, RankEnd(0, None, signal.SIGTERM)
                return
            code = self._play(self)
            stopping.wait(0.001)
        self.ends[0] = RankEnd(0, code)
        if code and not self.asked_to_end:
            self.first_failed = 0

    def listeners(self) -> list[int]:
        return [7] if self._listens and not self.told else []

    def tell(self, listeners: Collection[int]) -> bool:
        self.told = self.told or bool(listeners)
        self.asked_to_end = self.asked_to_end or bool(listeners)
        return bool(listeners)

    def forget_who_was_told(self) -> None:
        self.told = False

    def count_as_untold(self) -> None:
        self.asked_to_end = False

    def sweep(self) -> int:
        return 0

    def script_pids(self) -> set[int]:
        return set()

    def pids_by_rank(self) -> dict[int, list[int]]:
        return {}


def succeed(_ranks: PlayedRanks) -> int:
    return 0


class World:
    """`made` are those of this test: their threads end with it."""

    made: ClassVar[list[World]] = []

    def __init__(self, root: Path, play: Play = succeed, *, given: dict[str, Any] | None = None, **job: Any) -> None:
        self.store = FailingStore()
        self.folder = NodeFolder(root / "node")
        self.play = play
        code = b"print('hello')\n"
        sha256 = hashlib.sha256(code).hexdigest()
        snapshot = Snapshot((Entry("train.py", sha256=sha256, size_bytes=len(code)),))
        self.store.put(layout.blob(sha256), code)
        self.store.put(layout.snapshot(snapshot.id), dump(snapshot))
        described = Job(name="ants", run="python train.py", **job)
        self.orders = Orders(RUN, "ants-1", 1, 0, "node-key", described, snapshot.id, sys.executable)
        self.machine = NodeMachine(self.folder, root / "environments", "", Path("agent.pyz"), {}, **(given or {}))
        self.ranks = PlayedRanks(self.folder, lambda ranks: self.play(ranks))
        self.store.put(layout.orders(RUN, 1), dump(self.orders))
        self.crew = Crew(self.store, self.orders, self.machine, cast(RankProcesses, self.ranks))
        self.attempt = AttemptRunner(self.crew)
        self._claimed = False
        self.made.append(self)

    def claim(self) -> None:
        """So that the phases have a folder, and a reporter that writes."""
        self._claimed = self.crew.reporter.claim()
        assert self._claimed
        self.folder.make({})

    def carry_out(self) -> Report:
        assert self.crew.reporter.claim()
        self.attempt.carry_out({})
        return self.report()

    def end(self) -> None:
        """Whatever a test of one phase has left at work."""
        self.store.fails.clear()
        for step in (self.crew.keeper.finish, *self.crew.shipping.steps()):
            step()
        if self._claimed:
            self.crew.reporter.finish(dict)

    def report(self) -> Report:
        return load(Report, self.store.get(layout.report(RUN, 1)))

    def events(self) -> str:
        return self._text(layout.events(RUN, 1, 0))

    def log(self) -> str:
        return self._text(layout.log(RUN, 1, 0))

    def notice(self, seconds: float = 30.0, *, returns: bool = False) -> None:
        now = datetime.now(UTC)
        self.crew.notices.post("machine", Notice(now, now + timedelta(seconds=seconds), returns=returns))

    def _text(self, key: str) -> str:
        try:
            return MemoryStore.get(self.store, key).decode()
        except Missing:
            return ""
