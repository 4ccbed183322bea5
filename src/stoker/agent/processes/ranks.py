"""The ranks of a node as processes: started together, watched, and stopped together. Where the ranks that a launcher
starts print to: each to a log of its own, as those that the agent starts."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stoker.agent.attempt.endings import AttemptBroken
from stoker.agent.machine.machine import NodeFolder
from stoker.agent.notice.stopping import Stopping
from stoker.agent.processes import family
from stoker.agent.processes.doctor import by_rank
from stoker.agent.processes.launch import RankCommand, outlet
from stoker.agent.processes.launchers import LOST
from stoker.model.cause import Cause
from stoker.model.run.report import RankEnd

GRACE_S = 10.0  # usual time between SIGTERM and SIGKILL
LAST_GRACE_S = 0.5  # for those that were already asked to save and stop
SPOOLERS_S = 0.02  # how long the last output usually takes to reach the log
STRAY_S = 1.0  # how long leftover processes of a rank may take to exit by themselves, and then after SIGTERM
LOOK_EVERY_S = 0.1
DRAIN_S = 10.0  # for the last output to reach the log
KILLED = 128  # exit codes above it are signals


class RankProcesses:
    """Only the main thread may use it: it reaps every child of this process."""

    def __init__(
        self,
        folder: NodeFolder,
        key: str,
        library: Path,
        helpers: Callable[[], set[int]] = set,
        container_is_up: Callable[[], bool] = lambda: True,
    ) -> None:
        """`helpers` are processes of the node that do not belong to the script."""
        self._folder = folder
        self._library = library  # the packed agent, which serves a script's terminal
        self._key = key
        self._alive: dict[int, int] = {}  # rank by pid
        self._groups: list[int] = []
        self._launchers: dict[int, RankCommand] = {}  # by pid
        self._standins: set[int] = set()  # pids of those that stand in for ranks in a container
        self._pipes = RankPipes(folder.launch)
        self._spoolers: set[int] = set()
        self._asked_at = 0.0  # when the ranks were asked to stop; 0: not yet
        self._told: set[int] = set()  # pids of scripts that were sent SIGTERM
        self._some_told = False  # and may end as they like
        self._adopting = False
        self.grace_s = GRACE_S  # between SIGTERM and SIGKILL
        self.ends: dict[int, RankEnd] = {}
        self._helpers = helpers
        self._container_is_up = container_is_up
        self.first_failed: int | None = None  # the rank whose failure stopped the others
        self.unexplained = False  # a launcher failed, and none of its ranks here

    @property
    def asked_to_end(self) -> bool:
        return bool(self._asked_at) or self._some_told

    @property
    def killed(self) -> bool:
        """Some rank was killed: a file that it was writing may be incomplete."""
        return any(end.signal is not None for end in self.ends.values())

    def start(self, commands: Sequence[RankCommand]) -> None:
        self._adopting = family.adopt_orphans()
        os.chdir(self._folder.work)  # where children start
        for command in commands:
            pid, spooler = self._start(command)
            self._alive[pid] = command.rank
            self._groups.append(pid)
            self._spoolers.add(spooler)
            if command.stands_in:
                self._standins.add(pid)
            if command.launches:
                self._launchers[pid] = command

    def _start(self, command: RankCommand) -> tuple[int, int]:
        log = self._folder.log(command.rank)
        if command.launches:
            return self._start_launcher(command, log)
        if command.terminal:
            from stoker.agent.visits.terminal import start_on_terminal  # here, because few scripts have a terminal

            return start_on_terminal(command, log, self._folder.terminal, self._library)
        return start_with_spooler(command.argv, command.env, log, script=command.script)

    def _start_launcher(self, command: RankCommand, log: Path) -> tuple[int, int]:
        write_files(self._folder.launch, command.files)
        try:
            for rank, out in zip(command.ranks, self._pipes.make(command), strict=True):
                self._spoolers.add(_spool(out, self._folder.log(rank)))
            return start_with_spooler(command.argv, command.env, log, command.line, command.script)
        except AttemptBroken:
            self._pipes.close()
            raise
        finally:
            if command.line is not None:
                os.close(command.line)

    def watch(self, stopping: Stopping, each_time: Callable[[], None]) -> None:
        """Returns when every rank has ended: by itself, because another failed, or because of `stopping`."""
        while self._reap():
            each_time()
            if stopping.outcome or self.first_failed is not None:
                self._end()
            stopping.wait(LOOK_EVERY_S)

    def listeners(self) -> list[int]:
        """The scripts that catch SIGTERM and have not got one yet."""
        heads = family.heads(self._alive, {*self._launchers, *self._standins})
        return [pid for pid in heads if pid not in self._told and family.catches(pid, signal.SIGTERM)]

    def tell(self, listeners: Collection[int]) -> bool:
        """Sends them SIGTERM; True if there are any. Their exit then counts as no failure."""
        self._told.update(listeners)
        self._some_told = self._some_told or bool(listeners)
        family.send(signal.SIGTERM, listeners)
        return bool(listeners)

    def forget_who_was_told(self) -> None:
        """Scripts that still run may get SIGTERM again."""
        self._told.clear()

    def count_as_untold(self) -> None:
        """Those that got SIGTERM have continued: how they end is their own result."""
        self._some_told = False

    def sweep(self) -> int:
        """Stops leftover processes of the ranks, and returns how many there were. Afterwards all logs are complete.

        After a stop, leftover processes have the rest of the grace period: a shell exits before its script.
        """
        grace_s = max(self._asked_at + self.grace_s - time.monotonic(), 0) if self._asked_at else STRAY_S
        self._wait_for_the_rest(SPOOLERS_S if self._asked_at else STRAY_S)
        count = 0
        if self._left():
            spared = {*self._spoolers, *self._helpers()}
            asked = self._groups if self._asked_at else ()
            count = family.end_all(self._key, os.getpid(), spared, asked_groups=asked, gentle_s=grace_s)
        self._drain()
        return count

    def script_pids(self) -> set[int]:
        """Everything that the scripts have become or started. May be called from any thread."""
        return {one.pid for one in family.belonging_to(self._key, spared=self._helpers())}

    def pids_by_rank(self) -> dict[int, list[int]]:
        """The processes of each rank, its workers among them. May be called from any thread."""
        found = by_rank(dict(self._alive), list(self._launchers))
        return {rank: [pid for pid in pids if pid not in self._standins] for rank, pids in found.items()}

    def _wait_for_the_rest(self, seconds: float) -> None:
        pause_s, until = 0.001, time.monotonic() + seconds
        while self._left() and time.monotonic() < until:
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.05)

    def _left(self) -> bool:
        self._reap()
        helpers = self._helpers()
        if self._adopting and not helpers:
            return family.has_children()
        return bool(self._spoolers or family.belonging_to(self._key, os.getpid(), helpers))

    def _drain(self) -> None:
        until = time.monotonic() + DRAIN_S
        while self._spoolers:
            if time.monotonic() > until:  # held open by a process that survives even SIGKILL
                family.send(signal.SIGKILL, self._spoolers)
            time.sleep(0.005)
            self._reap()

    def _reap(self) -> bool:
        """Records children that have exited; True if there are ranks left."""
        ended = family.reap()
        self._spoolers -= ended.keys()
        for pid in sorted(ended.keys() & self._alive.keys(), key=lambda pid: self._alive[pid]):
            rank, code = self._alive.pop(pid), os.waitstatus_to_exitcode(ended[pid])
            if pid in self._standins:
                code = _code_inside(pid, code, container_is_up=self._container_is_up())
            self.ends[rank] = RankEnd(rank, code if code >= 0 else None, -code if code < 0 else None)
            if code and self.first_failed is None and not self.asked_to_end:
                self.first_failed = rank
            if pid in self._launchers:
                self._explain(self._launchers[pid])
        return bool(self._alive)

    def _explain(self, launcher: RankCommand) -> None:
        """Which of its ranks has failed, where they note that."""
        self._pipes.close()
        found = failures(self._folder.launch, launcher.ranks, LOST)
        for rank, code in found:
            self.ends[rank] = RankEnd(rank, code)
        if found and not self.asked_to_end:
            self.first_failed = found[0][0]
        self.unexplained = self.first_failed == launcher.rank and not found

    def _end(self) -> None:
        now = time.monotonic()
        if not self._asked_at:
            self._asked_at = now
            self._signal_groups(signal.SIGTERM)
        elif now - self._asked_at >= self.grace_s:
            self._signal_groups(signal.SIGKILL)

    def _signal_groups(self, number: int) -> None:
        """Of the live ranks: the pid of a dead one may be reused. `sweep` handles its leftover processes."""
        for group in self._alive:
            inside = family.groups_inside(group) if group in self._standins else set()
            self._groups += inside
            # Without a process inside, it has not begun, or is about to end.
            for one in inside or {group}:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(one, number)


def _code_inside(standin: int, code: int, *, container_is_up: bool) -> int:
    """How a rank in a container ended, by the end of what stood in for it. Docker's command exits with 0 where it gets
    the SIGTERM that schedulers send to every process of a job, while the rank continues, or ends with its container."""
    if code >= 0 and (not container_is_up or family.still_inside(standin)):
        return -signal.SIGTERM
    return KILLED - code if code - KILLED in signal.valid_signals() else code  # how engines report it; 255 is none


# Starting the processes of a rank: the rank itself, and the one that writes its log.

_PIPE_BYTES = 1 << 20


def start_with_spooler(
    argv: Sequence[str], env: Mapping[str, str], log: Path, line: int | None = None, script: str = ""
) -> tuple[int, int]:
    """Starts a rank in the current directory; returns its pid and that of the `cat` between it and its log. It gets
    `line` as its file 3. One that stands in for a rank in a container reads `script`, and prints to the same pipe.

    A rank must neither wait for the agent nor die with it, so the agent cannot read its output itself; and the rank
    must not hold the log itself, which `echo > /dev/stderr` in a script would truncate. `cat` exits after the last
    process that can print, and so everything printed is in the log by then.
    """
    out, into = _named_pipe(outlet(log)) if script else os.pipe()
    if sys.platform == "linux":
        with suppress(PermissionError):  # the user has many pipes: the usual size will do
            fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    nothing = readable_text(script) if script else os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        spooler = _spool(out, log)
        return spawn(argv, env, (nothing, into, into) if line is None else (nothing, into, into, line)), spooler
    finally:
        for fd in (into, nothing):
            os.close(fd)


def _named_pipe(path: Path) -> tuple[int, int]:
    """Its read end and a write end."""
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)
    out = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # otherwise it waits for a writer
    into = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    os.set_blocking(out, True)
    return out, into


def readable_text(text: str) -> int:
    """A file in memory, to be read from its beginning."""
    fd = os.memfd_create("script")
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(os.fsencode(text))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _spool(out: int, log: Path) -> int:
    """The pid of the `cat` from a pipe to a log. Closes its end of the pipe here."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        return spawn(("cat",), {}, (out, file, nothing))
    finally:
        for fd in (out, file, nothing):
            os.close(fd)


def spawn(argv: Sequence[str], env: Mapping[str, str], given: Sequence[int]) -> int:
    """In a session of its own, with these files from 0 on and no others. Not by `subprocess`: 5 ms of imports."""
    return spawn_with(argv, env, [(os.POSIX_SPAWN_DUP2, fd, place) for place, fd in enumerate(given)])


def spawn_with(argv: Sequence[str], env: Mapping[str, str], files: Sequence[tuple[Any, ...]]) -> int:
    default = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores these, and so would its children
    try:
        return os.posix_spawnp(argv[0], tuple(argv), env, file_actions=files, setsid=True, setsigdef=default)
    except FileNotFoundError:
        raise AttemptBroken(
            f"command not found on this node: `{argv[0]}`",
            "install it, or change the launcher",
            cause=Cause.COMMAND_MISSING,
        ) from None


class RankPipes:
    """A named pipe for each rank of a launcher. They stay open until the launcher has ended, so that a rank that it
    restarts prints to the same log."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: list[int] = []

    def make(self, command: RankCommand) -> list[int]:
        """The read ends, in the order of the ranks. They belong to the caller."""
        return [self._make(self._folder / f"{local}.out") for local, _ in enumerate(command.ranks)]

    def close(self) -> None:
        """From here on a reader of a pipe gets its end of file once no rank has it open."""
        held, self._held = self._held, []
        for fd in held:
            os.close(fd)

    def _make(self, path: Path) -> int:
        out, into = _named_pipe(path)
        self._held.append(into)
        return out


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    for name, text in files.items():
        fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)


def failures(folder: Path, ranks: Sequence[int], prefix: str) -> list[tuple[int, int]]:
    """Ranks that noted their failure, with their exit codes; the first to fail is the first."""
    found: list[tuple[int, int, int]] = []
    for rank in ranks:
        with suppress(OSError, ValueError):
            path = folder / f"{prefix}{rank}"
            found.append((path.stat().st_mtime_ns, rank, int(path.read_text())))
    return [(rank, code) for _, rank, code in sorted(found)]
