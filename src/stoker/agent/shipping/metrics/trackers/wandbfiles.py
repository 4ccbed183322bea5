"""The history in W&B's offline runs: a log of blocks, as LevelDB writes it, with a protocol buffer in each record."""

from __future__ import annotations

import json
import os
import re
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoker.agent.shipping.metrics.eventfiles import Wire, fields, last, signed
from stoker.agent.shipping.metrics.trackers.tracked import TrackedValues

RUN_PATH = re.compile(r"(?:.*/)?(?:offline-)?run-[^/]+/run-[^/]+\.wandb")
LARGEST_RECORD = 1 << 20  # larger ones contain images and the like, and are skipped
MOST_READ = 256  # blocks in one read
_BLOCK = 32 << 10
_IDENTITY = b":W&B\xe1\xbe\x00"  # with the version of the format
_HEADER = struct.Struct("<IHB")  # checksum, length, kind
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4  # kinds: a record, or a part of one
_LONGEST_VALUE = 4096  # of JSON: longer ones are tables and histograms


class WandbFile:
    """One run, read while it is written. An incomplete record waits; an invalid one ends the reading."""

    def __init__(self, file: Path) -> None:
        self.behind = False
        self.broken = False
        self._file = file
        self._offset = 0
        self._skip_to = 0
        self._parts: list[bytes] = []  # of a record that is not complete yet

    def skip(self) -> None:
        try:
            self._skip_to = self._file.stat().st_size
        except OSError:
            return

    def fresh(self) -> Iterator[TrackedValues]:
        self.behind = False
        try:
            if self.broken or self._file.stat().st_size <= self._offset:
                return
            with self._file.open("rb") as file:
                yield from self._blocks(file.fileno())
        except OSError:
            return

    def _blocks(self, fd: int) -> Iterator[TrackedValues]:
        for _ in range(MOST_READ):
            start = self._offset - self._offset % _BLOCK
            block = os.pread(fd, _BLOCK, start)
            for record in self._records(block, start):
                if self._offset > self._skip_to and (one := history(record)):
                    yield one
            if self.broken or len(block) < _BLOCK or self._offset < start + _BLOCK:
                return
        self.behind = True

    def _records(self, block: bytes, start: int) -> Iterator[bytes]:
        """The records that end in this block. Moves the offset behind them."""
        at = self._offset - start
        if not self._offset:
            if len(block) < len(_IDENTITY):
                return
            self.broken = not block.startswith(_IDENTITY)
            at = len(_IDENTITY)
        while not self.broken:
            if _BLOCK - at < _HEADER.size:  # too little for another part: zeros fill the block
                self._offset = start + _BLOCK
                return
            if len(block) - at < _HEADER.size:
                return
            checksum, length, kind = _HEADER.unpack_from(block, at)
            end = at + _HEADER.size + length
            if (not kind and not length) or len(block) < end:
                self.broken = end > _BLOCK
                return
            data = block[at + _HEADER.size : end]
            if zlib.crc32(data, zlib.crc32(bytes([kind]))) != checksum:
                self.broken = len(block) > end  # else it may be in the middle of being written
                return
            at, self._offset = end, start + end
            if (record := self._joined(kind, data)) is not None:
                yield record

    def _joined(self, kind: int, data: bytes) -> bytes | None:
        """The whole record, if this part is its last one. Of a large record only its size is of interest."""
        if kind in (_WHOLE, _FIRST):
            self._parts = []
        if kind == _WHOLE:
            return data
        if sum(map(len, self._parts)) <= LARGEST_RECORD:
            self._parts.append(data)
        if kind != _LAST:
            return None
        record, self._parts = b"".join(self._parts), []
        return record if len(record) <= LARGEST_RECORD else None


def history(record: bytes) -> TrackedValues | None:
    """The numbers of one call of `wandb.log`. None for any other record."""
    try:
        found = fields(record)
        return _history(fields(last(found, 2, b""))) if 2 in found else None
    except (ValueError, IndexError, TypeError, AttributeError, KeyError, RecursionError):
        return None


def _history(message: Wire) -> TrackedValues | None:
    values: dict[str, float] = {}
    for item in message.get(1, ()):
        found = fields(item)
        names = [part.decode(errors="replace") for part in found.get(2, ())] or [last(found, 1, b"").decode()]
        text = last(found, 16, b"")
        if len(text) <= _LONGEST_VALUE:
            values |= _numbers(".".join(names), json.loads(text))
    at = values.pop("_timestamp", time.time())
    step = values.pop("_step", None)
    if 2 in message:
        step = float(signed(last(fields(last(message, 2, b"")), 1, 0)))
    values = {name: value for name, value in values.items() if name and not name.startswith("_")}
    return TrackedValues(at, step, values) if values else None


def _numbers(name: str, value: Any) -> dict[str, float]:
    """Of a number, and of objects in it by their path; objects with a type are histograms, images and the like."""
    if isinstance(value, dict):
        inner = {} if "_type" in value else value
        return {key: one for part, each in inner.items() for key, one in _numbers(f"{name}.{part}", each).items()}
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or (isinstance(value, int) and value.bit_length() > 1000)
    ):
        return {}
    return {name: float(value)}


def opened(path: str, file: Path) -> WandbFile | None:
    return WandbFile(file) if RUN_PATH.fullmatch(path) else None
