"""One log, read from an offset that survives lost connections: nothing is lost, nothing comes twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

from stoker.client.connection import Connection
from stoker.errors import ServerUnavailable

_QUICK_S = 1.0  # a connection that lasts no longer has failed
_FAILURES = 10  # in a row
_PAUSE_S = 0.2


class Tail:
    """`offset` is always that of the first byte not given out yet."""

    def __init__(self, connection: Connection, path: str, offset: int = 0, since: datetime | None = None) -> None:
        self.offset = offset
        self.read_any = False
        self._connection = connection
        self._path = path
        self._since = since

    def read(self, follow: bool) -> Iterator[bytes]:
        """Until the server says that this is all."""
        failures = 0
        while True:
            opened_at = time.monotonic()
            try:
                yield from self._once(follow)
                return
            except _CutOff as cut:
                failures = failures + 1 if time.monotonic() - opened_at < _QUICK_S else 0
                if failures == _FAILURES:
                    raise cut.error from None
                time.sleep(_PAUSE_S if failures else 0)

    def _once(self, follow: bool) -> Iterator[bytes]:
        since = self._since.timestamp() if self._since else None
        query = {"offset": self.offset, "follow": follow or None, "since": since}
        headers, pieces = self._connection.stream(self._path, query)
        self.offset = int(headers.get("stoker-offset", self.offset))
        self._since = None  # found: from here on the offset says it all
        while True:
            try:
                piece = next(pieces, None)
            except ServerUnavailable as error:
                raise _CutOff(error) from error
            if piece is None:
                return
            self.offset += len(piece)
            self.read_any = True
            yield piece


class _CutOff(Exception):
    """The answer broke off; there may be more."""

    def __init__(self, error: ServerUnavailable) -> None:
        super().__init__(error)
        self.error = error
