"""The HTTP client against a real server on loopback that does whatever a test tells it to."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from stoker.client.api.connection import Connection, ServerAddress, error_from
from stoker.client.api.reading import Tail
from stoker.errors import (
    BadInput,
    Conflict,
    Denied,
    JobInvalid,
    NotFound,
    Problem,
    ServerUnavailable,
    SnapshotRefused,
    StokerError,
)
from stoker.model.workspace.home import proof


@dataclass
class Asked:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int  # which of the server's connections it came through


@dataclass
class Scripted:
    """Answers request number n with `answers[n]`, and the last forever; None closes the connection without a response.
    With a token it proves that it has it, which is not counted; without, that request is like any other."""

    answers: list[bytes | None]
    token: str = ""
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    _connections: int = 0

    def start(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            self._connections += 1
            threading.Thread(target=self._serve, args=(line, self._connections), daemon=True).start()

    def _serve(self, line: socket.socket, number: int) -> None:
        with suppress(ConnectionError), line, line.makefile("rb") as reader:
            while first := reader.readline():
                method, target, _ = first.decode().split()
                headers = {}
                while (row := reader.readline().decode().strip()) != "":
                    name, _, value = row.partition(": ")
                    headers[name.lower()] = value
                body = b""
                if headers.get("transfer-encoding") == "chunked":
                    while size := int(reader.readline() or b"0", 16):
                        body += reader.read(size)
                        reader.readline()
                    reader.readline()
                else:
                    body = reader.read(int(headers.get("content-length", 0)))
                if self.token and target.startswith("/v1/proof?nonce="):
                    line.sendall(sized({"proof": proof(self.token, target.partition("=")[2])}))
                    continue
                self.asked.append(Asked(method, target, headers, body, number))
                answer = self.answers[min(len(self.asked), len(self.answers)) - 1]
                if answer is None:
                    return
                cut = answer.endswith(CUT)
                line.sendall(answer.removesuffix(CUT))
                if cut:
                    return


CUT = b"<hang up here>"


def sized(data: object, status: str = "200 OK") -> bytes:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), len(body), body)


def chunked(*pieces: bytes, end: bytes = b"0\r\n\r\n", head: bytes = b"") -> bytes:
    start = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + head + b"\r\n"
    return start + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + end


Serve = Callable[..., Scripted]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[Scripted] = []

    def serve(*answers: bytes | None, token: str = "") -> Scripted:
        server = Scripted(list(answers), token)
        server.start()
        servers.append(server)
        return server

    yield serve
    for server in servers:
        server.close()


@pytest.fixture
def nowhere() -> str:
    """A URL where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_answers_are_plain_json_and_the_socket_is_kept(serve: Serve) -> None:
    server = serve(sized({"a": 1}), sized([2]), token="t0ken")
    connection = Connection(ServerAddress(server.url, "t0ken"))
    assert connection.get("/v1/x") == {"a": 1}
    assert connection.post("/v1/y", {"b": "é"}) == [2]
    assert [asked.connection for asked in server.asked] == [1, 1]
    assert [asked.headers["authorization"] for asked in server.asked] == ["Bearer t0ken"] * 2
    assert json.loads(server.asked[1].body) == {"b": "é"}
    assert server.asked[1].headers["content-type"] == "application/json"


def test_a_query_leaves_out_what_is_none(serve: Serve) -> None:
    server = serve(sized({}))
    Connection(ServerAddress(server.url)).get("/v1/x", {"a": 1, "b": None, "c": True, "d": "x y&z"})
    assert server.asked[0].target == "/v1/x?a=1&c=true&d=x+y%26z"


def test_a_url_with_a_path_is_a_prefix(serve: Serve) -> None:
    server = serve(sized({}))
    Connection(ServerAddress(server.url + "/team/")).get("/v1/x")
    assert server.asked[0].target == "/team/v1/x"


def test_chunked_answers_are_put_together(serve: Serve) -> None:
    server = serve(chunked(b'{"a"', b": [1, ", b"2]}"), sized({}))
    connection = Connection(ServerAddress(server.url))
    assert connection.get("/v1/x") == {"a": [1, 2]}
    assert connection.get("/v1/x") == {}
    assert {asked.connection for asked in server.asked} == {1}


def test_an_answer_without_a_length_ends_with_the_connection(serve: Serve) -> None:
    server = serve(b"HTTP/1.1 200 OK\r\n\r\n[1, 2]" + CUT)
    connection = Connection(ServerAddress(server.url))
    assert connection.get("/v1/x") == [1, 2]
    assert connection.get("/v1/x") == [1, 2]
    assert [asked.connection for asked in server.asked] == [1, 2]


def test_interim_answers_are_passed_over(serve: Serve) -> None:
    server = serve(b"HTTP/1.1 100 Continue\r\n\r\n" + sized({"a": 1}))
    assert Connection(ServerAddress(server.url)).get("/v1/x") == {"a": 1}


def test_an_empty_answer_is_none(serve: Serve) -> None:
    server = serve(b"HTTP/1.1 204 No Content\r\n\r\n", sized({"a": 1}))
    connection = Connection(ServerAddress(server.url))
    assert connection.delete("/v1/x") is None
    assert connection.get("/v1/x") == {"a": 1}
    assert [asked.method for asked in server.asked] == ["DELETE", "GET"]


def test_an_upload_goes_out_in_chunks(serve: Serve) -> None:
    server = serve(sized({"stored": 2}))
    answer = Connection(ServerAddress(server.url)).upload("/v1/blobs", iter([b"abc", b"", b"d" * 100_000]))
    assert answer == {"stored": 2}
    assert server.asked[0].body == b"abc" + b"d" * 100_000


def test_a_failure_while_making_the_body_comes_out_as_it_is(serve: Serve) -> None:
    def body() -> Iterator[bytes]:
        yield b"abc"
        raise SnapshotRefused("it changed")

    connection = Connection(ServerAddress(serve(sized({})).url))
    with pytest.raises(SnapshotRefused, match="it changed"):
        connection.upload("/v1/blobs", body())
    assert connection.get("/v1/x") == {}


def test_a_stream_gives_pieces_as_they_arrive_and_its_headers(serve: Serve) -> None:
    server = serve(chunked(b"one\n", b"two\n", head=b"Stoker-Offset: 7\r\n"))
    headers, pieces = Connection(ServerAddress(server.url)).stream("/v1/logs")
    assert headers["stoker-offset"] == "7"
    assert b"".join(pieces) == b"one\ntwo\n"


def test_a_stream_that_is_cut_short_says_so(serve: Serve) -> None:
    server = serve(chunked(b"one\n", end=b"") + CUT)
    _, pieces = Connection(ServerAddress(server.url)).stream("/v1/logs")
    assert next(pieces) == b"one\n"
    with pytest.raises(ServerUnavailable, match="closed the connection"):
        next(pieces)


def test_a_body_shorter_than_promised_is_not_taken_for_whole(serve: Serve) -> None:
    server = serve(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n[1]" + CUT)
    with pytest.raises(ServerUnavailable):
        Connection(ServerAddress(server.url)).get("/v1/x")


def test_a_get_is_repeated_when_its_answer_breaks_off(serve: Serve) -> None:
    server = serve(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n[1]" + CUT, sized([1, 2]))
    assert Connection(ServerAddress(server.url)).get("/v1/x") == [1, 2]


@pytest.mark.parametrize(
    ("code", "of"),
    [("not-found", NotFound), ("conflict", Conflict), ("bad-input", BadInput), ("something-new", StokerError)],
)
def test_an_error_comes_back_as_the_class_of_its_code(serve: Serve, code: str, of: type[StokerError]) -> None:
    server = serve(sized({"error": {"code": code, "message": "no `x`", "hint": "try y"}}, "404 Not Found"))
    with pytest.raises(StokerError) as caught:
        Connection(ServerAddress(server.url)).get("/v1/x")
    assert type(caught.value) is of
    assert (caught.value.code, caught.value.message, caught.value.hint) == (code, "no `x`", "try y")


def test_a_wrong_job_comes_back_with_its_problems(serve: Serve) -> None:
    told = {"field": "nodes", "found": "`2`", "expected": "at most 1", "nearest": ""}
    body = {"error": {"code": "job-invalid", "message": "…", "hint": "", "problems": [told]}}
    with pytest.raises(JobInvalid) as caught:
        Connection(ServerAddress(serve(sized(body, "422 Unprocessable")).url)).post("/v1/plan", {})
    assert caught.value.problems == (Problem("nodes", "`2`", "at most 1"),)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"error": 3}', b'{"error": {"code": "x"}}', b"\xff"])
def test_an_error_of_another_form_is_still_an_error(body: bytes) -> None:
    assert "returned 502" in error_from(502, body, "http://x").message
    assert isinstance(error_from(401, body, "http://x"), Denied)


def test_an_answer_that_is_not_json_is_not_from_stoker(serve: Serve) -> None:
    with pytest.raises(ServerUnavailable, match="not a Stoker server"):
        Connection(ServerAddress(serve(sized(b"hello")).url)).get("/v1/x")


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH\r\n" + CUT, b"HTTP/1.1 what\r\n\r\n" + CUT, b"x" * 70_000 + CUT])
def test_what_does_not_speak_http_is_unavailable(serve: Serve, answer: bytes) -> None:
    with pytest.raises(ServerUnavailable):
        Connection(ServerAddress(serve(answer).url)).post("/v1/stop", repeat=False)


def test_nobody_there_is_unavailable_at_once_with_a_hint(nowhere: str) -> None:
    with pytest.raises(ServerUnavailable, match="cannot be reached") as caught:
        Connection(ServerAddress(nowhere)).get("/v1/x")
    assert caught.value.hint


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x",
        "nonsense",
        "http://",
        "http://127.0.0.1:99999",
        "http://no.such.host.invalid",
        "http://[::1",
        "http://a\0b",
        "http://\ud800",
        "unix:",
        "unix:/no/such/folder/server.sock",
        "unix:/a\0b",
    ],
)
def test_an_address_that_cannot_be_is_unavailable(url: str) -> None:
    with pytest.raises(ServerUnavailable):
        Connection(ServerAddress(url)).get("/v1/x")


def test_a_get_is_repeated_when_the_line_is_cut_before_the_answer(serve: Serve) -> None:
    server = serve(None, sized({"a": 1}))
    assert Connection(ServerAddress(server.url)).get("/v1/x") == {"a": 1}
    assert len(server.asked) == 2


def test_what_must_not_happen_twice_is_not_repeated(serve: Serve) -> None:
    server = serve(None, sized({"a": 1}))
    with pytest.raises(ServerUnavailable):
        Connection(ServerAddress(server.url)).post("/v1/stop", repeat=False)
    assert len(server.asked) == 1


def test_a_socket_the_server_has_closed_meanwhile_is_not_used_again(serve: Serve) -> None:
    server = serve(sized({"a": 1}) + CUT, sized({"a": 2}))
    connection = Connection(ServerAddress(server.url))
    assert connection.get("/v1/x") == {"a": 1}
    while not connection._idle[0][1].stale():
        pass
    assert connection.post("/v1/x", repeat=False) == {"a": 2}


def test_a_refused_connection_asks_where_the_server_is_now(serve: Serve, nowhere: str) -> None:
    server = serve(sized({"a": 1}), token="new")
    connection = Connection(ServerAddress(nowhere, "old"), reconnect=lambda: ServerAddress(server.url, "new"))
    assert connection.post("/v1/x", {}, repeat=False) == {"a": 1}
    assert server.asked[0].headers["authorization"] == "Bearer new"


def test_a_stranger_on_the_old_port_is_asked_only_once(serve: Serve) -> None:
    stranger = serve(sized({"error": {"code": "denied", "message": "no"}}, "401 Unauthorized"), token="t")
    ours = serve(sized({"a": 1}), token="t")
    connection = Connection(ServerAddress(stranger.url, "t"), reconnect=lambda: ServerAddress(ours.url, "t"))
    assert connection.get("/v1/x") == {"a": 1}
    assert len(stranger.asked) == 1


@pytest.mark.parametrize(
    "answer",
    [
        sized({"proof": proof("guessed", "0" * 32)}),
        sized({"proof": None}),
        sized([]),
        sized(b"<html>"),
        sized(b"x" * 100_000),
        sized({"error": {"code": "not-found", "message": "no"}}, "404 Not Found"),
        None,
    ],
)
def test_who_does_not_know_the_token_is_sent_neither_it_nor_anything_else(serve: Serve, answer: bytes | None) -> None:
    stranger = serve(answer)
    with pytest.raises(ServerUnavailable, match="does not know the token"):
        Connection(ServerAddress(stranger.url, "t0ken")).post("/v1/runs", {"secrets": {"HF_TOKEN": "hf_secret"}})
    assert [asked.target.partition("=")[0] for asked in stranger.asked] == ["/v1/proof?nonce"]
    assert all("authorization" not in asked.headers and not asked.body for asked in stranger.asked)


def test_a_scheme_in_capitals_is_no_way_around_the_proof(serve: Serve) -> None:
    stranger = serve(sized({}))
    with pytest.raises(ServerUnavailable):
        Connection(ServerAddress(stranger.url.replace("http:", "HTTP:"), "sesame")).get("/v1/runs")
    assert [asked.target.partition("=")[0] for asked in stranger.asked] == ["/v1/proof?nonce"]


def test_every_new_socket_is_proven_once_and_stays_so(serve: Serve) -> None:
    ours = serve(sized({"a": 1}), token="t0ken")
    moved: list[ServerAddress] = []
    connection = Connection(ServerAddress(ours.url, "t0ken"), reconnect=lambda: moved[-1])
    assert connection.get("/v1/x") == {"a": 1}
    ours.token = ""  # asked once more, it would fail
    assert connection.get("/v1/x") == {"a": 1}
    connection.close()
    moved.append(ServerAddress(serve(sized({"a": 2}), token="t0ken").url, "t0ken"))
    assert connection.get("/v1/x") == {"a": 2}
    assert "authorization" not in ours.asked[-1].headers


def test_a_server_that_has_answered_before_is_given_time_to_come_back(serve: Serve) -> None:
    server = serve(sized({"a": 1}) + CUT, sized({"a": 2}))
    connection = Connection(ServerAddress(server.url))
    assert connection.get("/v1/x") == {"a": 1}
    server.close()
    port = int(server.url.rpartition(":")[2])

    def come_back() -> None:
        server._listener = socket.create_server(("127.0.0.1", port))
        server._accept()

    timer = threading.Timer(0.5, come_back)
    timer.daemon = True
    timer.start()
    assert connection.get("/v1/x") == {"a": 2}


def test_several_threads_share_a_connection(serve: Serve) -> None:
    server = serve(sized({"a": 1}))
    connection = Connection(ServerAddress(server.url))
    answers: list[object] = []
    threads = [
        threading.Thread(target=lambda: answers.extend(connection.get("/v1/x") for _ in range(20))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [{"a": 1}] * 160


def test_a_tail_resumes_where_it_was_cut_off(serve: Serve) -> None:
    server = serve(
        chunked(b"abc", b"def", end=b"", head=b"Stoker-Offset: 10\r\n") + CUT,
        None,
        chunked(b"gh", end=b"5\r\nij", head=b"Stoker-Offset: 16\r\n") + CUT,
        chunked(b"klm", head=b"Stoker-Offset: 20\r\n"),
    )
    tail = Tail(Connection(ServerAddress(server.url)), "/v1/logs/1/0", offset=10)
    assert b"".join(tail.read(follow=True)) == b"abcdefghijklm"
    offsets = [asked.target.partition("?")[2].partition("&")[0] for asked in server.asked]
    assert offsets == ["offset=10", "offset=16", "offset=16", "offset=20"]
