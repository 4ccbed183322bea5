"""Clients that are slow, many or silent: others are served anyway. Real sockets, on both transports."""

from __future__ import annotations

import json
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from shell import Shell

from stoker.client.api.connection import Connection, ServerAddress

HALF_OPEN = 1200
QUICK_S = 5.0  # on a machine that is busy with other tests


@pytest.fixture
def server(shell: Shell) -> Iterator[Shell]:
    """One that may open no more files than most systems allow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4 * HALF_OPEN:
        pytest.skip(f"this system allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))  # the server inherits it
    shell.stoker("server", "start", "--port", "0")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4 * HALF_OPEN), hard))
    yield shell
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def told(shell: Shell) -> dict[str, str]:
    facts: dict[str, str] = json.loads((shell.home / "server.json").read_text())
    return facts


def by_port(shell: Shell) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(told(shell)["http"].rpartition(":")[2])), 10)


def by_socket(shell: Shell) -> socket.socket:
    line, folder = socket.socket(socket.AF_UNIX), os.open(shell.home, os.O_RDONLY)
    line.settimeout(10)
    line.connect(f"/proc/self/fd/{folder}/server.sock")
    os.close(folder)
    return line


def health_s(shell: Shell) -> float:
    """How long healthy clients wait for their answers, on both ways in."""
    began, facts = time.monotonic(), told(shell)
    for url in (f"unix:{shell.home}/server.sock", facts["http"]):
        connection = Connection(ServerAddress(url, facts["token"]))
        assert connection.get("/v1/health")["version"]
        connection.close()
    return time.monotonic() - began


def ended_after_s(line: socket.socket, drip: bytes = b"", every_s: float = 1.0, patience_s: float = 60.0) -> float:
    """How long the server bears with a client that sends a byte now and then."""
    began = time.monotonic()
    line.settimeout(every_s)
    while (waited_s := time.monotonic() - began) < patience_s:
        try:
            if not line.recv(65536):
                break
        except TimeoutError:
            with suppress(ConnectionError):
                line.sendall(drip)
        except ConnectionError:
            break
    return waited_s


@pytest.mark.parametrize("dial", [by_port, by_socket])
def test_1200_half_open_connections_keep_nobody_out(server: Shell, dial: Callable[[Shell], socket.socket]) -> None:
    waits: list[float] = []
    lines: list[socket.socket] = []
    for number in range(HALF_OPEN):
        lines.append(dial(server))
        with suppress(ConnectionError):  # it may have been closed already
            lines[-1].sendall(b"GET /v1/runs HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        if number % 200 == 199:
            waits.append(health_s(server))
    assert max(waits) < QUICK_S, waits
    server.stoker("ps")
    for line in lines:
        line.close()


def slow_head(server: Shell) -> float:
    line = by_port(server)
    line.sendall(b"GET /v1/runs HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    return ended_after_s(line, b"a")


def silence(server: Shell) -> float:
    return ended_after_s(by_port(server))


def slow_second_head(server: Shell) -> float:
    line = by_socket(server)
    line.sendall(b"GET /v1/runs HTTP/1.1\r\nHost: x\r\n%b\r\nGET /v1" % authorization(server))
    assert line.recv(12) == b"HTTP/1.1 200"
    return ended_after_s(line, b"a")


def body_without_token(server: Shell) -> float:
    """It is not read at all."""
    line = by_port(server)
    line.sendall(b"POST /v1/blobs HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
    assert line.recv(12) == b"HTTP/1.1 401"
    return ended_after_s(line, b"a")


def body_that_does_not_come(server: Shell) -> bytes:
    line = by_port(server)
    line.sendall(b"POST /v1/plan HTTP/1.1\r\nHost: x\r\n%bContent-Length: 1000\r\n\r\n{" % authorization(server))
    line.settimeout(50)
    answer = b""
    while not answer.endswith(b"}") and (more := line.recv(65536)):  # head and body may come apart
        answer += more
    return answer


def long_poll(server: Shell) -> float:
    connection, began = (
        Connection(ServerAddress(f"unix:{server.home}/server.sock", told(server)["token"])),
        time.monotonic(),
    )
    assert connection.get("/v1/runs/job-1?newer_than=1000000&wait_s=15")["name"] == "job-1"
    return time.monotonic() - began


def authorization(server: Shell) -> bytes:
    return b"Authorization: Bearer %b\r\n" % told(server)["token"].encode()


@pytest.mark.heavy
def test_who_keeps_the_server_waiting_is_hung_up_on_and_who_waits_for_it_is_not(server: Shell) -> None:
    server.job("true")
    server.stoker("run")
    slow = (slow_head, silence, slow_second_head, body_without_token)
    with ThreadPoolExecutor(8) as threads:
        ended = [threads.submit(one, server) for one in slow]
        refused, answered = threads.submit(body_that_does_not_come, server), threads.submit(long_poll, server)
        assert health_s(server) < QUICK_S
        borne_s = [one.result() for one in ended]
    assert all(5 < one < 25 for one in borne_s), borne_s
    assert refused.result().startswith(b"HTTP/1.1 408")
    assert b'"code":"too-slow"' in refused.result()
    assert answered.result() > 14
