"""Sends a stream as blocks, a few at once and no more in memory. Standard library only: agents carry this file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO, TypeVar

T = TypeVar("T")

BLOCK_BYTES = 8 << 20
AT_ONCE = 4  # blocks of one stream under way


class Blocks:
    """Threads that outlive a stream, so that their connections do too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def send(self, blocks: Iterator[bytes], send: Callable[[int, bytes], T]) -> list[T]:
        """What `send` gave for each block, in their order. After an error no further block is sent."""
        with self._lock:
            self._pool = self._pool or ThreadPoolExecutor(AT_ONCE, "stoker-blocks")
        sent: list[Future[T]] = []
        try:
            for number, block in enumerate(blocks):
                if number >= AT_ONCE:
                    sent[number - AT_ONCE].result()
                sent.append(self._pool.submit(send, number, block))
            return [one.result() for one in sent]
        finally:
            for one in sent:
                one.cancel()


def first_block(data: bytes | BinaryIO, size: int = BLOCK_BYTES) -> tuple[bytes, Iterator[bytes]]:
    """The beginning, which is all of it where that is not longer than a block, and the blocks behind it."""
    if isinstance(data, bytes):
        return data, iter(())
    first = _exactly(data, size)
    return first, _rest(data, size) if len(first) == size else iter(())


def _rest(data: BinaryIO, size: int) -> Iterator[bytes]:
    while block := _exactly(data, size):
        yield block


def _exactly(data: BinaryIO, size: int) -> bytes:
    """Fewer bytes only at the end: a raw file may give less than it was asked for."""
    block = data.read(size) or b""
    if not block or len(block) == size:
        return block
    pieces, missing = [block], size - len(block)
    while missing and (piece := data.read(missing)):
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)
