"""The server's own log: messages of nodes, clients and clouds are escaped, one record per line."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TextIO

MOST_AN_HOUR = 50  # warnings of one kind about one thing: a node's reports may be invalid in a new way every time
LONGEST = 4000  # characters of a message, or of a line of a traceback
_MOST_LINES = 200  # of a traceback
_HOUR_S = 3600.0
_MOST_KINDS = 10_000
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_to(stream: TextIO) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PlainFormatter(FORMAT))
    handler.addFilter(Sparing(time.monotonic))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class PlainFormatter(logging.Formatter):
    """Escape sequences are visible in a terminal, and no message can forge a line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # as logging calls it
        return _plain(super().formatMessage(record)[:LONGEST])

    def formatException(self, ei: Any) -> str:  # noqa: N802  # as logging calls it
        lines = super().formatException(ei).split("\n")[:_MOST_LINES]
        return "\n".join(_plain(line[:LONGEST]) for line in lines)


class Sparing(logging.Filter):
    """Prevents a node from filling the disk with warnings about itself."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._since = clock()
        self._said: dict[tuple[str, str, str], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        if self._clock() - self._since >= _HOUR_S or len(self._said) >= _MOST_KINDS:
            self._since, self._said = self._clock(), {}
        about = str(record.args[0])[:200] if isinstance(record.args, tuple) and record.args else ""
        kind = (record.name, str(record.msg)[:200], about)
        self._said[kind] = self._said.get(kind, 0) + 1
        if self._said[kind] == MOST_AN_HOUR:
            record.msg = f"{record.msg} (no more of these for an hour)"
        return self._said[kind] <= MOST_AN_HOUR


def _plain(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
