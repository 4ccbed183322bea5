"""Where a server listens, which connections may stay, and its own log."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from uvicorn.protocols.http.h11_impl import H11Protocol

from stoker.errors import ServerUnavailable
from stoker.model.workspace.home import Home

_BACKLOG = 512


def own_socket(home: Home) -> socket.socket:
    """Only for the holder of the home's lock: replaces what an earlier server has left."""
    home.socket.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The kernel limits socket paths to about a hundred bytes, and homes may be deeper than that.
        with tempfile.TemporaryDirectory(prefix="stoker-", dir="/tmp") as short:
            link = Path(short, "home")
            link.symlink_to(home.root)
            listener.bind(str(link / home.socket.name))
        home.socket.chmod(0o600)
    except OSError as error:
        listener.close()
        raise ServerUnavailable(
            f"could not create the Unix socket {home.socket}: {error.strerror or error}",
            hint="set STOKER_HOME to a folder on a local disk",
        ) from error
    return _listening(listener)


def port_socket(port: int) -> socket.socket:
    # Declared as TCP, or asyncio would not disable Nagle's delay: 40 ms for every response.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        listener.close()
        why = getattr(error, "strerror", None) or "ports are below 65536"
        hint = "choose another port, or 0 for any free one"
        raise ServerUnavailable(f"could not listen on port {port}: {why}", hint=hint) from error
    return _listening(listener)


def _listening(listener: socket.socket) -> socket.socket:
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


_HEAD_S = 10.0  # to complete the request head
_MOST = 1024  # concurrent connections
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
_FULL_BODY = (
    b'{"error":{"code":"server-unavailable","cause":"","message":"too many connections","hint":"","problems":[]}}'
)


class Doorkeeper:
    """Connections in the order in which they started to wait."""

    def __init__(self, most: int, head_s: float) -> None:
        self._most = most
        self._head_s = head_s
        self._waiting: dict[Guarded, asyncio.TimerHandle] = {}

    def enter(self, one: Guarded) -> None:
        if len(one.connections) > self._most:
            if not self._waiting:
                one.turn_away()
                return
            next(iter(self._waiting)).hang_up()
        self.wait(one)

    def wait(self, one: Guarded) -> None:
        self.leave(one)
        self._waiting[one] = one.loop.call_later(self._head_s, one.hang_up)

    def leave(self, one: Guarded) -> None:
        """It waits no longer: its request has started, or it is closed."""
        if timer := self._waiting.pop(one, None):
            timer.cancel()


class Guarded(H11Protocol):
    keeper: Doorkeeper

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self.keeper.enter(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._answering:
            self.keeper.leave(self)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._answering and not self.transport.is_closing():
            self.keeper.wait(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.keeper.leave(self)
        super().connection_lost(exc)

    def hang_up(self) -> None:
        self.keeper.leave(self)
        self.connections.discard(self)  # its place is free at once, not only when the loop has closed it
        self.transport.abort()

    def turn_away(self) -> None:
        self.connections.discard(self)
        self.transport.write(_FULL + _FULL_BODY)
        self.transport.close()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete


def guarded(most: int = 0, head_s: float = _HEAD_S) -> type[Guarded]:
    """The protocol of one server. Half of its file descriptors stay free for its work."""
    most = most or min(_MOST, max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2, 16))
    return type("Guarded", (Guarded,), {"keeper": Doorkeeper(most, head_s)})


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
