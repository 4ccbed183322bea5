"""Files of a run by their hash: its code, and its checkpoints in the store, with the fences between attempts."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from pathlib import PureWindowsPath

from stoker.errors import SnapshotRefused
from stoker.model.wire import dump


class EntryKind(StrEnum):
    FILE = "file"
    LINK = "link"
    FOLDER = "folder"  # only folders that are empty: the others follow from their files


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in a tree. `path` is relative with `/`; `sha256` and `size_bytes` are a file's, `target` a link's."""

    path: str
    kind: EntryKind = EntryKind.FILE
    sha256: str = ""
    size_bytes: int = 0
    executable: bool = False
    target: str = ""


@dataclass(frozen=True, slots=True)
class Git:
    """Where the code came from. `dirty` means the tree differs from the commit."""

    commit: str
    branch: str = ""
    dirty: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    entries: tuple[Entry, ...]

    @property
    def id(self) -> str:
        """The same tree has the same id on every computer."""
        rows = [[e.path, e.kind, e.sha256, e.executable, e.target] for e in sorted(self.entries, key=lambda e: e.path)]
        return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)


def checked_path(path: str) -> str:
    """The path, if it stays inside the folder it is unpacked in, on any system. Anything else is an attack or a bug."""
    parts = path.split("/")
    outside = path.startswith("/") or "\0" in path or ".." in parts or not any(part not in ("", ".") for part in parts)
    if "\\" in path or ":" in path:
        there = PureWindowsPath(path)
        outside = outside or bool(there.drive or there.root) or ".." in there.parts
    if outside:
        raise SnapshotRefused(f"a manifest names the path `{path}`, which is outside its folder")
    return path


Position = tuple[int, int]  # attempt and number within it: later ones are greater
SPAN = 1_000_000  # sets that each machine of an attempt numbers for itself: two of them never make the same

_NO_SEAL = b'"seal":""}'  # it is the last of the fields
_NO_SAVES = b'"saves":{},' + _NO_SEAL


@dataclass(frozen=True, slots=True)
class CheckpointSet:
    """Files that belong together, as they were at one moment. Visible as a whole or not at all."""

    attempt: int  # the fencing number: who committed it
    number: int  # within the attempt, from 1
    at: datetime
    entries: tuple[Entry, ...]  # paths are relative to the working directory
    step: float | None = None  # the last step reported before it
    metrics: Mapping[str, float] = field(default_factory=dict)  # the last values reported before it
    changed_ns: Mapping[str, int] = field(default_factory=dict)  # by path: scripts look for the newest file
    saves: Mapping[str, int] = field(default_factory=dict)  # by path: its how many-th version; only of a gang's nodes
    seal: str = ""  # the hash of everything else

    @property
    def position(self) -> Position:
        return self.attempt, self.number

    @property
    def sealed(self) -> CheckpointSet:
        return replace(self, seal=self._hash())

    @property
    def whole(self) -> bool:
        """Not a byte of it has changed since it was sealed."""
        return self.seal == self._hash()

    def seal_and_dump(self) -> tuple[CheckpointSet, bytes]:
        """Sealed, and as it is stored. A set of thousands of files takes long to put into words: that is done once."""
        words = self._words()
        sealed = replace(self, seal=hashlib.sha256(words).hexdigest())
        return sealed, words.removesuffix(_NO_SEAL) + _NO_SEAL.replace(b'""', f'"{sealed.seal}"'.encode())

    def _hash(self) -> str:
        return hashlib.sha256(self._words()).hexdigest()

    def _words(self) -> bytes:
        """Without a seal. The field that most sets do not need is left out: sets that are older than it have no other
        seal."""
        words = dump(replace(self, seal=""))
        return words if self.saves else words.removesuffix(_NO_SAVES) + _NO_SEAL


@dataclass(frozen=True, slots=True)
class Fence:
    """Says that an attempt has taken over, and from which set it resumed.

    Whatever an earlier attempt commits behind that set does not count: its author did not know it was over.
    """

    attempt: int
    base_attempt: int = 0  # 0: it began from nothing
    base_number: int = 0
    incarnation: int = 1  # of the attempt's machines, which has taken over
    id: str = ""  # whose claim this is, where several may try

    @property
    def base(self) -> Position:
        return self.base_attempt, self.base_number

    @property
    def author(self) -> Position:
        return self.attempt, self.incarnation


def claim(attempt: int, incarnation: int = 1, id: str = "") -> Fence:
    """The fence of a machine that has yet to find its base: it keeps earlier ones out, and hides nothing."""
    return Fence(attempt, attempt, first_number(incarnation), incarnation, id)


def first_number(incarnation: int) -> int:
    """The sets of a machine have greater numbers than this."""
    return (incarnation - 1) * SPAN


def visible(positions: Iterable[Position], fences: Collection[Fence]) -> list[Position]:
    """The sets that count, newest first."""
    kept = [one for one in positions if all(author(one) >= fence.author or one <= fence.base for fence in fences)]
    return sorted(kept, reverse=True)


def author(position: Position) -> Position:
    """Which machine of which attempt has made a set."""
    return position[0], max(position[1] - 1, 0) // SPAN + 1


def fenced(attempt: int, fences: Iterable[Fence], incarnation: int = 1) -> bool:
    """Another attempt, or another machine of this one, has taken over."""
    return any(fence.author > (attempt, incarnation) for fence in fences)


def retained(sets: Collection[CheckpointSet], keep: int, best: str = "") -> set[Position]:
    """The newest `keep`, and the best by a metric: `val_acc` is best when greatest, `-loss` when least."""
    newest = sorted((one.position for one in sets), reverse=True)[:keep]
    metric, sign = best.removeprefix("-"), -1 if best.startswith("-") else 1
    rated = [one for one in sets if math.isfinite(one.metrics.get(metric, math.nan))]
    if best and rated:
        newest.append(max(rated, key=lambda one: (sign * one.metrics[metric], one.position)).position)
    return set(newest)
