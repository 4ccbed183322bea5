"""One connection to an HTTP/1.1 server, over a Unix socket or TCP.

The standard `http.client` does the same, but importing it loads `email` and `ssl`: 19 ms before a command has done
anything. Here `ssl` is imported when a URL requires it.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import BinaryIO, NamedTuple
from urllib.parse import urlsplit

_LINE = 65536  # the longest header line that is accepted
_HEADERS = 200
_CHUNK = 1 << 16
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # Linux
_LONGEST_NAME = 100  # of a socket, in bytes: the kernel takes 107 on Linux, 103 on macOS
UNIX = "unix:"  # prefix of the path of a Unix socket


class LineRefused(Exception):
    """No process listens there: nothing was sent."""


class LineBroken(Exception):
    """The connection broke, or the response is not HTTP. The request may have been executed."""


class HttpAnswer(NamedTuple):
    """`body` must be read to its end before the connection takes another request."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: Iterator[bytes]


class Line:
    """Sends one request after another, from one thread at a time."""

    def __init__(self, url: str, timeout_s: float) -> None:
        try:
            if url.startswith(UNIX):
                self._socket, self._host, self._prefix = _to_own(url.removeprefix(UNIX), timeout_s), "localhost", ""
            else:
                self._socket, self._host, self._prefix = _to_host(url, timeout_s)
        except (OSError, ValueError) as error:
            raise LineRefused(_words(error)) from error
        self._reader: BinaryIO = self._socket.makefile("rb")
        self._hurried = _QUICKACK is not None and self._socket.family in (socket.AF_INET, socket.AF_INET6)
        self.reusable = True

    def close(self) -> None:
        self.reusable = False
        with suppress(OSError):
            self._reader.close()
            self._socket.close()

    def stale(self) -> bool:
        """The server has closed the connection meanwhile: between requests it sends nothing."""
        try:
            self._socket.settimeout(0)
            self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, ValueError):  # TLS cannot peek; the next request finds out
            return False
        except OSError:
            return True
        return True

    def request(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | Iterable[bytes] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> HttpAnswer:
        """Raises Broken. `timeout_s` is the longest silence; None waits without limit."""
        try:
            self._socket.settimeout(timeout_s)
            self._send(method, target, headers, body)
            status, answered = self._head()
            while 100 <= status < 200:
                status, answered = self._head()
        except (OSError, ValueError) as error:
            self.close()
            raise LineBroken(_words(error)) from error
        except BaseException:  # raised by the body's generator: half a request has been sent
            self.close()
            raise
        if answered.get("connection", "").lower() == "close":
            self.reusable = False
        return HttpAnswer(status, answered, self._body(status, answered))

    def _send(self, method: str, target: str, headers: Mapping[str, str], body: bytes | Iterable[bytes] | None) -> None:
        sized = body is None or isinstance(body, bytes)
        given = {"Host": self._host, **headers}
        if not sized:
            given["Transfer-Encoding"] = "chunked"
        elif body or method == "POST":
            given["Content-Length"] = str(len(body) if isinstance(body, bytes) else 0)
        head = f"{method} {self._prefix}{target} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in given.items())
        start = head.encode("latin-1") + b"\r\n"
        if body is None or isinstance(body, bytes):
            self._socket.sendall(start + (body or b""))
            return
        self._socket.sendall(start)
        # A server that refuses an upload responds and closes midway: the response says more than the closed connection.
        with suppress(BrokenPipeError, ConnectionResetError):
            for chunk in body:
                if chunk:
                    self._socket.sendall(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            self._socket.sendall(b"0\r\n\r\n")

    def _head(self) -> tuple[int, dict[str, str]]:
        words = self._line().split(None, 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise ValueError("the response is not HTTP")
        headers: dict[str, str] = {}
        for _ in range(_HEADERS):
            line = self._line()
            if not line:
                return int(words[1]), headers
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        raise ValueError("the response has too many headers")

    def _line(self) -> str:
        self._hurry()
        line = self._reader.readline(_LINE)
        if not line.endswith(b"\n"):
            raise ValueError(
                "the server closed the connection"
                if len(line) < _LINE
                else "the response has a header line that is too long"
            )
        return line.decode("latin-1").rstrip("\r\n")

    def _body(self, status: int, headers: Mapping[str, str]) -> Iterator[bytes]:
        try:
            if status in (204, 304):
                return
            if "chunked" in headers.get("transfer-encoding", "").lower():
                yield from self._chunks()
            elif "content-length" in headers:
                yield from self._sized(int(headers["content-length"]))
            else:
                self.reusable = False
                while piece := self._read1(_CHUNK):
                    yield piece
        except (OSError, ValueError) as error:
            self.close()
            raise LineBroken(_words(error)) from error

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self._line().partition(";")[0], 16):
            yield from self._sized(size)
            self._line()
        while self._line():  # trailers
            pass

    def _sized(self, size: int) -> Iterator[bytes]:
        while size > 0:
            piece = self._read1(min(size, _CHUNK))
            if not piece:
                raise ValueError("the server closed the connection")
            size -= len(piece)
            yield piece

    def _read1(self, size: int) -> bytes:
        """What has arrived, or what comes first: a follower must see a line as soon as it is written."""
        self._hurry()
        piece: bytes = self._reader.read1(size)  # type: ignore[attr-defined]  # a BufferedReader; typed as BinaryIO
        return piece

    def _hurry(self) -> None:
        """A server that sends a response in two parts may hold the second back until the first is acknowledged, which
        the kernel delays by 40 ms. The kernel resets this option at every packet."""
        if self._hurried and _QUICKACK is not None:
            self._socket.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)


def _to_own(path: str, timeout_s: float) -> socket.socket:
    """Raises OSError if no process listens, or one of another user."""
    if not hasattr(socket, "AF_UNIX"):
        raise ValueError("this system has no Unix sockets")
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.settimeout(timeout_s)
        with _short_name(path) as name:
            line.connect(name)
        if (peer := _peer(line)) not in (None, 0, os.geteuid()):
            raise PermissionError(f"the process that listens at {path} belongs to user {peer}, not to you")
    except BaseException:
        line.close()
        raise
    return line


@contextmanager
def _short_name(path: str) -> Iterator[str]:
    """A name of the socket that the kernel accepts, however long the path of its folder is."""
    folder, _, name = path.rpartition("/")
    if len(os.fsencode(path)) <= _LONGEST_NAME:
        yield path
        return
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if os.path.isdir(there := f"/proc/self/fd/{held}"):  # noqa: PTH112 - `pathlib` is slow to import
            yield f"{there}/{name}"
            return
        private = f"/tmp/stoker-{os.urandom(8).hex()}"  # no `/proc`, as on macOS: a link with a short name
        os.mkdir(private, 0o700)  # noqa: PTH102 - likewise
        try:
            os.symlink(folder, f"{private}/home")  # noqa: PTH211 - likewise
            yield f"{private}/home/{name}"
        finally:
            with suppress(OSError):
                os.unlink(f"{private}/home")  # noqa: PTH108 - likewise
            os.rmdir(private)  # noqa: PTH106 - likewise
    finally:
        os.close(held)


def _peer(line: socket.socket) -> int | None:
    """The user whose process listens at the other end; None if the system does not tell."""
    if hasattr(socket, "SO_PEERCRED"):  # Linux: pid, uid, gid
        return int(struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1])
    if sys.platform == "darwin":  # LOCAL_PEERCRED of SOL_LOCAL gives a `struct xucred`: version, uid, groups
        return int(struct.unpack_from("2I", line.getsockopt(0, 1, 76))[1])
    return None


def _to_host(url: str, timeout_s: float) -> tuple[socket.socket, str, str]:
    """A socket, the name of the host, and the prefix of every path."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"`{url}` is not a http:// or https:// URL")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    # Text would be sent through the `idna` codec, whose tables are slow to import.
    host = parts.hostname.encode("ascii" if parts.hostname.isascii() else "idna")
    line = socket.create_connection((host, port), timeout_s)  # type: ignore[arg-type]  # bytes do
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if parts.scheme == "https":
        line = _secured(line, parts.hostname)
    return line, parts.netloc.rpartition("@")[2], parts.path.rstrip("/")


def _secured(plain: socket.socket, host: str) -> socket.socket:
    import ssl  # only if a URL requires it: 18 ms

    return ssl.create_default_context().wrap_socket(plain, server_hostname=host)


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it timed out"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
