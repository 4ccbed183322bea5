"""The instance metadata service of a machine: its facts, its scheduled events, a token of its identity, over HTTP."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

INSTANCE_VERSIONS = (
    "2017-04-02", "2017-08-01", "2017-12-01", "2018-02-01", "2018-04-02", "2018-10-01", "2019-02-01", "2019-03-11",
    "2019-04-30", "2019-06-01", "2019-06-04", "2019-08-01", "2019-08-15", "2019-11-01", "2020-06-01", "2020-07-15",
    "2020-09-01", "2020-10-01", "2020-12-01", "2021-01-01", "2021-02-01", "2021-03-01", "2021-05-01", "2021-10-01",
    "2021-11-01", "2021-11-15", "2021-12-13", "2023-07-01", "2023-11-15",
)  # fmt: skip
EVENT_VERSIONS = ("2017-08-01", "2017-11-01", "2019-01-01", "2019-04-01", "2019-08-01", "2020-07-01")
TOKEN_VERSIONS = ("2018-02-01", "2019-08-01")
NO_EVENTS: Mapping[str, Any] = {"DocumentIncarnation": 1, "Events": []}


@dataclass(frozen=True, slots=True)
class Question:
    verb: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class MetadataReply:
    status: int
    body: bytes
    kind: str = "application/json; charset=utf-8"


@dataclass(frozen=True, slots=True)
class MetadataSubject:
    """The machine in question. `wake_events` returns when the first response about events may be sent."""

    instance: Mapping[str, Any]
    events: Callable[[], Mapping[str, Any]]
    acknowledge: Callable[[Sequence[str]], None]
    token: Callable[..., Mapping[str, Any]]  # for a resource, and an identity where one is named
    wake_events: Callable[[], None]


def instance_document(facts: Mapping[str, Any], address: str) -> dict[str, Any]:
    octets = [int(part) for part in address.split(".")]
    interface = {
        "ipv4": {
            "ipAddress": [{"privateIpAddress": address, "publicIpAddress": ""}],
            "subnet": [{"address": f"{octets[0]}.{octets[1]}.{octets[2]}.0", "prefix": "24"}],
        },
        "ipv6": {"ipAddress": []},
        "macAddress": "000D3A" + "".join(f"{octet:02X}" for octet in octets[1:]),
    }
    return {"compute": dict(facts), "network": {"interface": [interface]}}


def answer(question: Question, subject: MetadataSubject) -> MetadataReply:
    parts = urlsplit(question.target)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    headers = {name.lower(): value for name, value in question.headers.items()}
    if headers.get("metadata", "").lower() != "true":
        return _refuse(400, "Bad request. Required metadata header not specified")
    if "x-forwarded-for" in headers:
        return _refuse(400, "Bad request. Forwarded requests are not answered")
    path = parts.path.rstrip("/").lower()
    if path == "/metadata/versions":
        return _json({"apiVersions": list(INSTANCE_VERSIONS)})
    if path == "/metadata/instance" or path.startswith("/metadata/instance/"):
        return _versioned(query, INSTANCE_VERSIONS) or _instance(question.verb, parts.path, query, subject)
    if path == "/metadata/scheduledevents":
        return _versioned(query, EVENT_VERSIONS) or _events(question, subject)
    if path == "/metadata/identity/oauth2/token":
        return _versioned(query, TOKEN_VERSIONS) or _token(query, subject)
    return _refuse(404, "Not found")


def _versioned(query: Mapping[str, str], known: Sequence[str]) -> MetadataReply | None:
    if query.get("api-version") in known:
        return None
    what = "was not specified in the request" if "api-version" not in query else "is invalid or not supported"
    newest = list(reversed(known[-3:]))
    return _json({"error": f"Bad request. api-version {what}", "newest-versions": newest}, 400)


def _instance(verb: str, path: str, query: Mapping[str, str], subject: MetadataSubject) -> MetadataReply:
    if verb != "GET":
        return _refuse(405, "Method not allowed")
    found: Any = subject.instance
    for name in path.strip("/").split("/")[2:]:
        try:
            found = found[int(name)] if isinstance(found, list) else found[name]
        except (KeyError, IndexError, ValueError, TypeError):
            return _refuse(404, "Not found")
    if query.get("format") == "text":
        if isinstance(found, dict | list):
            return _refuse(400, "Bad request. Text is for single values")
        return MetadataReply(200, str(found).encode(), "text/plain; charset=utf-8")
    return _json(found)


def _events(question: Question, subject: MetadataSubject) -> MetadataReply:
    subject.wake_events()
    if question.verb == "GET":
        return _json(subject.events())
    if question.verb != "POST":
        return _refuse(405, "Method not allowed")
    try:
        asked = json.loads(question.body)
        wanted = [str(each["EventId"]) for each in asked["StartRequests"]]
        incarnation = asked.get("DocumentIncarnation")
    except (ValueError, KeyError, TypeError, AttributeError):
        return _refuse(400, "Bad request. Expected StartRequests with an EventId each")
    now = subject.events()
    known = {str(each["EventId"]).lower() for each in now.get("Events", [])}
    if incarnation is not None and incarnation != now.get("DocumentIncarnation"):
        return _refuse(400, "Bad request. The document has changed")
    if missing := [each for each in wanted if each.lower() not in known]:
        return _refuse(400, f"Bad request. Unknown EventId {missing[0]}")
    subject.acknowledge(wanted)
    return MetadataReply(200, b"")


def _token(query: Mapping[str, str], subject: MetadataSubject) -> MetadataReply:
    if not query.get("resource"):
        return _json(
            {"error": "invalid_request", "error_description": "Required query variable 'resource' is missing"}, 400
        )
    named = [query[word] for word in ("msi_res_id", "mi_res_id", "client_id", "object_id") if query.get(word)]
    try:
        return _json(subject.token(query["resource"], *named[:1]))
    except LookupError as error:
        return _json({"error": "invalid_request", "error_description": str(error.args[0])}, 400)


def _refuse(status: int, why: str) -> MetadataReply:
    return _json({"error": why}, status)


def _json(data: Any, status: int = 200) -> MetadataReply:
    return MetadataReply(status, json.dumps(data).encode())


_LARGEST = 1 << 20


def serve(subject: MetadataSubject, connection: socket.socket) -> None:
    """Answers until the other side closes the connection."""
    _MetadataHandler(connection, subject)


class _MetadataHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "IMDS/150.870.65.1854"
    sys_version = ""

    def __init__(self, connection: socket.socket, subject: MetadataSubject) -> None:
        self._subject = subject
        super().__init__(connection, ("", 0), None)  # type: ignore[arg-type]  # there is no server around it

    def do_GET(self) -> None:  # the name that http.server expects
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
        """Logs nothing: every machine sends a request every second."""
