"""The ranks of a node as processes: started together, watched, and ended together."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from stoker.agent import processes
from stoker.agent.launch import RankCommand
from stoker.agent.nodefolder import NodeFolder
from stoker.agent.stopping import Stopping
from stoker.model.report import RankEnd

GRACE_S = 10.0  # between being asked to end and being killed
STRAY_S = 1.0  # how long what a rank left behind may take to end by itself


class Ranks:
    def __init__(self, folder: NodeFolder, key: str) -> None:
        self._folder = folder
        self._key = key
        self._pids: dict[int, int] = {}  # rank by pid, of those that have not ended
        self._groups: list[int] = []
        self._asked_at = 0.0  # when the ranks were asked to end; 0: not yet
        self.ends: dict[int, RankEnd] = {}
        self.first_failed: int | None = None  # the rank whose failure ended the others
        self._adopting = processes.adopt_orphans()

    def start(self, commands: Sequence[RankCommand]) -> None:
        for command in commands:
            pid = _spawn(command, self._folder)
            self._pids[pid] = command.rank
            self._groups.append(pid)

    @property
    def alive(self) -> bool:
        return bool(self._pids)

    @property
    def asked_to_end(self) -> bool:
        return bool(self._asked_at)

    def watch(self, stopping: Stopping, each_time: Callable[[], None]) -> None:
        """Returns when every rank has ended: by itself, because another failed, or because of `stopping`."""
        while self._pids:
            self._note(processes.reap())
            if not self._pids:
                return
            each_time()
            if stopping.outcome or self.first_failed is not None:
                self._end()
            stopping.wait(0.1)

    def sweep(self) -> int:
        """Ends whatever the ranks left behind, and returns how many processes that were."""
        if self._adopting and not processes.has_children():
            return 0
        until = time.monotonic() + STRAY_S
        while time.monotonic() < until and not self._asked_at:
            processes.reap()
            if not processes.belonging_to(self._key, os.getpid()):
                return 0
            time.sleep(0.05)
        return processes.end_all(self._key, os.getpid(), gentle_s=STRAY_S)

    def _note(self, ended: dict[int, int]) -> None:
        for pid, status in sorted(ended.items(), key=lambda item: self._pids.get(item[0], -1)):
            if (rank := self._pids.pop(pid, None)) is not None:
                code = os.waitstatus_to_exitcode(status)
                self.ends[rank] = RankEnd(rank, code if code >= 0 else None, -code if code < 0 else None)
                if code and self.first_failed is None and not self._asked_at:
                    self.first_failed = rank

    def _end(self) -> None:
        now = time.monotonic()
        if not self._asked_at:
            self._asked_at = now
            self._signal_groups(signal.SIGTERM)
        elif now - self._asked_at >= GRACE_S:
            self._signal_groups(signal.SIGKILL)

    def _signal_groups(self, number: int) -> None:
        for group in self._groups:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)


def _spawn(command: RankCommand, folder: NodeFolder) -> int:
    """Starts a rank in a session of its own; its stdout and stderr are the spool file itself.

    Without a pipe nothing waits for the agent: a rank may close its output, leave a daemon behind or outlive the agent.
    """
    log = os.open(folder.log(command.rank), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        started = subprocess.Popen(
            command.argv,
            env=dict(command.env),
            cwd=folder.work,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    finally:
        os.close(log)
    started.returncode = 0  # reaped by pid, not through this object
    return started.pid
