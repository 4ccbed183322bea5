"""TensorBoard event files, read while they are written: records, and the scalars in them. No dependency.

A file is a sequence of records, each with its length and two checksums. A record is a protocol buffer, `Event`, of
which the few fields that scalars need are read here by number.
"""

from __future__ import annotations

import csv
import math
import os
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from stoker.agent.checkpoints.files import walk
from stoker.agent.shipping.points import LONGEST_NAME, MetricPoint, whole

LARGEST_RECORD = 1 << 20  # larger ones contain images and the like, and are skipped
_HEADER = struct.Struct("<QI")  # length, its masked CRC
_FOOTER = 4  # the CRC of the data, not checked: in Python that would cost more than everything else here


@dataclass(frozen=True, slots=True)
class EventScalar:
    at: float  # unix seconds
    step: int
    tag: str
    value: float


class EventFile:
    """One file, from an offset and then from where the last read ended. An incomplete record waits."""

    def __init__(self, path: str, offset: int = 0) -> None:
        self.path = path
        self._offset = offset
        self.broken = False  # not a record: nothing more is read

    def fresh(self) -> Iterator[EventScalar]:
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            while not self.broken:
                record = self._record(fd)
                if record is None:
                    return
                yield from scalars(record)
        finally:
            os.close(fd)

    def _record(self, fd: int) -> bytes | None:
        """The next complete record; empty for a skipped one; None if there is none yet."""
        header = os.pread(fd, _HEADER.size, self._offset)
        if len(header) < _HEADER.size:
            return None
        length, checksum = _HEADER.unpack(header)
        if checksum != _masked_crc(header[:8]):
            self.broken = True
            return None
        start, end = self._offset + _HEADER.size, self._offset + _HEADER.size + length + _FOOTER
        if os.fstat(fd).st_size < end:
            return None
        self._offset = end
        return os.pread(fd, length, start) if length <= LARGEST_RECORD else b""


def scalars(record: bytes) -> Iterator[EventScalar]:
    """The scalars of one `Event`. A malformed one has none."""
    try:
        event = _fields(record)
        at = struct.unpack("<d", _last(event, 1, bytes(8)))[0]
        step = _signed(_last(event, 2, 0))
        for summary in event.get(5, ()):
            for item in _fields(summary).get(1, ()):
                value = _fields(item)
                number = _number(value)
                if number is not None:
                    yield EventScalar(at, step, _last(value, 1, b"").decode(), number)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, struct.error):
        return


def _number(value: Wire) -> float | None:
    """`simple_value` as version 1 and PyTorch write it, or a tensor of no dimensions as version 2 and Keras do."""
    if 2 in value:
        return float(struct.unpack("<f", value[2][-1])[0])
    plugin = _last(_fields(_last(_fields(_last(value, 9, b"")), 1, b"")), 1, b"scalars")
    if 8 not in value or plugin != b"scalars":
        return None
    tensor = _fields(value[8][-1])
    dimensions = _fields(_last(tensor, 2, b"")).get(2)
    kind = _KINDS.get(_last(tensor, 1, 0))
    return None if dimensions or kind is None else _element(tensor, *kind)


# The data types of tensors by number: how one element is packed, and the field that contains unpacked elements.
_KINDS = {
    1: ("<f", 5),
    2: ("<d", 6),
    3: ("<i", 7),
    4: ("<B", 7),
    5: ("<h", 7),
    6: ("<b", 7),
    9: ("<q", 10),
    14: ("bfloat16", 13),
    17: ("<H", 7),
    19: ("<e", 13),
    22: ("<I", 16),
    23: ("<Q", 17),
}


def _element(tensor: Wire, packing: str, field: int) -> float | None:
    if content := _last(tensor, 4, b""):
        return _unpacked(content, packing)
    if field not in tensor:
        return None
    raw = tensor[field][-1]
    if packing in ("<f", "<d"):
        return _unpacked(raw, packing)
    number = raw if isinstance(raw, int) else _varint(raw, 0)[0]
    if field == 13:  # the bits of a half as a number
        return _unpacked(number.to_bytes(2, "little"), packing)
    return float(number if field in (16, 17) else _signed(number))


def _unpacked(content: bytes, packing: str) -> float:
    if packing == "bfloat16":  # the upper half of a float
        return float(struct.unpack("<f", b"\0\0" + content[:2])[0])
    return float(struct.unpack_from(packing, content)[0])


Wire = dict[int, list[Any]]  # field number to values: int for a varint, bytes for everything else


def _fields(message: bytes) -> Wire:
    found: Wire = {}
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        value: int | bytes
        if kind == 0:
            value, at = _varint(message, at)
        else:
            size, at = _varint(message, at) if kind == 2 else (_SIZES[kind], at)
            value = message[at : at + size]
            at += size
            if len(value) < size:
                raise ValueError("the message ends in the middle of a field")
        found.setdefault(tag >> 3, []).append(value)
    return found


_SIZES = {1: 8, 5: 4}
_VARINT_BITS = 70  # seven in each of ten bytes


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        if shift >= _VARINT_BITS:
            raise ValueError("the varint does not end")
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _last(message: Wire, field: int, default: Any) -> Any:
    return message[field][-1] if field in message else default


@cache
def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


def _masked_crc(data: bytes) -> int:
    """CRC-32C, rotated and offset as the format requires."""
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


# Tables as Lightning's and Keras's CSVLogger and YOLO write them: rows are appended; a new column rewrites the file.

NAMES = ("metrics.csv", "results.csv", "history.csv", "log.csv", "training.log")
EVERY_S = 1.0
MOST_BYTES = 64 << 20  # of one file: larger ones are ignored
MOST_FOLDERS = 200
_COUNTS = ("step", "epoch")


class CsvFile:
    """One file, from the row after the last one read. An earlier attempt has read `skip` rows."""

    def __init__(self, path: Path, skip: int = 0) -> None:
        self._path = path
        self._rows = skip
        self._seen = (0, 0.0)  # size and modification time

    def fresh(self) -> Iterator[dict[str, float]]:
        """New complete rows, as numbers by column."""
        try:
            now = self._path.stat()
            if (now.st_size, now.st_mtime) == self._seen or now.st_size > MOST_BYTES:
                return
            self._seen = (now.st_size, now.st_mtime)
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return
        lines = text[: text.rfind("\n") + 1].splitlines()
        columns = [one.strip() for one in next(csv.reader(lines[:1]), [])]
        if not set(_COUNTS) & set(columns):
            return
        rows = lines[1:]
        if len(rows) < self._rows:  # another training has restarted the file
            self._rows = 0
        fresh, self._rows = rows[self._rows :], len(rows)
        for row in csv.reader(fresh):
            if len(row) == len(columns):
                yield dict(_numbers(zip(columns, row, strict=True)))


class CsvPoints:
    """Every such table below the outputs, and in Lightning's and YOLO's own folders in the working directory. Files
    from before the script started do not belong to this run. `read` names files in the outputs that an earlier attempt
    wrote."""

    name = "CSV tables"
    behind = guesses = False

    def __init__(self, work: Path, outputs: Path, rank: int, read: Iterable[str] = ()) -> None:
        self._work = work
        self._outputs = outputs
        self._rank = rank
        self._due = 0.0
        known = [*self._lying(), *(outputs / one for one in read if one.rpartition("/")[2] in NAMES)]
        self._files = {path: CsvFile(path, _count(path)) for path in known}

    def fresh(self, *, final: bool) -> Iterator[MetricPoint]:
        start = time.monotonic()
        if start < self._due and not final:
            return
        below = walk(str(self._outputs), lambda _path, _error: None)
        brought = [self._outputs / path for path, entry in below if entry and entry.name in NAMES]
        for path in dict.fromkeys((*self._lying(), *brought)):
            for row in self._files.setdefault(path, CsvFile(path)).fresh():
                step = next((row.pop(name) for name in _COUNTS if name in row), None)
                values = {name: one if math.isfinite(one) else None for name, one in row.items()}
                if set(values) - {"epoch"}:
                    yield MetricPoint(time.time(), self._rank, None if step is None else whole(step), values)
        now = time.monotonic()
        self._due = now + max(EVERY_S, 20 * (now - start))

    def _lying(self) -> list[Path]:
        """In `<logs>/version_N/`, `<logs>/<name>/version_N/` and `runs/<task>/<name>/` of the working directory, except
        for the outputs."""
        found: list[Path] = []
        for logs in _folders(self._work):
            if logs == self._outputs:
                continue
            for inner in _folders(logs):
                if inner.name.startswith("version_"):
                    found.append(inner)
                elif logs.name.endswith("logs"):
                    found += [one for one in _folders(inner) if one.name.startswith("version_")]
                elif logs.name == "runs":
                    found += [inner, *_folders(inner)]
        return [folder / name for folder in found for name in NAMES if (folder / name).is_file()]


def _folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            names = [one.name for one in entries if one.is_dir(follow_symlinks=False) and not one.name.startswith(".")]
    except OSError:
        return []
    return [path / name for name in sorted(names)[:MOST_FOLDERS]]


def _numbers(cells: Iterable[tuple[str, str]]) -> Iterator[tuple[str, float]]:
    for name, cell in cells:
        if cell.strip() and name and len(name) <= LONGEST_NAME:
            try:
                yield name, float(cell)
            except ValueError:
                continue


def _count(path: Path) -> int:
    """The current number of rows of a file."""
    try:
        return max(path.read_bytes().count(b"\n") - 1, 0)
    except OSError:
        return 0
