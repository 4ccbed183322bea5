"""The metadata service on a connection: HTTP around what `metadata` answers."""

from __future__ import annotations

import socket
from http.server import BaseHTTPRequestHandler
from typing import Any

from stoker.twin.machines.metadata import Question, Subject, answer

_LARGEST = 1 << 20


def serve(subject: Subject, connection: socket.socket) -> None:
    """Answers until the other side has no more questions."""
    _Handler(connection, subject)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "IMDS/150.870.65.1854"
    sys_version = ""

    def __init__(self, connection: socket.socket, subject: Subject) -> None:
        self._subject = subject
        super().__init__(connection, ("", 0), None)  # type: ignore[arg-type]  # there is no server around it

    def do_GET(self) -> None:  # the name that http.server looks for
        length = min(int(self.headers.get("Content-Length") or 0), _LARGEST)
        question = Question(self.command, self.path, dict(self.headers.items()), self.rfile.read(length))
        reply = answer(question, self._subject)
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.kind)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    do_POST = do_GET  # noqa: N815
    do_PUT = do_GET  # noqa: N815

    def log_message(self, format: str, *arguments: Any) -> None:
        """Says nothing: every machine asks every second."""
