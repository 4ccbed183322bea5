"""Who may stay connected: nobody holds a place by saying nothing, and strangers never take the last one.

uvicorn closes a connection that is idle, but not one that sends a byte of its head now and then, and nothing keeps it
from running out of file descriptors. A connection is *waiting* until the head of a request is complete. That has to be
soon, and when all places are taken, the one that has waited the longest makes room.
"""

from __future__ import annotations

import asyncio
import resource

from uvicorn.protocols.http.h11_impl import H11Protocol

_HEAD_S = 10.0  # to complete the head of a request
_MOST = 1024  # connections at once
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
_FULL_BODY = b'{"error":{"code":"server-unavailable","message":"too many connections","hint":"","problems":[]}}'


class Doorkeeper:
    """Connections in the order in which they began to wait."""

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
        """It waits no longer: its request has begun, or it is gone."""
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
        self.connections.discard(self)  # its place is free at once, and not only when the loop has closed it
        self.transport.abort()

    def turn_away(self) -> None:
        self.connections.discard(self)
        self.transport.write(_FULL + _FULL_BODY)
        self.transport.close()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete


def guarded(most: int = 0, head_s: float = _HEAD_S) -> type[Guarded]:
    """The protocol of one server. Half of the files that it may open stay free for its work."""
    most = most or min(_MOST, max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2, 16))
    return type("Guarded", (Guarded,), {"keeper": Doorkeeper(most, head_s)})
