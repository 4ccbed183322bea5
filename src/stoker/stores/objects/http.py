"""What every service of objects does alike over HTTP: reading, removing, and knowing its own write again.

Standard library only: agents carry this file.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping

from stoker.errors import AlreadyThere, StoreFailed
from stoker.stores.objects.answers import total_bytes
from stoker.stores.objects.bucket import Bucket, Piece
from stoker.stores.objects.wire import Body, Reply, Request, Wire

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
        """Makes the request anew for each try, since a signature holds the time. An empty name is the bucket itself."""

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
