"""What a machine is told: its custom data as a plan for cloud-init, and its metadata service."""

from __future__ import annotations

import base64
import binascii
import email
import gzip
import json
import shlex
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

Plan = dict[str, Any]

_KNOWN = {"bootcmd", "write_files", "users", "ssh_authorized_keys", "runcmd", "hostname", "output", "final_message"}
_ADMINISTRATOR = "azureuser"  # whose keys they are where `users` names nobody


def plan(custom_data: bytes) -> Plan:
    raw = base64.b64encode(custom_data).decode()  # kept on the disk, as on a real VM
    made: Plan = {"bootcmd": "", "files": [], "users": [], "scripts": {}, "problems": [], "raw": raw}
    try:
        _add_part(made, gzip.decompress(custom_data) if custom_data[:2] == b"\x1f\x8b" else custom_data)
    except (ValueError, OSError, EOFError, TypeError, AttributeError, KeyError) as error:
        made["problems"].append(f"custom data: {error}")
    return made


def _add_part(made: Plan, data: bytes) -> None:
    text = data.decode("utf-8", errors="replace")
    if text.startswith("#cloud-config"):
        _add_config(made, text)
    elif text.startswith("#!"):
        made["scripts"][f"part-{len(made['scripts']) + 1:03}"] = text
    elif text.lower().startswith(("content-type: multipart", "mime-version:", "from nobody")):
        for part in email.message_from_bytes(data).walk():
            if not part.is_multipart():
                _add_part(made, part.get_payload(decode=True))  # type: ignore[arg-type]  # bytes of one part
    elif text.strip():
        made["problems"].append(f"custom data starts with {text.splitlines()[0][:40]!r}, which is not a known format")


def _add_config(made: Plan, text: str) -> None:
    import yaml  # here, because it is slow to import and most of Stoker does not need it

    try:
        config = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        made["problems"].append(f"cloud-config: {' '.join(str(error).split())}")
        return
    if not isinstance(config, dict):
        made["problems"].append(f"cloud-config: found {type(config).__name__}, expected keys and values")
        return
    made["problems"] += [f"cloud-config: `{key}` is not supported" for key in sorted(config.keys() - _KNOWN)]
    if config.get("bootcmd"):
        made["bootcmd"] = _script(config["bootcmd"])
    made["files"] += [_file(entry) for entry in config.get("write_files") or []]
    made["users"] += _users(config)
    if config.get("runcmd"):
        made["scripts"]["runcmd"] = _script(config["runcmd"])


def _script(commands: list[Any]) -> str:
    """One shell script, as in cloud-init: `cd` in one entry affects the next, and a failure stops nothing."""
    lines = [shlex.join(map(str, entry)) if isinstance(entry, list) else str(entry) for entry in commands]
    return "#!/bin/sh\n" + "".join(f"{line}\n" for line in lines)


def _file(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "path": str(entry["path"]),
        "content": base64.b64encode(_content(entry)).decode(),
        "mode": str(entry.get("permissions") or "0644"),
        "owner": str(entry.get("owner") or "root:root"),
        "append": bool(entry.get("append")),
    }


def _content(entry: Mapping[str, Any]) -> bytes:
    content = entry.get("content", b"")
    data = content if isinstance(content, bytes) else str(content).encode()
    encoding = str(entry.get("encoding") or "")
    if "b64" in encoding or "base64" in encoding:
        try:
            data = base64.b64decode(data)
        except binascii.Error as error:
            raise ValueError(f"{entry['path']}: {error}") from error
    return gzip.decompress(data) if encoding.startswith(("gz", "gzip")) else data


def _users(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    users = [_user(entry) for entry in config.get("users") or [] if isinstance(entry, dict)]
    keys = [str(key) for key in config.get("ssh_authorized_keys") or []]
    if keys and not users:
        users = [_user({"name": _ADMINISTRATOR, "sudo": True})]
    return [{**user, "keys": user["keys"] + keys} for user in users]


def _user(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": str(entry["name"]),
        "keys": [str(key) for key in entry.get("ssh_authorized_keys") or []],
        "shell": str(entry.get("shell") or "/bin/bash"),
        "sudo": bool(entry.get("sudo")),
    }


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
