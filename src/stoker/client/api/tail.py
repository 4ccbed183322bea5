"""One log, read from an offset that survives lost connections: no byte is lost or repeated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TypeVar

from stoker.client.api.connection import Connection
from stoker.errors import ServerUnavailable, StokerError, StoreFailed, Unanswered

OUTAGES = (ServerUnavailable, StoreFailed, Unanswered)  # temporary, or repairable
Waits = Callable[[StokerError], bool]  # receives an outage, and returns whether to wait for its end

T = TypeVar("T")

_QUICK_S = 1.0  # a shorter connection has failed
_FAILURES = 10  # in a row
_PAUSE_S = 0.2
_OUTAGE_S = 2.0  # between two attempts during an outage


def patiently(work: Callable[[], T], waits: Waits) -> T:
    """The result of the work, once no outage prevents it."""
    while True:
        try:
            return work()
        except OUTAGES as error:
            if not waits(error):
                raise
        time.sleep(_OUTAGE_S)


class Tail:
    """`offset` is always that of the first byte not yet returned."""

    def __init__(
        self,
        connection: Connection,
        path: str,
        offset: int = 0,
        since: datetime | None = None,
        waits: Waits = lambda _: False,
    ) -> None:
        self.offset = offset
        self._waits = waits
        self.read_any = False
        self._connection = connection
        self._path = path
        self._since = since

    def read(self, follow: bool) -> Iterator[bytes]:
        """Until the server says that the log is complete."""
        failures = 0
        while True:
            opened_at = time.monotonic()
            try:
                yield from self._once(follow)
                return
            except _CutOff as cut:
                failures = failures + 1 if time.monotonic() - opened_at < _QUICK_S else 0
                if failures >= _FAILURES and not self._waits(cut.error):
                    raise cut.error from None
                time.sleep(_OUTAGE_S if failures >= _FAILURES else _PAUSE_S if failures else 0)
            except OUTAGES as error:
                if not self._waits(error):
                    raise
                time.sleep(_OUTAGE_S)

    def _once(self, follow: bool) -> Iterator[bytes]:
        since = self._since.timestamp() if self._since else None
        query = {"offset": self.offset, "follow": follow or None, "since": since}
        headers, pieces = self._connection.stream(self._path, query)
        self.offset = int(headers.get("stoker-offset", self.offset))
        self._since = None  # found: from here on the offset is enough
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
    """The response was truncated; there may be more."""

    def __init__(self, error: ServerUnavailable) -> None:
        super().__init__(error)
        self.error = error
