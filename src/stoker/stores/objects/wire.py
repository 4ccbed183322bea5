"""HTTP for object stores: persistent connections, retries where they help, responses parsed, and errors translated.
Standard library only: agents carry this file."""

from __future__ import annotations

import http.client
import random
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit
from xml.etree import ElementTree

from stoker.errors import AlreadyThere, Corrupt, Missing, NoContainer, StoreDenied, StoreFailed, StoreUnavailable
from stoker.stores.transfer.verified import FileRegion

TRIES = 5
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 8.0
_TIMEOUT_S = 60.0
_PIECE_BYTES = 1 << 20
_MUCH_BYTES = 256 << 10


Body = bytes | memoryview | FileRegion  # the last is read while it is sent


class Request(NamedTuple):
    """`target` is path and query as they are sent."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: Body = b""


class Reply(NamedTuple):
    """Header names are in lower case. `tries` above 1 means that an earlier try may have succeeded."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    tries: int


class Wire:
    """A server, by its scheme, host and port."""

    def __init__(self, endpoint: str, timeout_s: float = _TIMEOUT_S, *, ca_file: str = "") -> None:
        parts = urlsplit(endpoint)
        self.place = f"{parts.scheme}://{parts.netloc}"
        self._secure = parts.scheme == "https"
        self._address = (parts.hostname or "", parts.port or (443 if self._secure else 80))
        self._timeout_s = timeout_s
        self._of_thread = threading.local()
        self._trust = ssl.create_default_context(cafile=ca_file or None) if self._secure else None

    def ask(self, make: Callable[[], Request], *, tries: int = TRIES) -> Reply:
        """`make` is called for every try, since a signature contains the time. The last response is returned whatever
        its status. Raises StoreUnavailable where there is none."""
        for number in range(1, tries + 1):
            try:
                reply = self._once(make(), number)
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                if number == tries:
                    raise unreachable(self.place, error) from error
                _wait(number)
                continue
            if reply.status not in TRANSIENT or number == tries:
                return reply
            _wait(number, reply.headers.get("retry-after", ""))
        raise AssertionError("every try returns or raises")

    def stream(self, make: Callable[[], Request], *good: int) -> Iterator[memoryview] | Reply:
        """The body of a response with a good status, in pieces, each valid until the next; or another response. The
        thread must read or close all of it before its next request. An interrupted body raises StoreUnavailable."""
        for number in range(1, TRIES + 1):
            try:
                answer = self._send(make())
                if answer.status in good:
                    return self._pieces(answer)
                reply = self._read(answer, number)
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                if number == TRIES:
                    raise unreachable(self.place, error) from error
                _wait(number)
                continue
            if reply.status not in TRANSIENT or number == TRIES:
                return reply
            _wait(number, reply.headers.get("retry-after", ""))
        raise AssertionError("every try returns or raises")

    def _pieces(self, answer: http.client.HTTPResponse) -> Iterator[memoryview]:
        room, whole = memoryview(bytearray(_PIECE_BYTES)), False
        plain = None if self._secure or answer.length is None else self._connection().sock
        try:
            if plain:
                yield from _received(answer, plain, room)
            while count := answer.readinto(room):
                yield room[:count]
            whole = not answer.length
            if not whole:
                raise http.client.IncompleteRead(b"", answer.length)
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(self.place, error) from error
        finally:
            if answer.will_close or not whole:
                self._drop()

    def _once(self, request: Request, number: int) -> Reply:
        return self._read(self._send(request), number)

    def _send(self, request: Request) -> http.client.HTTPResponse:
        connection = self._connection()
        headers = {"Content-Length": str(len(request.body)), **request.headers} if request.body else request.headers
        direct = request.body if isinstance(request.body, FileRegion) and not self._secure else None
        try:
            connection.request(request.method, request.target, None if direct else request.body, dict(headers))
            if direct:
                direct.send(connection.sock)
        except Corrupt:
            self._drop()
            raise
        return connection.getresponse()

    def _read(self, answer: http.client.HTTPResponse, number: int) -> Reply:
        body = answer.read()  # an interrupted body raises IncompleteRead
        if answer.will_close:
            self._drop()
        return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, body, number)

    def _connection(self) -> http.client.HTTPConnection:
        found: http.client.HTTPConnection | None = getattr(self._of_thread, "connection", None)
        if found is None:
            host, port = self._address
            if self._secure:
                found = http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=self._trust)
            else:
                found = http.client.HTTPConnection(host, port, timeout=self._timeout_s)
            self._of_thread.connection = found
        return found

    def _drop(self) -> None:
        """Its state is unknown."""
        if connection := getattr(self._of_thread, "connection", None):
            connection.close()
            self._of_thread.connection = None


def _received(answer: http.client.HTTPResponse, plain: socket.socket, room: memoryview) -> Iterator[memoryview]:
    """Most of a body straight from its connection, and only in large pieces: waking up for every packet costs more than
    copying. Smaller rests are left to the response itself."""
    assert answer.length is not None
    if answer.length < 2 * _MUCH_BYTES:
        return
    early = answer.read(len(answer.fp.peek()))  # what arrived together with the headers
    yield memoryview(early)
    try:
        while answer.length >= _MUCH_BYTES:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _MUCH_BYTES)
            count = plain.recv_into(room[: answer.length])
            if not count:
                return
            answer.length -= count
            yield room[:count]
    finally:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


def _wait(number: int, asked: str = "") -> None:
    """Longer each time, with jitter; as long as the server requests, within limits."""
    wait_s = _FIRST_WAIT_S * 2 ** (number - 1) * random.uniform(0.5, 1.5)
    time.sleep(min(max(wait_s, float(asked) if asked.isdigit() else 0.0), _LONGEST_WAIT_S))


def listing(reply: Reply, place: str) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(reply.body)
    except ElementTree.ParseError as error:
        raise StoreFailed(f"`{place}` returned an unreadable listing: {error}") from None


def total_bytes(reply: Reply) -> int:
    """The size of the whole object, from a response about a part."""
    _, _, total = reply.headers.get("content-range", "").rpartition("/")
    if total.isdigit():
        return int(total)
    return int(reply.headers.get("content-length", len(reply.body)))


def within(body: bytes, tag: str) -> str:
    """The text between the first such tags; empty where there are none."""
    found = re.search(rf"<{tag}>(.*?)</{tag}>".encode(), body, re.DOTALL)
    return found[1].decode(errors="replace").strip() if found else ""


TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_NO_CONTAINER = {"ContainerNotFound", "NoSuchBucket", "ContainerBeingDeleted", "ContainerDisabled"}
_CLOCK = (
    "RequestTimeTooSkewed",
    "not valid in the specified time frame",
    "Request date header too old",
    "Signed expiry",
)
_EXPIRED = ("ExpiredToken", "Lifetime validation failed", "token is expired", "TokenRefreshRequired", "InvalidToken")
_WRONG_KEY = (
    "SignatureDoesNotMatch",
    "InvalidAccessKeyId",
    "Signature did not match",
    "MAC signature",
    "InvalidAuthenticationInfo",
)
_RIGHTS = (
    "AuthorizationPermissionMismatch",
    "AuthorizationResourceTypeMismatch",
    "AccessDenied",
    "AuthorizationFailure",
)


def refusal(status: int, code: str, message: str, name: str, place: str) -> StoreFailed:
    """The error for a response of `place` (a URL without secrets) about the object `name`."""
    said = " ".join((code, message.split("\n")[0].strip())).strip() or f"status {status}"
    if status == 404 and (code in _NO_CONTAINER or not name):
        return NoContainer(f"`{place}` does not exist", hint="create the container or bucket, or check its name")
    if status == 404:
        return Missing(f"`{name}` not found in the store")
    if status in (401, 403):
        return _denied(said, code, message, place)
    if code in ("ContainerBeingDeleted", "ConditionalRequestConflict", "OperationAborted", "InvalidBlockList"):
        return StoreUnavailable(f"`{place}` is busy: {said}", hint="try again in a minute")
    if status in (409, 412):
        return AlreadyThere(f"`{name}` already exists in the store" if name else f"`{place}`: {said}")
    if status == 429 or code in ("ServerBusy", "SlowDown"):
        return StoreUnavailable(f"`{place}` is throttling requests: {said}", hint="try again in a minute")
    if status in TRANSIENT:
        return StoreUnavailable(f"`{place}` failed with status {status}: {said}", hint="try again in a minute")
    return StoreFailed(f"`{place}` refused `{name}` with status {status}: {said}")


def token_ended(at: float, place: str) -> StoreDenied:
    """Known without a request: not every service says why it refuses a token."""
    ended = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
    return StoreDenied(f"the token for `{place}` expired at {ended}", hint="add a new one: stoker store add")


def unreachable(place: str, error: BaseException | str) -> StoreUnavailable:
    why = str(error).strip() or type(error).__name__
    return StoreUnavailable(
        f"`{place}` is unreachable: {why}", hint="check the address and the network, then try again"
    )


def _denied(said: str, code: str, message: str, place: str) -> StoreDenied:
    text = f"{code} {message}"
    if any(word in text for word in _EXPIRED):
        return StoreDenied(f"the token for `{place}` has expired: {said}", hint="add a new one: stoker store add")
    if any(word in text for word in _CLOCK):
        return StoreDenied(
            f"the token for `{place}` is not valid at this time: {said}",
            hint="it has expired, or this computer's clock is wrong: see `date -u`",
        )
    if any(word in text for word in _WRONG_KEY):
        return StoreDenied(f"`{place}` does not accept the key: {said}", hint="add the right one: stoker store add")
    if any(word in text for word in _RIGHTS):
        return StoreDenied(f"the credential for `{place}` does not permit this: {said}")  # a check knows which right
    return StoreDenied(f"`{place}` refused the credential: {said}", hint="check it with: stoker store check")
