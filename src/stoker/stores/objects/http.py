"""What every service of objects does alike over HTTP: reading, removing, sending a stream as blocks. Standard library
only: agents carry this file."""

from __future__ import annotations

import io
import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import BinaryIO, TypeVar

from stoker.errors import AlreadyThere, StoreFailed
from stoker.stores.objects.bucket import Bucket, Piece
from stoker.stores.objects.wire import Body, Reply, Request, Wire, total_bytes

NOTHING: Mapping[str, str] = {}


class HttpBucket(Bucket):
    """A service says how a request is made and signed, what a refusal means, and how it writes and lists."""

    ranged = "Range"  # the header that asks for a part of an object
    content: Mapping[str, str] = NOTHING  # the query that asks for the bytes of an object
    removal: Mapping[str, str] = NOTHING  # the headers of a request to remove one
    writer_header = ""  # which metadata holds the mark of a writer

    def __init__(self, place: str, prefix: str, endpoint: str) -> None:
        self.place = place
        self._prefix = prefix
        self._wire = Wire(endpoint)

    @abstractmethod
    def _request(
        self, method: str, name: str, query: Mapping[str, str], headers: Mapping[str, str], body: Body
    ) -> Callable[[], Request]:
        """Builds a new request for each try, since a signature holds the time. An empty name is the bucket itself."""

    @abstractmethod
    def _refusal(self, reply: Reply, name: str) -> StoreFailed: ...

    def read(self, name: str, start: int, size: int | None) -> Piece:
        last = "" if size is None else str(start + size - 1)
        part = {} if start == 0 and size is None else {self.ranged: f"bytes={start}-{last}"}
        reply = self._ask("GET", name, self.content, part)
        if reply.status == 416:
            return Piece(b"", self.size(name))
        self._check(reply, name, 200, 206)
        return Piece(reply.body, total_bytes(reply))

    def stream(self, name: str, start: int, size: int) -> Iterator[memoryview]:
        part = {self.ranged: f"bytes={start}-{start + size - 1}"}
        body = self._wire.stream(self._request("GET", name, self.content, part, b""), 200, 206)
        if isinstance(body, Reply):
            if body.status != 416:
                self._check(body, name)
            return
        yield from body

    def size(self, name: str) -> int:
        reply = self._ask("HEAD", name)
        self._check(reply, name, 200)
        return int(reply.headers["content-length"])

    def remove(self, name: str) -> None:
        reply = self._ask("DELETE", name, headers=self.removal)
        if reply.status != 404:
            self._check(reply, name, 200, 202, 204)

    def _ask(
        self,
        method: str,
        name: str,
        query: Mapping[str, str] = NOTHING,
        headers: Mapping[str, str] = NOTHING,
        body: Body = b"",
    ) -> Reply:
        return self._wire.ask(self._request(method, name, query, headers, body))

    def _check(self, reply: Reply, name: str, *good: int) -> None:
        if reply.status not in good:
            raise self._refusal(reply, name)

    def _check_written(self, reply: Reply, name: str, writer: str) -> None:
        """The answer to an earlier try may have been lost: then the one who was there first is this writer."""
        try:
            self._check(reply, name, 200, 201)
        except AlreadyThere:
            if reply.tries == 1 or self._writer(name) != writer:
                raise

    def _writer(self, name: str) -> str | None:
        """Whose mark the object carries."""
        return self._ask("HEAD", name).headers.get(self.writer_header)


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
