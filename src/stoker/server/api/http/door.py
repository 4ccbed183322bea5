"""What every request passes: the token check, and a body that keeps coming."""

from __future__ import annotations

import asyncio
import secrets
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stoker.errors import Denied, TooSlow
from stoker.server.api.http.failure import failed

OPEN = "/v1/proof"  # the one call without a token: it shows a client that this is its server
_SILENCE_S = 20.0
_GRACE_S = 30.0
_LEAST_BYTES_PER_S = 1024.0  # of a body, after the grace period


class ApiDoor:
    def __init__(self, app: ASGIApp, token: str, silence_s: float = _SILENCE_S) -> None:
        self._app = app
        self._token = token.encode()
        self._silence_s = silence_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"] != OPEN and not self._knows_token(scope):
            hint = "set STOKER_TOKEN, or unset STOKER_SERVER"
            await failed(Denied("the token is missing or wrong", hint=hint))(scope, receive, send)
        else:
            scope["app"].state.asked_at = time.monotonic()
            await self._app(scope, _Hurried(receive, self._silence_s), send)

    def _knows_token(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return secrets.compare_digest(given.removeprefix(b"Bearer "), self._token)


class _Hurried:
    """Passes a body on as it comes, and gives up on one that does not come."""

    def __init__(self, receive: Receive, silence_s: float) -> None:
        self._receive = receive
        self._silence_s = silence_s
        self._whole = False
        self._waited_s = 0.0  # for the client only: the time that the server spends on a chunk does not count
        self._size = 0

    async def __call__(self) -> Message:
        if self._whole:  # only a disconnect of the client can follow, however late
            return await self._receive()
        began = time.monotonic()
        try:
            message = await asyncio.wait_for(self._receive(), self._silence_s)
        except TimeoutError:
            raise TooSlow(f"the body timed out: nothing arrived for {self._silence_s:g} s") from None
        self._waited_s += time.monotonic() - began
        self._size += len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        if not self._whole and self._waited_s > _GRACE_S + self._size / _LEAST_BYTES_PER_S:
            raise TooSlow(f"the body is slower than {_LEAST_BYTES_PER_S:g} bytes per second")
        return message
