"""The files of a folder as they would be in a dataset. Only folders are read: contents come later."""

from __future__ import annotations

import os
import stat
import time
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stoker.client.source.statindex import StatIndex, digest, unchanged
from stoker.errors import DatasetRefused

UNFINISHED = ".stoker-part-"  # left by an interrupted download
_MOST_SHOWN = 3


class FileStat(NamedTuple):
    """The part of `os.stat_result` that shows whether a file changed: a fifth of its size, for a million files."""

    st_size: int
    st_mtime_ns: int
    st_ctime_ns: int
    st_ino: int

    @classmethod
    def of(cls, seen: os.stat_result) -> FileStat:
        return cls(seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino)


class FolderFile(NamedTuple):
    """A file: its path in the dataset, where its bytes are, and its stat."""

    path: str
    place: str
    seen: FileStat


@dataclass(frozen=True, slots=True)
class _Open:
    """A folder still to be listed. `above` are the real folders it is in, to detect circular links."""

    path: str  # in the dataset, with `/` at its end unless it is the root
    place: str
    above: frozenset[tuple[int, int]]


def look(root: Path, *, follow_links: bool = False) -> list[FolderFile]:
    """Every file below the root, which may itself be a file. A link to something inside is followed; one that leads
    outside is refused unless `follow_links`. Raises DatasetRefused for the first file that cannot be included."""
    try:
        top = os.path.realpath(root, strict=True)
        seen = os.stat(top)  # noqa: PTH116  # the same call as for every file below
        if stat.S_ISREG(seen.st_mode):
            return [FolderFile(_checked_name(root.name), top, FileStat.of(seen))]
    except OSError as error:
        raise DatasetRefused(f"`{root}` cannot be read: {_reason(error)}") from error
    found: list[FolderFile] = []
    todo = [_Open("", top, frozenset({(seen.st_dev, seen.st_ino)}))]
    while todo:
        folder = todo.pop()
        try:
            with os.scandir(folder.place) as entries:
                for entry in entries:
                    _add(entry, folder, found, todo, "" if follow_links else top)
        except OSError as error:
            raise _unreadable(folder.path or str(root), error) from error
    if not found:
        raise DatasetRefused(f"`{root}` contains no files", hint="a dataset requires at least one file")
    return found


def clashes(paths: Iterable[str]) -> list[str]:
    """The paths that would be one file on a system that ignores case or Unicode form, as text."""
    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(folded(path), []).append(path)
    clashing = [sorted(group) for group in groups.values() if len(group) > 1]
    told = [f"{' and '.join(f'`{path}`' for path in group)} are the same file" for group in clashing[:_MOST_SHOWN]]
    more = [f"and {len(clashing) - _MOST_SHOWN} more such groups"] if len(clashing) > _MOST_SHOWN else []
    return [f"on macOS and Windows {text}" for text in told] + more


def folded(path: str) -> str:
    """The same for paths that macOS or Windows take for the same."""
    return path.lower() if path.isascii() else unicodedata.normalize("NFC", path).casefold()


def _add(entry: os.DirEntry[str], folder: _Open, found: list[FolderFile], todo: list[_Open], inside: str) -> None:
    """`inside` is the folder that links must not leave; empty if they may."""
    if entry.name.startswith(UNFINISHED):
        return
    path = folder.path + entry.name
    if not entry.name.isascii():
        _checked_name(path)
    place = entry.path
    try:
        if entry.is_symlink():
            place = os.path.realpath(place, strict=True)
            if inside and place != inside and not place.startswith(inside.rstrip(os.sep) + os.sep):
                raise DatasetRefused(
                    f"the link `{path}` points outside the folder, to {place}",
                    hint="include the targets of such links with `--follow-links`",
                )
        seen = entry.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    if stat.S_ISREG(seen.st_mode):
        found.append(FolderFile(path, place, FileStat.of(seen)))
    elif stat.S_ISDIR(seen.st_mode):
        mark = (seen.st_dev, seen.st_ino)
        if mark in folder.above:
            raise DatasetRefused(
                f"the link `{path}` points to a folder that contains it", hint=f"remove it: `rm '{path}'`"
            )
        todo.append(_Open(f"{path}/", place, folder.above | {mark}))
    else:
        raise DatasetRefused(f"`{path}` is neither a file nor a folder", hint="a dataset contains only files")


def _checked_name(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode(errors="backslashreplace")
        raise DatasetRefused(
            f"the name `{shown}` is not valid UTF-8, so it would be different on another computer",
            hint="rename it",
        ) from None
    return path


def _unreadable(path: str, error: OSError) -> DatasetRefused:
    return DatasetRefused(f"`{path}` cannot be read: {_reason(error)}", hint="make it readable, or exclude it")


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


# The hashes of found files: those that have not changed since last time are not read.

_TRIES = 3  # for a file that changes while it is read
_LARGE_BYTES = 256 * 1024  # above this, hashing gains from a second core; below, threads only slow each other down
_AHEAD = 4  # large files that are hashed at once
_SAVE_S = 20.0  # the most hashing work that is lost when the process is killed

Hashed = tuple[FolderFile, str]


def hashes(found: Iterable[FolderFile], index: StatIndex, told: Callable[[int, int], None]) -> Iterator[Hashed]:
    """Each file with its sha256, in no particular order; `told` receives the bytes and files that were read. A file
    that changed since it was found is returned as it is now. Raises DatasetRefused if one cannot be read, or keeps
    changing."""
    save_at = time.monotonic() + _SAVE_S
    waiting: deque[Future[tuple[FolderFile, str, int]]] = deque()
    with ThreadPoolExecutor(_AHEAD) as threads:
        for one in found:
            if sha256 := index.known(one.path, one.seen):
                yield one, sha256
                continue
            if one.seen.st_size >= _LARGE_BYTES:
                waiting.append(threads.submit(_hash, one))
                if len(waiting) < 2 * _AHEAD:
                    continue
                yield _learnt(*waiting.popleft().result(), index, told)
            else:
                yield _learnt(*_hash(one), index, told)
            if time.monotonic() > save_at:
                index.save(unfinished=True)
                save_at = time.monotonic() + _SAVE_S
        while waiting:
            yield _learnt(*waiting.popleft().result(), index, told)
    index.save()


def _learnt(one: FolderFile, sha256: str, at_ns: int, index: StatIndex, told: Callable[[int, int], None]) -> Hashed:
    index.learn(one.path, one.seen, sha256, at_ns)
    told(one.seen.st_size, 1)
    return one, sha256


def _hash(one: FolderFile) -> tuple[FolderFile, str, int]:
    for _ in range(_TRIES):
        read_at_ns = time.time_ns()
        try:
            sha256, before, after = digest(one.place)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise DatasetRefused(
                f"`{one.path}` cannot be read: {reason}", hint="make it readable, or exclude it"
            ) from error
        if sha256 and unchanged(before, after):
            return one._replace(seen=FileStat.of(after)), sha256, read_at_ns
    raise DatasetRefused(
        f"`{one.path}` changed each of the {_TRIES} times it was read", hint="retry when no process writes to it"
    )
