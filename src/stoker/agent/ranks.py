"""The ranks of a node as processes: started together, watched, and ended together."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from stoker.agent import processes
from stoker.agent.launch import RankCommand
from stoker.agent.nodefolder import NodeFolder
from stoker.agent.spawning import start_with_spooler
from stoker.agent.stopping import Stopping
from stoker.model.report import RankEnd

GRACE_S = 10.0  # usual, between being asked to end and being killed
LAST_GRACE_S = 0.5  # for those that were told to save and end before
SPOOLERS_S = 0.02  # how long what was printed last usually takes to get into the log
STRAY_S = 1.0  # how long what a rank left behind may take to end by itself, and then when asked
LOOK_EVERY_S = 0.1
DRAIN_S = 10.0  # for what was printed last to get into the log, once nobody prints


class Ranks:
    """Only the main thread may use it: it reaps every child of this process."""

    def __init__(self, folder: NodeFolder, key: str, library: Path, helpers: Callable[[], set[int]] = set) -> None:
        """`helpers` are processes of the node that are none of the script's."""
        self._folder = folder
        self._library = library  # the packed agent, which serves a script's terminal
        self._key = key
        self._alive: dict[int, int] = {}  # rank by pid
        self._groups: list[int] = []
        self._launchers: list[int] = []
        self._spoolers: set[int] = set()
        self._asked_at = 0.0  # when the ranks were asked to end; 0: not yet
        self._told: set[int] = set()  # pids of scripts that were sent SIGTERM
        self._some_told = False  # and may end as they like
        self._adopting = False
        self.grace_s = GRACE_S  # between being asked to end and being killed
        self.ends: dict[int, RankEnd] = {}
        self._helpers = helpers
        self.first_failed: int | None = None  # the rank whose failure ended the others

    @property
    def asked_to_end(self) -> bool:
        return bool(self._asked_at) or self._some_told

    @property
    def killed(self) -> bool:
        """Some rank did not end by itself: what it was writing may be half written."""
        return any(end.signal is not None for end in self.ends.values())

    def start(self, commands: Sequence[RankCommand]) -> None:
        self._adopting = processes.adopt_orphans()
        os.chdir(self._folder.work)  # where children start
        for command in commands:
            pid, spooler = self._start(command)
            self._alive[pid] = command.rank
            self._groups.append(pid)
            self._spoolers.add(spooler)
            if command.launches:
                self._launchers.append(pid)

    def _start(self, command: RankCommand) -> tuple[int, int]:
        log = self._folder.log(command.rank)
        if command.terminal:
            from stoker.agent.ptys import start_on_terminal  # here, because few scripts have a terminal

            return start_on_terminal(command, log, self._folder.terminal, self._library)
        return start_with_spooler(command.argv, command.env, log)

    def watch(self, stopping: Stopping, each_time: Callable[[], None]) -> None:
        """Returns when every rank has ended: by itself, because another failed, or because of `stopping`."""
        while self._reap():
            each_time()
            if stopping.outcome or self.first_failed is not None:
                self._end()
            stopping.wait(LOOK_EVERY_S)

    def listeners(self) -> list[int]:
        """The scripts that catch SIGTERM and have not been sent it."""
        heads = (pid for pid in processes.heads(self._alive, self._launchers) if pid not in self._told)
        return [pid for pid in heads if processes.catches(pid, signal.SIGTERM)]

    def tell(self, listeners: Collection[int]) -> bool:
        """Sends them SIGTERM; True if there are any. They are no failures when they end."""
        self._told.update(listeners)
        self._some_told = self._some_told or bool(listeners)
        processes.send(signal.SIGTERM, listeners)
        return bool(listeners)

    def forget_who_was_told(self) -> None:
        """Whoever still runs may be told again."""
        self._told.clear()

    def count_as_untold(self) -> None:
        """Whoever was told has gone on all the same: how it ends is its own affair."""
        self._some_told = False

    def sweep(self) -> int:
        """Ends whatever the ranks left behind, and returns how many processes that were. Then all logs are whole.

        What is left of ranks that were asked to end still has the rest of its grace: a shell ends before its script.
        """
        grace_s = max(self._asked_at + self.grace_s - time.monotonic(), 0) if self._asked_at else STRAY_S
        self._wait_for_the_rest(SPOOLERS_S if self._asked_at else STRAY_S)
        count = 0
        if self._left():
            spared = {*self._spoolers, *self._helpers()}
            asked = self._groups if self._asked_at else ()
            count = processes.end_all(self._key, os.getpid(), spared, asked_groups=asked, gentle_s=grace_s)
        self._drain()
        return count

    def script_pids(self) -> set[int]:
        """Everything the scripts have become or started. May be called from any thread."""
        return {one.pid for one in processes.belonging_to(self._key, spared=self._helpers())}

    def _wait_for_the_rest(self, seconds: float) -> None:
        pause_s, until = 0.001, time.monotonic() + seconds
        while self._left() and time.monotonic() < until:
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.05)

    def _left(self) -> bool:
        self._reap()
        helpers = self._helpers()
        if self._adopting and not helpers:
            return processes.has_children()
        return bool(self._spoolers or processes.belonging_to(self._key, os.getpid(), helpers))

    def _drain(self) -> None:
        until = time.monotonic() + DRAIN_S
        while self._spoolers:
            if time.monotonic() > until:  # held open by a process that even SIGKILL does not end
                processes.send(signal.SIGKILL, self._spoolers)
            time.sleep(0.005)
            self._reap()

    def _reap(self) -> bool:
        """Takes note of children that have ended; True if there are ranks left."""
        ended = processes.reap()
        self._spoolers -= ended.keys()
        for pid in sorted(ended.keys() & self._alive.keys(), key=lambda pid: self._alive[pid]):
            rank, code = self._alive.pop(pid), os.waitstatus_to_exitcode(ended[pid])
            self.ends[rank] = RankEnd(rank, code if code >= 0 else None, -code if code < 0 else None)
            if code and self.first_failed is None and not self.asked_to_end:
                self.first_failed = rank
        return bool(self._alive)

    def _end(self) -> None:
        now = time.monotonic()
        if not self._asked_at:
            self._asked_at = now
            self._signal_groups(signal.SIGTERM)
        elif now - self._asked_at >= self.grace_s:
            self._signal_groups(signal.SIGKILL)

    def _signal_groups(self, number: int) -> None:
        """Of the ranks that live: the number of a dead one may be another's by now. `sweep` sees to what it left."""
        for group in self._alive:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
