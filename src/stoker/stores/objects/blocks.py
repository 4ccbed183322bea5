"""Sends a stream as blocks, a few at once and no more in memory. Standard library only: agents carry this file."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import BinaryIO, TypeVar

T = TypeVar("T")
Block = TypeVar("Block")

BLOCK_BYTES = 8 << 20
AT_ONCE = 8  # concurrent blocks: of a single stream
_LEAST = 2  # of one stream among many
_MOST_BLOCKS = 8_000  # of an object: S3 supports 10,000


class Lanes:
    """Limits concurrent blocks, so that memory stays bounded however many streams there are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams = 0

    @contextmanager
    def share(self) -> Iterator[int]:
        with self._lock:
            self._streams += 1
            share = max(_LEAST, AT_ONCE // self._streams)
        try:
            yield share
        finally:
            with self._lock:
                self._streams -= 1


class Blocks:
    """Threads that outlive a stream, so that their connections do too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lanes = Lanes()
        self._pool: ThreadPoolExecutor | None = None

    def send(self, blocks: Iterator[Block], send: Callable[[int, Block], T]) -> list[T]:
        """The results of `send` for each block, in order. After an error no further block is sent."""
        with self._lock:
            self._pool = self._pool or ThreadPoolExecutor(AT_ONCE, "stoker-blocks")
            pool = self._pool
        sent: list[Future[T]] = []
        with self._lanes.share() as share:
            try:
                for number, block in enumerate(blocks):
                    if number >= share:
                        sent[number - share].result()
                    sent.append(pool.submit(send, number, block))
                return [one.result() for one in sent]
            finally:
                for one in sent:
                    one.cancel()


def first_block(data: bytes | BinaryIO) -> tuple[bytes, Iterator[bytes]]:
    """The first block, which is everything where that is not longer than a block, and the blocks after it."""
    if isinstance(data, bytes):
        return data, iter(())
    size = block_size(_length(data))
    first = _exactly(data, size)
    return first, _rest(data, size) if len(first) == size else iter(())


def block_size(length: int) -> int:
    return max(BLOCK_BYTES, -(-length // _MOST_BLOCKS))


def _length(data: BinaryIO) -> int:
    """The remaining size, if known; else 0."""
    if (left := getattr(data, "left", None)) is not None:
        return int(left)
    return os.fstat(data.fileno()).st_size if isinstance(data, io.FileIO | io.BufferedReader) else 0


def _rest(data: BinaryIO, size: int) -> Iterator[bytes]:
    while block := _exactly(data, size):
        yield block


def _exactly(data: BinaryIO, size: int) -> bytes:
    """Fewer bytes only at the end: a raw file may return less than requested."""
    block = data.read(size) or b""
    if not block or len(block) == size:
        return block
    pieces, missing = [block], size - len(block)
    while missing and (piece := data.read(missing)):
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)
