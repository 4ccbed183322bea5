"""The kind `tunnel`, which only nodes open, with the token that their server made: HTTP over a Unix socket that the
connection to the server carries. Standard library only: agents carry this file."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote, urlencode, urlsplit

from stoker.errors import AlreadyThere, BadInput, Corrupt, Missing, StoreDenied, StoreFailed, StoreUnavailable
from stoker.stores import PIECE_BYTES, Store, Stored
from stoker.stores.access import Access, Credential, Route
from stoker.stores.kinds import Grant, Location, StoreKind

_SAFE = "/:@!$&'()*+,;=~"
_SERVER = re.compile(r"[A-Za-z0-9._-]+")


class TunnelKind(StoreKind):
    """URLs are `tunnel://SERVER/FOLDER`: the tag of the server, and the path on its computer, or the URL of a store
    that it can reach."""

    name = "tunnel"
    schemes = ("tunnel",)
    forms = ()  # nobody writes one

    def locate(self, url: str) -> Location:
        parts = urlsplit(url)
        if not _SERVER.fullmatch(parts.netloc) or not parts.path.startswith("/"):
            raise ValueError("expected `tunnel://SERVER/FOLDER`")
        return Location(self.name, endpoint=parts.netloc, prefix=unquote(parts.path))

    def spell(self, location: Location) -> str:
        return f"tunnel://{location.endpoint}{quote(location.prefix, safe=_SAFE)}"

    def endpoint(self, location: Location) -> str:
        return ""

    def open_on_node(self, route: Route, place: Location) -> Store:
        return TunnelStore(route, socket_of(Path.home(), place.endpoint))

    def open(self, location: Location, credential: Credential) -> Store:
        raise BadInput(f"`{location.url}` can be opened by a node only", hint="use the folder itself: file:///FOLDER")

    def open_route(self, route: Route, place: Location) -> Store:
        return self.open_on_node(route, place)

    def grant(self, location: Location, credential: Credential, part: Grant) -> Access:
        raise StoreDenied(f"`{location.url}` cannot be shared further")


PLACE = ".stoker-node"  # in the home of the account that a server logs in to
ANSWER_S = 60.0
_BLOCK_BYTES = 256 << 10
_ERRORS: Mapping[str, type[StoreFailed]] = {
    one.code: one for one in (AlreadyThere, Corrupt, Missing, StoreDenied, StoreFailed, StoreUnavailable)
}


def socket_of(home: Path, server: str) -> Path:
    """A home may be shared by several machines; a socket is not."""
    return home / PLACE / server / f"door-{os.uname().nodename}"


class TunnelStore(Store):
    """Every request may be repeated, and is, once, where the connection was lost before its answer."""

    def __init__(self, route: Route, place: Path) -> None:
        self.url = route.url
        self._token = route.token
        self._place = place
        self._mine = threading.local()

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        asked = {"key": key, "start": start, **({} if size is None else {"size": size})}
        with self._answer("GET", "/object", asked) as answer:
            return answer.read()

    def stream(self, key: str, start: int, size: int) -> Iterator[memoryview]:
        left = size
        with self._answer("GET", "/object", {"key": key, "start": start, "size": size}) as answer:
            while left and (piece := answer.read(min(PIECE_BYTES, left))):
                left -= len(piece)
                yield memoryview(piece)
            if not left:
                answer.read()  # the end of an answer in chunks

    def put(self, key: str, data: bytes | BinaryIO, *, only_new: bool = False) -> None:
        with self._answer("PUT", "/object", {"key": key, "only_new": int(only_new)}, data) as answer:
            answer.read()

    def append(self, key: str, offset: int, data: bytes) -> int:
        with self._answer("POST", "/object", {"key": key, "offset": offset}, data) as answer:
            return int(json.loads(answer.read())["size"])

    def list(self, prefix: str) -> Iterator[Stored]:
        with self._answer("GET", "/objects", {"prefix": prefix}) as answer:
            found = json.loads(answer.read())["objects"]
        return (Stored(str(key), int(size), float(at), str(etag)) for key, size, at, etag in found)

    def delete(self, key: str) -> None:
        with self._answer("DELETE", "/object", {"key": key}) as answer:
            answer.read()

    @contextmanager
    def _answer(
        self, method: str, path: str, asked: Mapping[str, Any], body: bytes | BinaryIO = b""
    ) -> Iterator[HTTPResponse]:
        """A connection of its own for each thread. One that breaks, or whose answer was not read to its end, is not
        used again."""
        done = False
        try:
            answer = self._ask(method, f"{path}?{urlencode(asked)}", body)
            if answer.status != 200:
                raise _refusal(answer)
            yield answer
            done = answer.isclosed()
        except _SourceFailed as failed:
            raise failed.error from None
        except (OSError, HTTPException, ValueError, KeyError) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise StoreUnavailable(f"the connection to the server is down: {why}") from error
        finally:
            if not done:
                self._hang_up()

    def _ask(self, method: str, target: str, body: bytes | BinaryIO) -> HTTPResponse:
        """A stream can be read only once, so it is never sent on a connection that may be stale."""
        if not isinstance(body, bytes):
            self._hang_up()
        used = getattr(self._mine, "line", None)
        try:
            return self._send(used or self._connect(), method, target, body)
        except (OSError, HTTPException):
            if used is None:
                raise
            self._hang_up()  # the server may have closed one that was idle, or restarted
            return self._send(self._connect(), method, target, body)

    def _send(self, line: HTTPConnection, method: str, target: str, body: bytes | BinaryIO) -> HTTPResponse:
        headers = {"Authorization": f"Bearer {self._token}"}
        if isinstance(body, bytes):
            line.request(method, target, body, headers)
        else:
            chunked = {**headers, "Transfer-Encoding": "chunked"}
            line.request(method, target, _blocks(body), chunked, encode_chunked=True)
        return line.getresponse()

    def _connect(self) -> HTTPConnection:
        self._mine.line = _SocketConnection(self._place)
        line: HTTPConnection = self._mine.line
        return line

    def _hang_up(self) -> None:
        line = getattr(self._mine, "line", None)
        self._mine.line = None
        if line is not None:
            line.close()


class _SourceFailed(Exception):
    """What was to be sent cannot be read: no fault of the connection."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _blocks(body: BinaryIO) -> Iterator[bytes]:
    try:
        while block := body.read(_BLOCK_BYTES):
            yield block
    except Exception as error:
        raise _SourceFailed(error) from error


class _SocketConnection(HTTPConnection):
    def __init__(self, place: Path) -> None:
        super().__init__("server", timeout=ANSWER_S, blocksize=_BLOCK_BYTES)
        self._place = place

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(ANSWER_S)
        # The place is a link, and what it leads to is short enough for a socket.
        self.sock.connect(os.fspath(self._place.readlink()))


def _refusal(answer: HTTPResponse) -> StoreFailed:
    found = json.loads(answer.read())
    return _ERRORS.get(str(found["code"]), StoreFailed)(str(found["message"]))
