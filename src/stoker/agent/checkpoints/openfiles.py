"""Which files a process of the node has open for writing: those are incomplete, however long they are unchanged."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")

Identity = tuple[int, int]  # device and inode: a path may lead through links, and a file may have several


@dataclass(frozen=True, slots=True)
class OpenForWriting:
    files: set[Identity]  # open for writing
    some_ended: bool = False  # processes of the last look


class Writers:
    """The processes of a run, looked at repeatedly. For one thread."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids
        self._before: set[int] = set()

    def __call__(self) -> OpenForWriting:
        pids = set(self._pids())
        files = being_written(pids)
        ended = {pid for pid in self._before | pids if not _is_alive(pid)}
        self._before = pids - ended
        return OpenForWriting(files, some_ended=bool(ended))


def being_written(pids: Iterable[int]) -> set[Identity]:
    """Open for writing, or mapped so that writes reach the file. Empty where the system does not report it: then only
    the time since the last change counts."""
    found: set[Identity] = set()
    for pid in pids:
        with suppress(OSError):  # it has exited, or may not be inspected
            for fd in os.listdir(_PROC / str(pid) / "fd"):  # noqa: PTH208  # names are all that is needed
                with suppress(OSError, ValueError):
                    if _writes(pid, fd):
                        status = os.stat(f"/proc/{pid}/fd/{fd}")  # noqa: PTH116  # of what it leads to, even if deleted
                        found.add((status.st_dev, status.st_ino))
            found.update(_mapped(pid))
    return found


def descendants(pid: int) -> set[int] | None:
    """Of a process; None where the system does not report them. Much cheaper than to inspect every process."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        children: list[int] = []
        with suppress(OSError):  # it has exited
            for task in os.listdir(_PROC / str(parent) / "task"):  # noqa: PTH208  # names are all that is needed
                with suppress(FileNotFoundError, ProcessLookupError):
                    children += map(int, (_PROC / str(parent) / "task" / task / "children").read_text().split())
        waiting += [child for child in children if child not in found]
        found.update(children)
    known = (_PROC / "self" / "task" / str(os.getpid()) / "children").exists()
    return found if known else None


def _is_alive(pid: int) -> bool:
    """A killed process is a zombie at first, and has closed its files by then."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _writes(pid: int, fd: str) -> bool:
    for line in (_PROC / str(pid) / "fdinfo" / fd).read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "flags":
            return int(value.strip(), 8) & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR)
    return False


def _mapped(pid: int) -> Iterator[Identity]:
    for line in (_PROC / str(pid) / "maps").read_text(errors="replace").splitlines():
        _, access, _, device, inode = line.split(maxsplit=5)[:5]
        if access[1] == "w" and access[3] == "s" and inode != "0":
            major, minor = device.split(":")
            yield os.makedev(int(major, 16), int(minor, 16)), int(inode)


# How many files this process may hold open, raised while they are needed.

SPARE = 128  # open files that the rest of the agent may need


@contextmanager
def room_for(files: int) -> Iterator[int]:
    """How many files can be held open. The limit is raised only meanwhile: scripts that start later have the usual
    one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files + SPARE
    if soft != resource.RLIM_INFINITY and wanted > soft:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    now = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        yield files if now == resource.RLIM_INFINITY else max(now - SPARE, 0)
    finally:
        if now != soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
