"""Restores a venv from a store: files that another venv of this node has are linked, the others are downloaded."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from stoker.errors import Corrupt
from stoker.model.environment import PackedFiles
from stoker.model.snapshot import Entry
from stoker.model.workspace import layout
from stoker.stores import Store
from stoker.stores.transfer.disk import disk_failed
from stoker.stores.transfer.files import TRY_FOR_S, Pieces, bring_one, patiently, side_by_side

LISTED = ".stoker-files"  # in a venv: hash, size and time of change of each file, for the next one to link
_SPAN_BYTES = 8 << 20  # of a pack, in one request
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_LINKED_FROM = 20  # venvs of this node


@dataclass(frozen=True, slots=True)
class Brought:
    """What it took."""

    downloaded_bytes: int
    linked_files: int


@dataclass(frozen=True, slots=True)
class _Wanted:
    entry: Entry
    pack: str
    start: int
    changed_ns: int

    @property
    def end(self) -> int:
        return self.start + self.entry.size_bytes


@dataclass(frozen=True, slots=True)
class _Span:
    """A part of a pack, with the files in it."""

    wanted: tuple[_Wanted, ...]

    @property
    def start(self) -> int:
        return self.wanted[0].start

    @property
    def size_bytes(self) -> int:
        return max(one.end for one in self.wanted) - self.start


def bring(store: Store, shelf: str, files: PackedFiles, venv: Path) -> Brought:
    """Into a new venv without packages. Every byte is compared with its hash. Raises what the store raises, Corrupt,
    and StoreFailed where the disk is full."""
    known = _linkable(venv)
    rows = zip(files.entries, files.pack, files.start, files.changed_ns, strict=True)
    wanted = [_Wanted(entry, files.packs[pack] if entry.sha256 else "", at, ns) for entry, pack, at, ns in rows]
    root = str(venv)
    try:
        for folder in sorted({os.path.dirname(one.entry.path) for one in wanted}):  # noqa: PTH120  # text in, text out
            os.makedirs(f"{root}/{folder}", exist_ok=True)  # noqa: PTH103  # as above
        missing = [one for one in wanted if not _at_hand(one, known, root)]
    except OSError as error:
        raise disk_failed("write", root, error) from error
    spans = list(_spans(missing))
    large = sum(len(span.wanted) == 1 and span.size_bytes > _SPAN_BYTES for span in spans)
    with Pieces(store, large) as pieces:
        side_by_side(
            sorted(spans, key=lambda span: -span.size_bytes),
            lambda span: patiently(lambda: _bring_span(pieces, shelf, span, root), TRY_FOR_S),
            None,
            store.at_once,
        )
    links = sum(1 for one in wanted if one.entry.sha256) - len(missing)
    return Brought(sum(span.size_bytes for span in spans), links)


def _at_hand(one: _Wanted, known: dict[str, tuple[str, int, int]], root: str) -> bool:
    """Whether it is there without a download: a link, or a file that another venv has unchanged."""
    place = f"{root}/{one.entry.path}"
    if one.entry.target:
        _make_room(place)
        os.symlink(one.entry.target, place)  # noqa: PTH211  # as above
        return True
    source, size, changed_ns = known.get(_content(one.entry), ("", 0, 0))
    if not source:
        return False
    try:
        seen = os.lstat(source)
        if (seen.st_size, seen.st_mtime_ns) != (size, changed_ns):
            return False
        _make_room(place)
        os.link(source, place)
    except OSError:  # it is gone, or on another disk
        return False
    return True


def _make_room(place: str) -> None:
    """What making the venv put there."""
    with suppress(FileNotFoundError):
        os.unlink(place)  # noqa: PTH108  # as above


def _content(entry: Entry) -> str:
    """Links share the permission to be executed."""
    return f"{entry.sha256}{'x' if entry.executable else ''}"


def _spans(missing: Sequence[_Wanted]) -> Iterator[_Span]:
    ordered = sorted(missing, key=lambda one: (one.pack, one.start))
    for _, group in groupby(ordered, key=lambda one: one.pack):
        waiting: list[_Wanted] = []
        for one in group:
            apart = waiting and (one.start > waiting[-1].end or one.end - waiting[0].start > _SPAN_BYTES)
            if apart:
                yield _Span(tuple(waiting))
                waiting = []
            waiting.append(one)
        yield _Span(tuple(waiting))


def _bring_span(pieces: Pieces, shelf: str, span: _Span, root: str) -> None:
    first = span.wanted[0]
    key = layout.environment_pack(shelf, first.pack)
    if len(span.wanted) == 1 and not first.start and span.size_bytes > _SPAN_BYTES:
        place = f"{root}/{first.entry.path}"
        bring_one(pieces, place, key, first.entry.size_bytes, first.entry.sha256)
        _finish(place, first)
        return
    data = memoryview(pieces.store.get(key, span.start, span.size_bytes))
    for one in span.wanted:
        content = data[one.start - span.start : one.end - span.start]
        if hashlib.sha256(content).hexdigest() != one.entry.sha256:
            raise Corrupt(f"`{one.entry.path}` of an environment in the store does not have its hash")
        _write(f"{root}/{one.entry.path}", content, one)


def _write(place: str, content: memoryview, one: _Wanted) -> None:
    try:
        file = _opened(place, 0o777 if one.entry.executable else 0o666)
        try:
            while content:
                content = content[os.write(file, content) :]
            os.utime(file, ns=(one.changed_ns, one.changed_ns))
        finally:
            os.close(file)
    except OSError as error:
        raise disk_failed("write", place, error) from error


def _opened(place: str, mode: int) -> int:
    try:
        return os.open(place, _NEW, mode)
    except FileExistsError:
        _make_room(place)
        return os.open(place, _NEW, mode)


def _finish(place: str, one: _Wanted) -> None:
    try:
        if one.entry.executable:
            os.chmod(place, 0o755)  # noqa: PTH101  # as above
        os.utime(place, ns=(one.changed_ns, one.changed_ns))
    except OSError as error:
        raise disk_failed("write", place, error) from error


def note_files(venv: Path, entries: Sequence[Entry]) -> None:
    """So that another venv of this node can link its files, as long as nobody has changed them."""
    lines = []
    for one in entries:
        if one.sha256:
            seen = (venv / one.path).lstat()
            lines.append(f"{_content(one)} {seen.st_size} {seen.st_mtime_ns} {one.path}\n")
    (venv / LISTED).write_text("".join(lines), encoding="utf-8", errors="surrogateescape")


def _linkable(venv: Path) -> dict[str, tuple[str, int, int]]:
    """By content: the file of another venv, with its size and time of change."""
    found: dict[str, tuple[str, int, int]] = {}
    lists = sorted(venv.parent.glob(f"*/{LISTED}"), key=_age)[:_LINKED_FROM]
    for file in lists:
        with suppress(OSError, ValueError):  # removed meanwhile
            for line in file.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
                content, size, changed_ns, path = line.split(" ", 3)
                found.setdefault(content, (f"{file.parent}/{path}", int(size), int(changed_ns)))
    return found


def _age(file: Path) -> float:
    """The least is the newest; last is one that was removed meanwhile."""
    try:
        return -file.stat().st_mtime
    except OSError:
        return 0.0
