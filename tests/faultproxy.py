"""A proxy in front of a service that does to requests what networks and clouds do: refuse, cut off, delay, garble."""

from __future__ import annotations

import http.client
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import BinaryIO
from urllib.parse import urlsplit


class Kind(StrEnum):
    REFUSE = "refuse"  # an answer with `status` and `code`; the service is not asked
    DROP = "drop"  # the connection closes; the service is not asked
    LOSE = "lose"  # the service does it, and its answer is lost
    CUT = "cut"  # half of the answer's body, then the connection closes
    GARBLE = "garble"  # one byte of the answer's body is another one
    DELAY = "delay"  # the answer comes after `seconds`


@dataclass
class Fault:
    """Meets the first `times` requests whose line, such as `GET /account/container/key?…`, matches `request`."""

    kind: Kind
    request: str = ""
    times: int = 1
    status: int = 503
    code: str = "ServerBusy"
    message: str = "a fault that was injected"
    seconds: float = 0.0
    skip: int = 0  # requests that match and pass before
    met: int = 0


@dataclass
class FaultProxy:
    endpoint: str  # the service's, as seen through the proxy
    faults: list[Fault] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, kind: Kind, request: str = "", **more: object) -> Fault:
        fault = Fault(kind, request, **more)  # type: ignore[arg-type]
        with self.lock:
            self.faults.append(fault)
        return fault

    def url(self, service_url: str) -> str:
        """The same container or bucket, through the proxy."""
        return re.sub(r"http://127\.0\.0\.1:\d+", f"http://{urlsplit(self.endpoint).netloc}", service_url)

    def choose(self, line: str) -> Fault | None:
        with self.lock:
            self.seen.append(line)
            for fault in self.faults:
                if re.search(fault.request, line) and fault.met < fault.skip + fault.times:
                    fault.met += 1
                    return fault if fault.met > fault.skip else None
        return None


@contextmanager
def run_proxy(service: str) -> Iterator[FaultProxy]:
    """`service` is the endpoint of what lies behind."""
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = FaultProxy(re.sub(r":\d+", f":{listener.getsockname()[1]}", service, count=1))
    upstream = urlsplit(service).netloc
    open_sockets: list[socket.socket] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                open_sockets.append(connection)
                threading.Thread(target=_serve, args=(connection, upstream, proxy), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield proxy
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for one in open_sockets:
            one.close()


def _serve(connection: socket.socket, upstream: str, proxy: FaultProxy) -> None:
    behind = http.client.HTTPConnection(upstream, timeout=60)
    with suppress(OSError, http.client.HTTPException), connection, connection.makefile("rb") as incoming:
        while request := _read_request(incoming, connection):
            method, target, headers, body = request
            fault = proxy.choose(f"{method} {target}")
            if fault and fault.kind is Kind.DROP:
                break
            if fault and fault.kind is Kind.REFUSE:
                connection.sendall(_refusal(fault, method))
                continue
            behind.request(method, target, body, headers)
            answer = behind.getresponse()
            content = answer.read()
            if not _answer(connection, answer, content, method, fault):
                break
    behind.close()


def _read_request(incoming: BinaryIO, connection: socket.socket) -> tuple[str, str, dict[str, str], bytes] | None:
    line = incoming.readline().decode("latin-1").split()
    if len(line) != 3:
        return None
    headers: dict[str, str] = {}
    while (header := incoming.readline().decode("latin-1").strip()) != "":
        name, _, value = header.partition(":")
        headers[name.strip()] = value.strip()
    names = {name.lower(): name for name in headers}
    if "expect" in names:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        del headers[names["expect"]]
    size = int(headers.get(names.get("content-length", ""), "0"))
    return line[0], line[1], headers, incoming.read(size) if size else b""


def _refusal(fault: Fault, method: str) -> bytes:
    body = f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>{fault.message}</Message></Error>".encode()
    head = f"HTTP/1.1 {fault.status} Injected\r\nx-ms-error-code: {fault.code}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Content-Type: application/xml\r\n\r\n".encode() + (b"" if method == "HEAD" else body)


def _answer(
    connection: socket.socket, answer: http.client.HTTPResponse, content: bytes, method: str, fault: Fault | None
) -> bool:
    """Whether the connection goes on."""
    if fault and fault.kind is Kind.LOSE:
        return False
    if fault and fault.kind is Kind.DELAY:
        time.sleep(fault.seconds)
    if fault and fault.kind is Kind.GARBLE and content:
        middle = len(content) // 2
        content = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    left_out = {"transfer-encoding", "connection", "keep-alive"} | (set() if method == "HEAD" else {"content-length"})
    head = [f"HTTP/1.1 {answer.status} {answer.reason}"]
    head += [f"{name}: {value}" for name, value in answer.getheaders() if name.lower() not in left_out]
    if method != "HEAD":
        head.append(f"Content-Length: {len(content)}")
    cut = fault is not None and fault.kind is Kind.CUT
    connection.sendall(
        "\r\n".join([*head, "", ""]).encode("latin-1") + (content[: len(content) // 2] if cut else content)
    )
    return not cut
