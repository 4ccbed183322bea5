"""Access for people: runs the commands that the server requests next to the script, and shows shells on this
machine."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from stoker.agent.attempt.endings import AttemptBroken
from stoker.agent.machine.machine import NodeFolder
from stoker.agent.notice.stopping import Stopping, WishWatch
from stoker.agent.processes import family
from stoker.agent.processes.family import MARK, readable
from stoker.agent.processes.launch import ContainerEntry, spelled, standin
from stoker.agent.processes.ranks import readable_text, spawn
from stoker.agent.shipping.logs import Masking
from stoker.errors import StokerError
from stoker.files import write_whole
from stoker.model.node import Inside
from stoker.model.orders import Orders, Visit, VisitEnd
from stoker.model.wire import dump
from stoker.model.workspace import layout
from stoker.stores import Store, pacing

END_S = 6.0  # visits that ignore SIGTERM are killed before that


class VisitDoor:
    """Each visit starts once, while the door is open, and is stopped when the server no longer requests it."""

    def __init__(
        self,
        store: Store,
        orders: Orders,
        folder: NodeFolder,
        masking: Masking,
        stacks: Callable[[str], bytes] = lambda _: b"",
    ) -> None:
        """`stacks` are those of the ranks now, for a visit that asks for them."""
        self._stacks = stacks
        self._store = store
        self._orders = orders
        self._folder = folder
        self._masking = masking
        self._lock = threading.Lock()
        self._env: Mapping[str, str] | None = None
        self._entry: ContainerEntry | None = None
        self._place: VisitSurroundings | None = None  # None: closed
        self._wished: dict[str, Visit] = {}
        self._running: dict[str, RunningVisit] = {}
        self._begun: set[str] = set()

    def open(self, env: Mapping[str, str], entry: ContainerEntry | None = None) -> None:
        """From here on commands run with these variables, and in this container. Opened again, later commands get the
        new ones."""
        self._env, self._entry = env, entry
        self.reopen()
        hidden = {*self._orders.job.secrets, MARK}
        inside = Inside(str(self._folder.work), {name: env[name] for name in env if name not in hidden})
        if entry:
            entry.write(inside.env, self._folder.work)
            outside = {name: value for name, value in entry.variables.items() if name != MARK}
            inside = replace(inside, through=entry.through, on_terminal=entry.on_terminal, outside=outside)
        write_whole(self._folder.inside, dump(inside), mode=0o600)

    def reopen(self) -> None:
        """After `shut`: with the same variables. One that was never opened stays closed."""
        with self._lock:
            folder = str(self._folder.work)
            self._place = VisitSurroundings(folder, self._env, self._entry) if self._env is not None else None
            self._begin()

    def see(self, visits: Collection[Visit]) -> None:
        """The current requests. Called by the thread that reads wishes."""
        with self._lock:
            self._wished = {one.id: one for one in visits}
            for id, running in list(self._running.items()):
                if running.wait(0):
                    del self._running[id]
                elif id not in self._wished:
                    running.end("the visit was ended")
            self._begin()

    def shut(self, why: str) -> None:
        """Stops running visits, and returns when they have ended. New requests wait until it is opened."""
        with self._lock:
            self._place = None
            running, self._running = self._running, {}
        for one in running.values():
            one.end(why, hurry=True)
        for one in running.values():
            one.wait(END_S)

    def _begin(self) -> None:
        if self._place is None:
            return
        for id in self._wished.keys() - self._begun:
            self._begun.add(id)
            prefix = layout.visit(self._orders.run_id, self._orders.attempt, id)
            self._running[id] = RunningVisit(self._wished[id], self._store, prefix, self._masking, self._stacks)
            self._running[id].start(self._place)


# The node of a run that failed, kept for a while: the script is over, and people may still come in.

RELEASED_EVERY_S = 0.2


def keep(store: Store, orders: Orders, door: VisitDoor, seconds: float) -> None:
    """Returns after the time, by this machine's monotonic clock, or when the agent is stopped. The server may release
    the node earlier."""
    released = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: released.set())
    watch = WishWatch(store, orders, Stopping(), lambda _: None, door.see)
    until = time.monotonic() + seconds
    door.reopen()
    watch.start()
    while not released.wait(RELEASED_EVERY_S) and time.monotonic() < until:
        family.reap()  # the shells of visits
    watch.finish()
    door.shut("the node is no longer kept")


SIGNALS = ((0.0, signal.SIGINT), (2.0, signal.SIGTERM), (4.0, signal.SIGKILL))  # seconds after it was ended
HURRIED = ((0.0, signal.SIGTERM), (1.0, signal.SIGKILL))  # where the run waits for it
DRAIN_S = 1.0  # for its leftover processes to close its output
LOOK_EVERY_S = 0.1
AT_ONCE = 1 << 16
KILLED = 128 + signal.SIGKILL
MOST_PENDING = 4 << 20  # output that is not uploaded yet, before the command has to wait
RETRY_S = 0.5
GIVE_UP_S = 30.0  # on an unavailable store, once the visit is ended
# The shell outlives the command to report how it ended, on a file descriptor of its own: the agent waits only for the
# ranks. Signals are for the command; the shell ignores them.
_SHELL = ("/bin/sh", "-c", 'trap : INT TERM; cd -- "$1" && shift && "$@" 3>&-; echo $? >&3', "stoker")


@dataclass(frozen=True, slots=True)
class VisitSurroundings:
    """The environment of a command: the script's folder and variables."""

    folder: str
    env: Mapping[str, str] = field(repr=False)
    entry: ContainerEntry | None = None  # of the container that it runs in; None: on the node itself


@dataclass
class _Stream:
    """One of the two output streams of a command. `pending` is read and not yet in the store."""

    key: str
    masking: Masking
    pending: bytes = b""
    offset: int = 0
    covered: int = 0

    def ship(self, store: Store, *, final: bool) -> None:
        masked, covered = self.masking.mask(self.pending, self.covered, final=final)
        if masked:
            store.append(self.key, self.offset, masked)
        self.pending, self.covered = self.pending[len(masked) :], covered
        self.offset += len(masked)


class RunningVisit:
    """Has its own thread. `end` may be called from any other, and more than once."""

    def __init__(
        self, visit: Visit, store: Store, prefix: str, masking: Masking, stacks: Callable[[str], bytes] = lambda _: b""
    ) -> None:
        """`stacks` are those of the ranks, given where the script looks for programs."""
        self._visit = visit
        self._stacks = stacks
        self._store = store
        self._prefix = prefix
        self._out, self._err = (_Stream(f"{prefix}{name}", masking) for name in ("out", "err"))
        self._why = ""
        self._unwished_at = 0.0
        self._signals = list(SIGNALS)
        self._inside: set[int] = set()  # its process groups in a container
        self._due = 0.0
        self._thread = threading.Thread(target=self._run, name=f"visit {visit.id}", daemon=True)

    def start(self, place: VisitSurroundings) -> None:
        self._place = place
        self._thread.start()

    def end(self, why: str, *, hurry: bool = False) -> None:
        if hurry:
            self._signals = list(HURRIED)
        if not self._unwished_at:
            self._why = why
            self._unwished_at = time.monotonic()

    def wait(self, seconds: float) -> bool:
        """Whether it has come to its end."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._keep_trying(lambda: self._store.put(f"{self._prefix}begun", b"begun"))
        try:
            end = self._told_stacks() if self._visit.stacks else self._carry_out()
        except (AttemptBroken, OSError) as error:
            end = VisitEnd(126, f"could not run the command: {error}")
        self._keep_trying(lambda: self._out.ship(self._store, final=True))
        self._keep_trying(lambda: self._err.ship(self._store, final=True))
        self._keep_trying(lambda: self._store.put(f"{self._prefix}end.json", dump(end)))

    def _told_stacks(self) -> VisitEnd:
        self._out.pending = self._stacks(self._place.env.get("PATH", ""))
        return VisitEnd(0)

    def _carry_out(self) -> VisitEnd:
        (out, into_out), (err, into_err), (said, into_said) = (os.pipe() for _ in range(3))
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        words, env, entry = (*_SHELL, self._place.folder, *self._visit.words), self._place.env, self._place.entry
        if entry:
            os.close(nothing)
            nothing = readable_text(spelled(env, Path(self._place.folder), self._visit.words))
            words, env = (*_SHELL, "/", *standin(entry)), entry.variables
        try:
            try:
                pid = spawn(words, env, (nothing, into_out, into_err, into_said))
            finally:
                for fd in (nothing, into_out, into_err, into_said):
                    os.close(fd)
            code = self._attend(pid, {out: self._out, err: self._err}, said)
        finally:
            for fd in (out, err, said):
                os.close(fd)
        if code is None:
            return VisitEnd(KILLED, self._why or "it was killed")
        return VisitEnd(code, self._why)

    def _attend(self, pid: int, streams: dict[int, _Stream], said: int) -> int | None:
        """Until the command has ended and its output is complete. The exit code, or None where even the shell was
        killed."""
        word, drained_at = b"", 0.0
        reading = {said, *streams}
        while reading:
            room = {fd for fd in reading if fd == said or len(streams[fd].pending) < MOST_PENDING}
            ready = readable(room, LOOK_EVERY_S) if room else []
            for fd in ready:
                piece = os.read(fd, AT_ONCE)
                if not piece:
                    reading.discard(fd)
                elif fd == said:
                    word += piece
                else:
                    streams[fd].pending += piece
            if said in reading:
                self._signal(pid)
            drained_at = drained_at or (time.monotonic() + DRAIN_S if said not in reading else 0.0)
            if drained_at and time.monotonic() >= drained_at:
                break
            self._ship()
        return int(word) if word.strip().isdigit() else None

    def _signal(self, pid: int) -> None:
        """The shell lives, so the group still belongs to this visit."""
        while self._unwished_at and self._signals and time.monotonic() - self._unwished_at >= self._signals[0][0]:
            number = self._signals.pop(0)[1]
            if self._place.entry:
                self._inside |= family.groups_inside(pid)
            for group in (*self._inside, pid):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, number)

    def _ship(self) -> None:
        """As often as the store may be written to. A failed write is retried with the next one."""
        now = time.monotonic()
        if now < self._due or not (self._out.pending or self._err.pending):
            return
        try:
            for stream in (self._out, self._err):
                stream.ship(self._store, final=False)
            self._due = now + pacing(self._store).write_s
        except StokerError:
            self._due = now + RETRY_S

    def _keep_trying(self, work: Callable[[], None]) -> None:
        while True:
            try:
                work()
                return
            except StokerError:
                if self._unwished_at and time.monotonic() - self._unwished_at > GIVE_UP_S:
                    return
                time.sleep(RETRY_S)
