"""An HTTPS server with plain threads, and its own certificate."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from stoker.errors import TwinFailed
from stoker.twin.web import blobs

_DAYS = "3650"
_NAMES = f"subjectAltName=DNS:localhost,DNS:{blobs.NAME},IP:127.0.0.1,IP:::1"


@dataclass(frozen=True, slots=True)
class Certificate:
    authority: Path  # what clients have to trust
    chain: Path
    key: Path


def certificate(folder: Path) -> Certificate:
    """The one in this folder, created if missing. An incomplete set is created again."""
    made = Certificate(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    if all(path.exists() for path in (made.authority, made.chain, made.key)):
        return made
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority_key = folder / "ca.key"
    request, extra = folder / "server.csr", folder / "server.ext"
    extra.write_text(f"{_NAMES}\nextendedKeyUsage=serverAuth\nbasicConstraints=CA:FALSE\n")
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", _DAYS),
        *("-subj", "/CN=Stoker twin authority", "-keyout", str(authority_key), "-out", str(made.authority)),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
    )
    _openssl(
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=Stoker twin"),
        *("-keyout", str(made.key), "-out", str(request)),
    )
    _openssl(
        *("x509", "-req", "-in", str(request), "-CA", str(made.authority), "-CAkey", str(authority_key)),
        *("-CAcreateserial", "-days", _DAYS, "-extfile", str(extra), "-out", str(made.chain)),
    )
    for path in (authority_key, request, extra):  # nothing else is ever signed with it
        path.unlink()
    made.key.chmod(0o600)
    return made


def _openssl(*arguments: str) -> None:
    try:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)
    except FileNotFoundError:
        raise TwinFailed(
            "the twin requires the program `openssl` for its certificate, but it was not found",
            hint="apt-get install openssl",
        ) from None
    except subprocess.CalledProcessError as error:
        raise TwinFailed(f"openssl {arguments[0]} failed: {error.stderr.decode(errors='replace').strip()}") from error


log = logging.getLogger("stoker.twin")

_IDLE_S = 300.0


@dataclass(frozen=True, slots=True)
class WebRequest:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]  # by names in lower case
    body: bytes
    base: str  # `https://127.0.0.1:port`, as the client wrote it


@dataclass(frozen=True, slots=True)
class Response:
    status: int = 200
    body: Any = None  # JSON; None: no body
    headers: Mapping[str, str] = field(default_factory=dict)
    wait_s: float = 0.0  # before it is sent
    lost: bool = False  # the connection is closed instead


Application = Callable[[WebRequest], Response]


class WebServer:
    """Listens from the start; answers from `start` on. Port 0 means any free port."""

    def __init__(
        self, application: Application, certificate: Certificate, port: int = 0, blob: Callable[[], str] = str
    ) -> None:
        """`blob` says where the Blob service is, for requests that are meant for an account of it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.chain, certificate.key)
        self._server = _Threads(("127.0.0.1", port), _WebHandler)
        self._server.context = context
        self._server.application = application
        self._server.blob = blob
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="twin-web", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Threads(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    context: ssl.SSLContext
    application: Application
    blob: Callable[[], str]

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the connection's own thread: a client that never completes its TLS handshake blocks no other."""
        request.settimeout(_IDLE_S)
        try:
            wrapped = self.context.wrap_socket(request, server_side=True)
        except (ssl.SSLError, OSError):
            return
        super().finish_request(wrapped, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  # the signature is theirs
        log.debug("connection lost", exc_info=True)


class _WebHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body are sent together
    server: _Threads

    def _serve(self) -> None:
        if blobs.is_meant(self.headers.get("Host", "")):
            blobs.pass_on(self, self.server.blob())
            return
        target = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length") or 0))
        query = dict(parse_qsl(target.query, keep_blank_values=True))
        base = f"https://{headers.get('host', 'localhost')}"
        request = WebRequest(self.command, unquote(target.path), query, headers, body, base)
        try:
            response = self.server.application(request)
        except Exception as error:
            log.exception("%s %s", self.command, self.path)
            told = {"code": "InternalServerError", "message": f"the twin itself failed: {error!r}"}
            response = Response(500, {"error": told})
        time.sleep(response.wait_s)
        if response.lost:
            self._hang_up()
        else:
            self._send(response)

    # The names are the standard library's.
    do_GET = do_HEAD = do_PUT = do_PATCH = do_POST = do_DELETE = _serve  # noqa: N815

    def _send(self, response: Response) -> None:
        data = b"" if response.body is None else json.dumps(response.body).encode()
        self.send_response(response.status)
        for name, value in response.headers.items():
            self.send_header(name, value)
        if data:
            self.send_header("Content-Type", "application/json; charset=utf-8")
        if response.status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _hang_up(self) -> None:
        """Like a broken network: no byte of a response."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        pass
