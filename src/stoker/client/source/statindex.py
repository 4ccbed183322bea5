"""The hashes of a source folder's files, so that unchanged ones are not read again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol


class StatFields(Protocol):
    """The stat of a file: an `os.stat_result`, or the few fields of it that are needed."""

    @property
    def st_size(self) -> int: ...
    @property
    def st_mtime_ns(self) -> int: ...
    @property
    def st_ctime_ns(self) -> int: ...
    @property
    def st_ino(self) -> int: ...


Row = list[Any]  # size, mtime_ns, ctime_ns, inode, sha256, and what else its reader has noted

# A file may be written twice within one tick of the file system's clock, and look the same after the second time.
# So a hash is trusted only if the file had not changed for longer than a tick when it was read.
_FINE_TICK_NS = 50_000_000  # the kernel's tick is 10 ms at most
_COARSE_TICK_NS = 2_100_000_000  # times without a fraction of a millisecond: FAT keeps two seconds, others one


class StatIndex:
    """Stored in one JSON file. If it is lost or damaged, only time is lost."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._old = _read(file) if file else {}
        self._new: dict[str, Row] = {}

    def known(self, path: str, seen: StatFields) -> str:
        """The file's hash if it has not changed, or an empty string."""
        row = self._old.get(path)
        if not row or row[1] != seen.st_mtime_ns or row[2] != seen.st_ctime_ns:
            return ""
        if row[0] != seen.st_size or row[3] != seen.st_ino:
            return ""
        self._new[path] = row
        return str(row[4])

    def note(self, path: str) -> Any:
        """The note with the hash of a file that is `known`; None if there is none."""
        row = self._new[path]
        return row[5] if len(row) > 5 else None

    def learn(self, path: str, seen: StatFields, sha256: str, read_at_ns: int, note: Any = None) -> None:
        """Records a hash; `read_at_ns` is the time just before the file was opened. `note` is stored as JSON."""
        tick_ns = _FINE_TICK_NS if seen.st_mtime_ns % 1_000_000 else _COARSE_TICK_NS
        if max(seen.st_mtime_ns, seen.st_ctime_ns) + tick_ns < read_at_ns:
            self._new[path] = [seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino, sha256]
            self._new[path] += [] if note is None else [note]
        else:
            self._new.pop(path, None)

    def save(self, *, unfinished: bool = False) -> None:
        """Atomic. A folder that is not writable only makes the next scan slower. With `unfinished`, files that were not
        queried yet are kept."""
        if not self._file or self._new == self._old:
            return
        rows = {**self._old, **self._new} if unfinished else self._new
        part = self._file.with_name(f"{self._file.name}.part-{os.urandom(8).hex()}")
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(rows, separators=(",", ":")), "utf-8")
            part.replace(self._file)
        except OSError:
            with suppress(OSError):
                part.unlink()


def _read(file: Path) -> dict[str, Row]:
    try:
        rows = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return rows if isinstance(rows, dict) and all(map(_sound, rows.values())) else {}


def _sound(row: object) -> bool:
    return isinstance(row, list) and len(row) in (5, 6) and isinstance(row[4], str) and len(row[4]) == 64


# The hash of a file, and whether the file was stable while it was read.

_PIECE_BYTES = 1 << 20
_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)  # Windows has the one, not the other


def digest(path: str, see: Callable[[bytes], None] = lambda _: None) -> tuple[str, os.stat_result, os.stat_result]:
    """The sha256, empty if the size has changed, with the stats from before and after reading. `see` receives the
    file's beginning: up to a megabyte."""
    file = os.open(path, _READ)
    try:
        before = os.fstat(file)
        hashed = hashlib.sha256()
        size = 0
        wanted = min(before.st_size + 1, _PIECE_BYTES)
        while piece := os.read(file, wanted):
            hashed.update(piece)
            if not size:
                see(piece)
            size += len(piece)
            if len(piece) < wanted:  # the end of a file: nothing else reads short on one
                break
        return hashed.hexdigest() if size == before.st_size else "", before, os.fstat(file)
    finally:
        os.close(file)


def unchanged(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_size, one.st_mtime_ns, one.st_ctime_ns) == (other.st_size, other.st_mtime_ns, other.st_ctime_ns)
