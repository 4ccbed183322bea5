"""What file names tell: which belong to one checkpoint, and which to a series."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from stoker.model.checkpoint import CheckpointSet

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
_TIMES = 1e8  # a label that is greater is a time; numbers in names are smaller


def label_of(found: CheckpointSet) -> float | None:
    """What tells that checkpoints of several nodes belong together: the greatest number in the names of a set, such as
    `step-20` or `epoch_3.pt`, or else when its newest file was written, in unix seconds. None: nothing does."""
    numbers = [
        int(match[0])
        for entry in found.entries
        for match in re.finditer(r"\d{1,8}", entry.path)
        if not _OF_A_PART.search(entry.path[: match.start()])
    ]
    if numbers:
        return float(max(numbers))
    return max(found.changed_ns.values()) / 1e9 if found.changed_ns else None


def is_time(label: float) -> bool:
    return label > _TIMES


def is_later(label: float, than: float) -> bool:
    return label > than + (SAME_S if than > _TIMES else 0.0)
