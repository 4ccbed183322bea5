"""The metrics of runs as TensorBoard event files, written while the runs train. No dependency."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from stoker.client.api.reading import Point
from stoker.files import masked_crc

_VERSION = b"\x1a\x0dbrain.Event:2"  # field 3 of the first event of a file
_SESSION_START = b"\x3a\x02\x08\x01"  # what was written before with this step or a later one is repeated


@dataclass
class _Series:
    """One metric of one rank: the steps as reported, and those in the file."""

    attempt: int = 0
    steps: list[tuple[float | None, int]] = field(default_factory=list)


class EventLog:
    """The event files of one run: one in `folder` for rank 0, and one in `folder/rank-N` for every other rank.

    TensorBoard knows whole steps that only grow. A step that is missing, repeated or a part of an epoch becomes the
    next whole one; steps that were repeated after an eviction replace the earlier ones.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._series: dict[tuple[int, str], _Series] = {}

    def add(self, points: Iterable[Point]) -> None:
        written: dict[int, list[bytes]] = {}
        for point in points:
            for name, value in point.values.items():
                series = self._series.setdefault((point.rank, name), _Series(point.attempt))
                back = _rewound(series, point)
                step = _next(series, point.step)
                lines = written.setdefault(point.rank, [])
                if back:
                    lines.append(record(event(point.at.timestamp(), step) + _SESSION_START))
                lines.append(record(event(point.at.timestamp(), step) + scalar(name, value)))
        for rank, records in written.items():
            self._append(rank, b"".join(records))

    def _append(self, rank: int, data: bytes) -> None:
        folder = self._folder / f"rank-{rank}" if rank else self._folder
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "events.out.tfevents.0.stoker"
        with file.open("ab") as out:
            out.write(data if out.tell() else record(event(0.0, 0) + _VERSION) + data)


def _rewound(series: _Series, point: Point) -> bool:
    """Forgets the steps that a later attempt repeats. True if there are some."""
    before = len(series.steps)
    if series.attempt < point.attempt and point.step is not None:
        while series.steps and (last := series.steps[-1][0]) is not None and last >= point.step:
            series.steps.pop()
    series.attempt = point.attempt
    return len(series.steps) < before


def _next(series: _Series, step: float | None) -> int:
    least = series.steps[-1][1] + 1 if series.steps else 0
    found = least if step is None else max(int(step), least)
    series.steps.append((step, found))
    return found


def record(data: bytes) -> bytes:
    size = struct.pack("<Q", len(data))
    return size + struct.pack("<I", masked_crc(size)) + data + struct.pack("<I", masked_crc(data))


def event(at: float, step: int) -> bytes:
    """The beginning of one: its time and its step."""
    return b"\x09" + struct.pack("<d", at) + b"\x10" + _varint(step & (1 << 64) - 1)


def scalar(name: str, value: float) -> bytes:
    """The rest of one: a summary with one `simple_value`."""
    try:
        number = struct.pack("<f", value)
    except OverflowError:  # too large for the format
        number = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _framed(0x2A, _framed(0x0A, _framed(0x0A, name.encode(errors="replace")) + b"\x15" + number))


def _framed(tag: int, data: bytes) -> bytes:
    return bytes([tag]) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])
