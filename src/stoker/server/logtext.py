"""The server's own log: whatever nodes, clients and clouds said is in it as text, one record to a line."""

from __future__ import annotations

import logging
from typing import Any, TextIO

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_to(stream: TextIO) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PlainFormatter(FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class PlainFormatter(logging.Formatter):
    """Whoever looks at the file with a terminal sees escape sequences, and no line is somebody else's."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # as logging calls it
        return _plain(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802  # as logging calls it
        return "\n".join(map(_plain, super().formatException(ei).split("\n")))


def _plain(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
