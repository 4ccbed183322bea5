"""The server's side of a tunnel: gives nodes their part of folders of this computer, and of stores that only this
computer can reach, by tokens that it has signed."""

from __future__ import annotations

import base64
import hmac
import json
import logging
import os
import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import parse_qs, urlsplit

from stoker.errors import Missing, StoreDenied, StoreFailed, StoreUnavailable
from stoker.stores import Store
from stoker.stores.access import Access, Route
from stoker.stores.kinds import Location, locate, named
from stoker.stores.opening import AccessStore, open_access

TUNNEL = "tunnel"  # the kind of store that nodes open it as
IDLE_S = 120.0  # a connection that asks for nothing is closed
_MOST_APPEND_BYTES = 64 << 20
_LARGE_BYTES = 8 << 20  # of a read that is not held in memory


@dataclass(frozen=True, slots=True)
class TunnelTokens:
    """`secret` is this server's own, and outlives it: agents keep their tokens over a restart."""

    secret: bytes
    server: str

    def carried(self, key: str, access: Access, *, everything: bool = False) -> Access:
        """The access of the node with this key, with every folder of this computer as a tunnel to it; `everything`:
        other stores, too. What is carried already stays as it is."""
        return replace(access, routes=tuple(self._carried(key, route, everything) for route in access.routes))

    def _carried(self, key: str, route: Route, everything: bool) -> Route:
        place = locate(route.url)
        if place.kind == TUNNEL or not (place.local or everything):
            return route
        said = json.dumps([key, route.prefix, route.url, route.token, route.writes])
        words = base64.urlsafe_b64encode(said.encode()).decode()
        prefix = place.prefix if place.local else f"/{route.url}"
        url = named(TUNNEL).spell(Location(TUNNEL, endpoint=self.server, prefix=prefix))
        return replace(route, url=url, token=f"{words}.{self._mac(words)}")

    def opened(self, token: str) -> tuple[str, Route]:
        """The key of the node and its route. Raises StoreDenied."""
        words, _, mac = token.partition(".")
        if not hmac.compare_digest(mac.encode(), self._mac(words).encode()):
            raise StoreDenied("this token was not made by this server")
        key, prefix, url, inner, writes = json.loads(base64.urlsafe_b64decode(words))
        return str(key), Route(str(prefix), str(url), str(inner), bool(writes))

    def _mac(self, words: str) -> str:
        return hmac.new(self.secret, words.encode(), "sha256").hexdigest()


class TunnelService:
    """Listens until the process ends. `admits` says whether a node may still read and write: one that was given up may
    not, wherever it is."""

    def __init__(self, place: Path, tokens: TunnelTokens, admits: Callable[[str], bool]) -> None:
        self.place = place
        self._tokens = tokens
        self._admits = admits
        self._stores: dict[str, AccessStore] = {}
        self._lock = threading.Lock()
        place.unlink(missing_ok=True)
        self._server = _Listener(str(place), _Visit)
        place.chmod(0o600)
        self._server.service = self
        threading.Thread(target=self._server.serve_forever, name="tunnel", daemon=True).start()

    def store(self, token: str) -> tuple[AccessStore, Route]:
        key, route = self._tokens.opened(token)
        if not self._admits(key):
            raise StoreDenied(f"{key} has been given up: its server has stopped it")
        with self._lock:  # one for each token, because a commit waits for what was put before it
            if token not in self._stores:
                self._stores[token] = open_access(Access((route,)))
            return self._stores[token], route

    def forget(self, key: str) -> None:
        with self._lock:
            self._stores = {one: store for one, store in self._stores.items() if self._tokens.opened(one)[0] != key}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.place.unlink(missing_ok=True)


class _Listener(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128
    service: TunnelService

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002  # as the library calls it
        logging.getLogger(__name__).debug("a node hung up", exc_info=True)


class _Visit(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    rbufsize = 256 << 10
    wbufsize = 64 << 10

    def do_GET(self) -> None:
        self._serve(self._read if urlsplit(self.path).path == "/object" else self._list)

    def do_PUT(self) -> None:
        self._serve(self._put)

    def do_POST(self) -> None:
        self._serve(self._append)

    def do_DELETE(self) -> None:
        self._serve(self._delete)

    def log_message(self, format: str, *args: object) -> None:  # noqa: ARG002  # as the library calls it
        return

    def address_string(self) -> str:
        return "a node"

    def _serve(self, work: Callable[[Store, str, dict[str, str]], None]) -> None:
        """A body that was not read to its end, or an answer that broke off, ends the connection."""
        self._begun = False
        self._body = self._pieces()
        try:
            listener = cast(_Listener, self.server)
            store, route = listener.service.store(self.headers.get("Authorization", "").removeprefix("Bearer "))
            asked = {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query).items()}
            # Code in a folder is found by its hash, and by nothing else; other stores say themselves who may list.
            if work == self._list and not route.writes and locate(route.url).local:
                raise StoreDenied("this access does not permit listing")
            work(store, route.prefix.removesuffix(route.one), asked)
        except StoreFailed as error:
            self._refuse(error)
        except (ValueError, KeyError, TypeError) as error:
            self._refuse(StoreFailed(f"this is not a request of an agent: {error}"))

    def _read(self, store: Store, prefix: str, asked: dict[str, str]) -> None:
        key, start = prefix + asked["key"], int(asked.get("start", 0))
        size = int(asked["size"]) if "size" in asked else None
        if store.path(key):
            self._read_file(store, key, start, size)
        elif size is None or size <= _LARGE_BYTES:
            self._send(store.get(key, start, size))
        else:
            self._read_far(store, key, start, size)

    def _read_far(self, store: Store, key: str, start: int, size: int) -> None:
        """In chunks: how much there is, is known at the end only."""
        pieces = store.stream(key, start, size)
        first = next(pieces, memoryview(b""))  # raises Missing before anything is said
        self._begun = True
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in chain([first], pieces):
            if piece:
                self.wfile.write(f"{len(piece):x}\r\n".encode())
                self.wfile.write(piece)
                self.wfile.write(b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def _read_file(self, store: Store, key: str, start: int, size: int | None) -> None:
        """From one open file, so that an object that is replaced meanwhile is not mixed with its successor. One that
        grows by appends has the size that was found first."""
        with _opened(store, key) as file:
            there = max(os.fstat(file.fileno()).st_size - start, 0)
            left = there if size is None else min(there, size)
            file.seek(start)
            self._begin(left)
            while left > 0:
                piece = file.read(min(left, 1 << 20))
                if not piece:
                    raise StoreUnavailable(f"`{key}` has become shorter")
                self.wfile.write(piece)
                left -= len(piece)

    def _list(self, store: Store, prefix: str, asked: dict[str, str]) -> None:
        cut = len(prefix)
        found = store.list(f"{prefix}{asked.get('prefix', '')}")
        rows = [[one.key[cut:], one.size_bytes, one.changed_at, one.etag] for one in found]
        self._say({"objects": rows})

    def _put(self, store: Store, prefix: str, asked: dict[str, str]) -> None:
        body = cast(BinaryIO, _Body(self._body))
        store.put(prefix + asked["key"], body, only_new=asked.get("only_new") == "1")
        self._say({})

    def _append(self, store: Store, prefix: str, asked: dict[str, str]) -> None:
        data = _Body(self._body, _MOST_APPEND_BYTES).whole()
        self._say({"size": store.append(prefix + asked["key"], int(asked["offset"]), data)})

    def _delete(self, store: Store, prefix: str, asked: dict[str, str]) -> None:
        store.delete(prefix + asked["key"])
        self._say({})

    def _pieces(self) -> Iterator[bytes]:
        """The body. Raises StoreUnavailable where it ends too early: nothing of it may be kept."""
        chunked = self.headers.get("Transfer-Encoding", "").lower() == "chunked"
        sizes = self._chunks() if chunked else iter((int(self.headers.get("Content-Length", 0)),))
        for size in sizes:
            while size:
                piece = self.rfile.read(min(size, 256 << 10))
                if not piece:
                    raise StoreUnavailable("the node hung up")
                size -= len(piece)
                yield piece

    def _chunks(self) -> Iterator[int]:
        while True:
            line = self.rfile.readline(64)
            if not line.endswith(b"\n"):
                raise StoreUnavailable("the node hung up")
            size = int(line.strip(), 16)
            yield size
            self.rfile.readline(64)
            if not size:
                return

    def _begin(self, size: int, status: int = 200) -> None:
        self._begun = True
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def _say(self, words: dict[str, Any], status: int = 200) -> None:
        self._send(json.dumps(words).encode(), status)

    def _send(self, data: bytes, status: int = 200) -> None:
        self._begin(len(data), status)
        self.wfile.write(data)

    def _refuse(self, error: StoreFailed) -> None:
        if self._begun:
            self.close_connection = True
            return
        try:
            for _ in self._body:  # what was sent is read to its end, or the refusal would not be
                pass
        except StoreFailed:
            self.close_connection = True
        self._say({"code": error.code, "message": error.message}, error.http_status)


class _Body:
    """A stream of pieces as a file to read from."""

    def __init__(self, pieces: Iterator[bytes], most: int = 0) -> None:
        self._pieces = pieces
        self._most = most
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._rest = piece
        found = self._rest if size < 0 else self._rest[:size]
        self._rest = self._rest[len(found) :]
        return found

    def whole(self) -> bytes:
        found = bytearray()
        while piece := self.read():
            found += piece
            if len(found) > self._most:
                raise StoreFailed(f"more than {self._most:,} bytes at once")
        return bytes(found)


def _opened(store: Store, key: str) -> BinaryIO:
    """Raises Missing."""
    place = Path(store.path(key))
    try:
        if place.is_file():
            return place.open("rb")
    except OSError:
        pass
    raise Missing(f"`{key}` not found in the store")
