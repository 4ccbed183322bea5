"""Memory that a checkpoint is read into: huge pages for as long as the machine has them at hand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from stoker.checkpoint.read.reading import PageMemory

MB = 1 << 20


def ticking(step_ns: int) -> PageMemory:
    ticks: Iterator[int] = count(0, step_ns)
    return PageMemory(processor_ns=lambda: next(ticks))


def test_huge_pages_are_asked_for_while_they_come_quickly() -> None:
    memory = ticking(200_000)
    rooms = [memory.room(8 * MB) for _ in range(3)]
    assert memory.huge
    assert all(len(room) == 8 * MB for room in rooms)


def test_after_one_that_came_slowly_no_more_are_asked_for() -> None:
    memory = ticking(5_000_000)
    first = memory.room(8 * MB)
    assert not memory.huge
    first[-1], memory.room(8 * MB)[0] = 1, 2  # both can be used


@pytest.mark.parametrize("size_bytes", [0, 1, 4 * MB - 1, 4 * MB, 4 * MB + 1])
def test_every_size_is_had_and_is_empty(size_bytes: int) -> None:
    room = PageMemory().room(size_bytes)
    assert len(room) == size_bytes
    assert bytes(room) == bytes(size_bytes)
