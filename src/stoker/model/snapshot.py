"""The code of a run, content-addressed: a list of entries whose hash is its name."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PureWindowsPath

from stoker.errors import SnapshotRefused


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
