"""What is known of files on the disk: the contents of a folder, what names tell, and which are open for writing."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from stoker.model.job.sections import CheckpointPaths, fits, is_glob
from stoker.model.snapshot import CheckpointSet

Unreadable = Callable[[str, OSError], None]


def walk(top: str, unreadable: Unreadable) -> Iterator[tuple[str, os.DirEntry[str] | None]]:
    """Everything below `top` by its path with `/`: files, links and others; None stands for an empty folder.

    Links are not followed. Unreadable folders are passed to `unreadable`; those that vanish are skipped.
    """
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        try:
            with os.scandir(os.path.join(top, prefix)) as found:  # noqa: PTH118  # a Path for each would cost too much
                entries = list(found)
        except FileNotFoundError:
            continue
        except OSError as error:
            unreadable(prefix, error)
            continue
        if prefix and not entries:
            yield prefix, None
        for entry in entries:
            path = f"{prefix}/{entry.name}" if prefix else entry.name
            if entry.is_dir(follow_symlinks=False):
                waiting.append(path)
            else:
                yield path, entry


# Which of the files and folders that a job declares as checkpoints exist now.


def present(work: Path, paths: CheckpointPaths) -> list[str]:
    """Each once, none inside another. Links are not followed: their targets may be anywhere."""
    found: dict[str, None] = {}
    for root in paths.roots:
        found |= dict.fromkeys(_expand(str(work), root.split("/"), "") if is_glob(root) else _literal(work, root))
    return [one for one in found if not any(one.startswith(f"{other}/") for other in found)]


def _literal(work: Path, root: str) -> list[str]:
    return [root] if os.path.lexists(work / root) else []


def _expand(top: str, parts: list[str], prefix: str) -> Iterator[str]:
    """The paths below `prefix` that match the parts of a pattern."""
    if not parts:
        if prefix:
            yield prefix
        return
    head, *rest = parts
    if head == "**":
        yield from _expand(top, rest, prefix)
    elif not is_glob(head):
        path = f"{prefix}/{head}" if prefix else head
        if os.path.lexists(f"{top}/{path}") and not (rest and os.path.islink(f"{top}/{path}")):  # noqa: PTH114  # text
            yield from _expand(top, rest, path)
        return
    for entry in _entries(f"{top}/{prefix}"):
        path = f"{prefix}/{entry.name}" if prefix else entry.name
        folder = entry.is_dir(follow_symlinks=False)
        if head == "**":
            if folder and not entry.name.startswith("."):
                yield from _expand(top, parts, path)
        elif fits(entry.name, head) and (folder or not rest):
            yield from _expand(top, rest, path)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:  # gone, or not a folder
        return []


REMEMBERED = 1 << 16  # names that are parsed again and again
MOST_LOST = 1024  # names of files that were removed
_DIGITS = re.compile(r"\d+")
_SHARD = re.compile(r"\d+[-_]of[-_]\d+")
_ENDING = re.compile(r"\.[A-Za-z]\w*$")


class Rotation:
    """Kinds of files of which some were removed before others appeared: a script keeps the last few of them."""

    def __init__(self) -> None:
        self._lost: dict[str, None] = {}
        self._lost_kinds: set[str] = set()
        self._rotating: set[str] = set()

    def note(self, came: Iterable[str], went: Iterable[str]) -> None:
        """A name that reappears is rewritten, and not part of a series."""
        self._rotating |= {kind_of(path) for path in came if path not in self._lost} & self._lost_kinds
        if not (lost := [path for path in went if kind_of(path) not in self._rotating]):
            return
        self._lost |= dict.fromkeys(lost)
        for path in list(self._lost)[:-MOST_LOST]:
            del self._lost[path]
        self._lost_kinds = {kind_of(path) for path in self._lost}

    def has(self, path: str) -> bool:
        return kind_of(path) in self._rotating


@lru_cache(REMEMBERED)
def kind_of(path: str) -> str:
    """The path without the numbers in its name."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/{_DIGITS.sub('#', name)}"


def is_shard(path: str) -> bool:
    return bool(_SHARD.search(path))


def place_of(path: str) -> str:
    """Its folder."""
    return path.rpartition("/")[0]


def folders_of(path: str) -> list[str]:
    """From the innermost to the outermost."""
    found = []
    while path := place_of(path):
        found.append(path)
    return found


@lru_cache(REMEMBERED)
def numbers_in(path: str) -> tuple[int, ...]:
    """Of its name, without the suffix."""
    return tuple(int(digits[:18]) for digits in _DIGITS.findall(_ENDING.sub("", path.rpartition("/")[2])))


class Companions:
    """The incomplete files of one folder, and which others share a checkpoint with one of them: `model-5.pt` and
    `optimizer-5.pt` do, `model-5.pt` and `model-6.pt` do not. Names without numbers may, and are not waited for in a
    hurry. Fast for thousands of files: no pairwise comparison."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._numbers = {numbers_in(path) for path in paths}
        self._begin = {numbers[:size] for numbers in self._numbers for size in range(1, len(numbers) + 1)}

    def have(self, path: str, *, hurried: bool) -> bool:
        """Whether one of them belongs to it: the numbers of one are a prefix of the other's."""
        numbers = numbers_in(path)
        if not numbers:
            return () in self._numbers and not hurried
        return numbers in self._begin or any(numbers[:size] in self._numbers for size in range(1, len(numbers)))


class Partners:
    """Files that all numbers of a folder have: next to `model-4.pt` and `optimizer-4.pt`, `model-5.pt` lacks one."""

    def __init__(self, known: Iterable[str], there: Iterable[str]) -> None:
        self._there = _kinds_by_number(there)
        self._common: dict[str, set[str]] = {}  # by kind: what every number with this kind has
        for kinds in _kinds_by_number(known).values():
            self._common |= {kind: self._common.get(kind, kinds) & kinds for kind in kinds}

    def lacking(self, path: str) -> bool:
        numbers = numbers_in(path)
        if not numbers:
            return False
        return not self._common.get(kind_of(path), set()) <= self._there.get((place_of(path), numbers[0]), set())


def _kinds_by_number(paths: Iterable[str]) -> dict[tuple[str, int], set[str]]:
    found: dict[tuple[str, int], set[str]] = {}
    for path in paths:
        if numbers := numbers_in(path):
            found.setdefault((place_of(path), numbers[0]), set()).add(kind_of(path))
    return found


# Numbers that say which rank or part a file is of, and not when it was written.
_OF_A_PART = re.compile(r"(?i)(rank|node|shard|part|of|worker|gpu|local|world|size|tp|pp|dp|mp)[_\-.]*$")


SAME_S = 1.0  # ranks in step save within this time of each other, by clocks that may differ a little
_TIMES = 1e8  # a label that is greater is a time; so are numbers in names
MOST_STEPS = 100


def label_of(found: CheckpointSet) -> float | None:
    """What tells that checkpoints of several nodes belong together: the greatest number in the names of a set, such as
    `step-20` or `epoch_3.pt`, or else when its newest file was written, in unix seconds. None: nothing does."""
    return float(max(numbers)) if (numbers := _labels_in(found)) else written_at(found)


def written_at(found: CheckpointSet) -> float | None:
    """When its newest file was written, in unix seconds."""
    return max(found.changed_ns.values()) / 1e9 if found.changed_ns else None


def is_of_ranks(found: CheckpointSet, ranks: Collection[int]) -> bool:
    """Whether the numbers in its names may all be those of ranks, such as in `state-2.pt` and `state-3.pt`."""
    numbers = _labels_in(found)
    return bool(numbers) and numbers <= set(ranks)


def _labels_in(found: CheckpointSet) -> set[int]:
    numbers = {
        int(match[0][:18])
        for entry in found.entries
        for match in _DIGITS.finditer(entry.path)
        if not _OF_A_PART.search(entry.path[: match.start()])
    }
    return {number for number in numbers if number < _TIMES}


_OWN = re.compile(r"(?:^|.*/)step-(\d{9,18})(?:-\d+)?/manifest\.json")


def own_steps(found: CheckpointSet, paths: CheckpointPaths) -> tuple[int, ...]:
    """The steps that `stoker.checkpoint` has saved for all ranks of the node; its ranks agree on one of them."""
    steps = {
        int(match[1])
        for entry in found.entries
        if (match := _OWN.fullmatch(entry.path)) and entry.path.count("/") == paths.top(entry.path).count("/") + 2
    }
    return tuple(sorted(steps, reverse=True)[:MOST_STEPS])


def is_time(label: float) -> bool:
    return label > _TIMES


def is_later(label: float, than: float) -> bool:
    return label > than + (SAME_S if than > _TIMES else 0.0)


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
