"""Commands as contestants: what to start, where, in which environment, and when its bytes arrived."""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

# Every process of a benchmark inherits this, so what a contestant left behind can be found and ended by its id.
TOKEN_NAME = "BENCHMARK_TOKEN"
TOKEN = uuid.uuid4().hex

LONGEST_S = 600.0
MEMORY = Path("/dev/shm")
ROOM_BYTES = 4_000_000_000


class CommandFailed(Exception):
    """A contestant that fails has no time worth comparing."""


@dataclass(frozen=True, slots=True)
class Command:
    """`before` is done ahead of every start, `after` behind every end; neither is counted."""

    name: str
    argv: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    before: Callable[[], object] = lambda: None
    after: Callable[[], object] = lambda: None


@dataclass(frozen=True, slots=True)
class Playback:
    """What a command wrote, in chunks with their time of arrival in seconds since its start at `begun_at` (Unix)."""

    begun_at: float
    chunks: list[tuple[float, bytes]]
    total_s: float

    @property
    def output(self) -> bytes:
        return b"".join(chunk for _, chunk in self.chunks)

    def lines(self) -> Iterator[tuple[float, bytes]]:
        """Every full line, with the time at which its last byte arrived."""
        rest = b""
        for at_s, chunk in self.chunks:
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                yield at_s, line

    def first_s(self, mark: bytes) -> float:
        """When the first line that contains the mark had arrived."""
        for at_s, line in self.lines():
            if mark in line:
                return at_s
        raise CommandFailed(f"`{mark.decode()}` never arrived:\n{self.output.decode(errors='replace')[-4000:]}")


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This environment without what would favour or hinder a Python program, such as a ban on bytecode."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "STOKER_"))}
    kept.pop("VIRTUAL_ENV", None)
    return {**kept, TOKEN_NAME: TOKEN, **extra}


def on_terminal(command: Command, limit_s: float = LONGEST_S) -> Playback:
    """Runs the command on a terminal of its own, as a person would.

    On a pipe most programs hold back their lines until they exit, which would flatter whoever flushes.
    """
    ours, theirs = pty.openpty()
    with _closing(ours):
        return _play(command, ours, theirs, theirs, limit_s)


def on_pipe(command: Command, limit_s: float = LONGEST_S, *, errors_too: bool = False) -> Playback:
    """Runs the command with its standard output going to a pipe, and its standard error beside it or with it."""
    ours, theirs = os.pipe()
    with _closing(ours), tempfile.TemporaryFile() as errors:
        return _play(command, ours, theirs, theirs if errors_too else errors, limit_s)


@contextmanager
def alone(lock: Path, patience_s: float = 3600.0) -> Iterator[None]:
    """Two benchmarks at once would measure each other, so the second one waits."""
    deadline = time.monotonic() + patience_s
    with lock.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CommandFailed(f"another benchmark has held {lock} for {patience_s:.0f} s") from None
                time.sleep(1)
        yield


@contextmanager
def workplace() -> Iterator[Path]:
    """A folder for one benchmark, gone afterwards together with every process started by it."""
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=scratch(), ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "home").mkdir()
        try:
            yield folder
        finally:
            sweep(TOKEN, name)


def scratch() -> Path:
    """Where everyone works: `TMPDIR` where it is set, else in memory where there is room, else the usual place.

    A disk's mood would drown the differences. On ext4 without a journal, for one, making a file takes ten times as
    long for a minute after many were deleted.
    """
    if os.environ.get("TMPDIR") or not MEMORY.is_dir():
        return Path(tempfile.gettempdir())
    room = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM_BYTES
    return MEMORY if room else Path(tempfile.gettempdir())


def sweep(*marks: str, patience_s: float = 10.0) -> None:
    """Ends every process whose environment or command line contains one of the marks; twice is fine."""
    deadline = time.monotonic() + patience_s
    while left := _marked(marks):
        late = time.monotonic() > deadline
        if time.monotonic() > deadline + patience_s:
            raise CommandFailed(f"processes {left} do not end")
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        time.sleep(0.1)


def _play(command: Command, ours: int, theirs: int, errors: int | IO[bytes], limit_s: float) -> Playback:
    command.before()
    chunks: list[tuple[float, bytes]] = []
    begun_at, begun = time.time(), time.perf_counter()
    process = subprocess.Popen(
        command.argv,
        cwd=command.folder,
        env=clean_environment(command.environment),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=errors,
        start_new_session=True,
    )
    os.close(theirs)
    reader = threading.Thread(target=_read, args=(ours, begun, chunks), daemon=True)
    reader.start()
    # `Popen.wait(timeout=...)` naps for up to 50 ms between looks, which would show in the figures.
    watchdog = threading.Timer(limit_s, process.kill)
    watchdog.start()
    try:
        code = process.wait()
    finally:
        process.kill()
        watchdog.cancel()
    total_s = time.perf_counter() - begun
    reader.join(timeout=60)
    command.after()
    playback = Playback(begun_at, chunks, total_s)
    if code != 0:
        said = playback.output + _text(errors)
        raise CommandFailed(f"{command.name}: exit code {code}\n{said.decode(errors='replace')[-4000:]}")
    return playback


def _read(source: int, begun: float, chunks: list[tuple[float, bytes]]) -> None:
    # A terminal whose other side is closed answers with an error instead of an end of file.
    with suppress(OSError):
        while chunk := os.read(source, 1 << 20):
            chunks.append((time.perf_counter() - begun, chunk))


def _text(errors: int | IO[bytes]) -> bytes:
    if isinstance(errors, int):
        return b""
    errors.seek(0)
    return errors.read()


def _marked(marks: tuple[str, ...]) -> list[int]:
    wanted = [mark.encode() for mark in marks]
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            if any(mark in text for mark in wanted):
                found.append(int(entry.name))
    return found


@contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)
