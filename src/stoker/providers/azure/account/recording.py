"""Requests to Azure and its responses: recorded without secrets while a switch is on, and replayed."""

from __future__ import annotations

import base64
import json
import os
import re
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from stoker.errors import ProviderFailed
from stoker.providers.azure.account.account import Account
from stoker.providers.azure.account.scrubbing import CLIENT, SUBSCRIPTION, TENANT, Scrubber

SWITCH = "azure.record"  # next to azure.json: while it exists, it names the file to write to
_HEADERS = ("azure-asyncoperation", "location", "retry-after", "date", "content-type", "x-ms-error-code")


class TrafficRecorder:
    """Reads the switch at each request, so that a running server need not be restarted."""

    def __init__(self, account: Account) -> None:
        self._switch = Path(account.switch) if account.switch else None
        self._scrub = Scrubber(account.subscription, account.tenant, account.client)

    @property
    def on(self) -> bool:
        return self._switch is not None and self._switch.exists()

    def note(
        self, asked: tuple[str, str, Any], status: int, headers: Mapping[str, str], answer: Any, took_s: float = 0.0
    ) -> None:
        """`asked` is method, URL and body. If the file cannot be written, only the line is lost."""
        method, url, body = asked
        scrub, path = self._scrub, urlsplit(url).path
        line = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "method": method,
            "url": scrub.text(url),
            "body": scrub.body(parsed(body), path),
            "status": status,
            "headers": {name: scrub.text(value) for name, value in headers.items() if name.lower() in _HEADERS},
            "answer": scrub.body(parsed(answer), path),
            "took_s": round(took_s, 3),
        }
        with suppress(OSError, ValueError):
            self._write(f"{json.dumps(line, ensure_ascii=False)}\n".encode())

    def _write(self, line: bytes) -> None:
        """Writes a whole line at once: a server and a command may write to the same file."""
        assert self._switch is not None
        target = self._switch.read_text(encoding="utf-8").strip()
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


@contextmanager
def recording(folder: Path, file: Path) -> Iterator[None]:
    """Meanwhile, all requests to Azure, by this program and by the server, are recorded to the file."""
    switch = folder / SWITCH
    file.unlink(missing_ok=True)
    file.touch(mode=0o600)
    switch.write_text(str(file.absolute()), encoding="utf-8")
    try:
        yield
    finally:
        switch.unlink(missing_ok=True)


def parsed(body: Any) -> Any:
    """JSON if it parses; else the text."""
    if isinstance(body, bytes | bytearray):
        body = bytes(body).decode(errors="replace")
    if not isinstance(body, str):
        return body
    try:
        return json.loads(body) if body.strip() else None
    except ValueError:
        return body


# Ids and random names differ from run to run; the requests do not.
_ACCIDENTAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{8,}", re.IGNORECASE)
IDS = {"subscription": SUBSCRIPTION, "tenant": TENANT, "client": CLIENT}  # of the account in a recording

Line = dict[str, Any]


class TrafficReplay:
    """Requests of the same form get the responses in recorded order; the last one is repeated."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._answers: dict[str, deque[Line]] = defaultdict(deque)
        for line in file.read_text(encoding="utf-8").splitlines():
            told: Line = json.loads(line)
            self._answers[form(told["method"], told["url"])].append(told)

    def answer(self, method: str, url: str) -> Line:
        known = self._answers.get(form(method, url))
        if not known:
            raise ProviderFailed(f"{self._file} has no response to {form(method, url)}")
        return known.popleft() if len(known) > 1 else known[0]


def form(method: str, url: str) -> str:
    """The request without what varies: method, path without ids, version and filter."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    asked = "&".join(f"{name}={value}" for name in ("api-version", "$filter") for value in query.get(name, ()))
    return f"{method.upper()} {_ACCIDENTAL.sub('*', parts.path.lower())}?{_ACCIDENTAL.sub('*', asked)}"


def answered(line: Line) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body. The Date header is now: the clocks were compared during recording."""
    headers = {**line["headers"], "Date": formatdate(time.time(), usegmt=True)}
    headers = {name: value for name, value in headers.items() if name.lower() != "retry-after"}
    answer = line["answer"]
    return int(line["status"]), headers, b"" if answer is None else json.dumps(answer).encode()


class ReplayCredential:
    """A credential that satisfies the SDKs."""

    def get_token(self, *_scopes: str, **_more: Any) -> Any:
        from azure.core.credentials import AccessToken

        claims = json.dumps({"oid": CLIENT, "tid": TENANT, "appid": CLIENT}).encode()
        body = base64.urlsafe_b64encode(claims).decode().rstrip("=")
        return AccessToken(f"e30.{body}.", int(time.time()) + 3600)
