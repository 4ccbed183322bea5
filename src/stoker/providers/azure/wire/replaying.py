"""Responses from a recording instead of from Azure: turns a problem seen elsewhere into a test."""

from __future__ import annotations

import base64
import json
import re
import time
from collections import defaultdict, deque
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from stoker.errors import ProviderFailed
from stoker.providers.azure.wire.scrubbing import CLIENT, SUBSCRIPTION, TENANT

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
