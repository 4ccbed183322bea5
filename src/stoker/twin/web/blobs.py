"""Blobs at addresses such as Azure gives them, `https://ACCOUNT.blob.SUFFIX`: passed on to the Blob service.

Clients that build such an address by themselves take the suffix from `/metadata/endpoints`. The names below
`localhost` resolve by themselves on most computers, and elsewhere with a line in /etc/hosts.
"""

from __future__ import annotations

import re
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

DOMAIN = "core.localhost"
NAME = f"*.blob.{DOMAIN}"  # in the certificate

_HOST = re.compile(rf"[a-z0-9]{{3,24}}\.blob\.{re.escape(DOMAIN)}(:\d+)?$")
_TIMEOUT_S = 300.0
_PIECE = 1 << 20
_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "content-length"}


def suffix(base: str) -> str:
    """What accounts' names are followed by, for a client that reached the twin at this address."""
    return f"{DOMAIN}:{urlsplit(base).port or 443}"


def is_meant(host: str) -> bool:
    return bool(_HOST.match(host))


def pass_on(handler: BaseHTTPRequestHandler, endpoint: str) -> None:
    """With all headers as they came: `Host` is part of what is signed."""
    to = urlsplit(endpoint)
    connection = HTTPConnection(to.hostname or "127.0.0.1", to.port, timeout=_TIMEOUT_S)
    try:
        length = int(handler.headers.get("Content-Length") or 0)
        connection.putrequest(handler.command, handler.path, skip_host=True, skip_accept_encoding=True)
        for name, value in handler.headers.items():
            if name.lower() not in _HOP:
                connection.putheader(name, value)
        if length or handler.headers.get("Content-Length"):
            connection.putheader("Content-Length", str(length))
        connection.endheaders()
        while length > 0 and (piece := handler.rfile.read(min(length, _PIECE))):
            connection.send(piece)
            length -= len(piece)
        _reply(handler, connection.getresponse())
    except (OSError, HTTPException) as error:
        handler.close_connection = True
        handler.send_error(502, f"the Blob service does not answer: {error}")
    finally:
        connection.close()


def _reply(handler: BaseHTTPRequestHandler, answer: HTTPResponse) -> None:
    handler.send_response_only(answer.status, answer.reason)
    for name, value in answer.getheaders():
        if name.lower() not in _HOP:
            handler.send_header(name, value)
    length = answer.getheader("Content-Length")
    data = b"" if length is not None else answer.read()
    if answer.status != 204:
        handler.send_header("Content-Length", length if length is not None else str(len(data)))
    handler.end_headers()
    while length is not None and (piece := answer.read(_PIECE)):
        handler.wfile.write(piece)
    handler.wfile.write(data)
