"""Bodies that come as a stream: whole or not at all, and the connection is good for the next question."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from stoker.errors import StoreUnavailable
from stoker.stores.objects.wire import Reply, Request, Wire

LARGE = os.urandom(3_000_001)
BODIES = {"/empty": b"", "/small": b"small", "/edge": LARGE[: 512 << 10], "/large": LARGE}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.asked.append(self.client_address)  # type: ignore[attr-defined]  # ours
        body = BODIES[self.path.removesuffix("-cut")]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.path.endswith("-cut"):
            self.wfile.write(body[:-1000])
            self.close_connection = True
        else:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


class Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Somebody hung up, as they are meant to."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        server.asked = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def streamed(wire: Wire, path: str) -> bytes:
    found = wire.stream(lambda: Request("GET", path, {}), 200)
    assert not isinstance(found, Reply)
    return b"".join(bytes(piece) for piece in found)


def test_bodies_come_whole_one_after_the_other_on_one_connection(server: Server) -> None:
    wire = Wire(f"http://127.0.0.1:{server.server_port}")
    for path, body in [*BODIES.items(), *reversed(BODIES.items())]:
        assert streamed(wire, path) == body
        assert wire.ask(lambda path=path: Request("GET", path, {})).body == body  # type: ignore[misc]
    assert len(set(server.asked)) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["/edge", "/large"])
def test_a_body_that_is_interrupted_is_an_error_and_the_next_question_is_answered(server: Server, path: str) -> None:
    wire = Wire(f"http://127.0.0.1:{server.server_port}")
    with pytest.raises(StoreUnavailable):
        streamed(wire, f"{path}-cut")
    assert streamed(wire, path) == BODIES[path]


def test_a_stream_that_is_given_up_leaves_nothing_on_the_connection(server: Server) -> None:
    wire = Wire(f"http://127.0.0.1:{server.server_port}")
    found = wire.stream(lambda: Request("GET", "/large", {}), 200)
    assert not isinstance(found, Reply)
    next(iter(found))
    found.close()  # type: ignore[attr-defined]  # it is a generator
    assert streamed(wire, "/small") == b"small"
