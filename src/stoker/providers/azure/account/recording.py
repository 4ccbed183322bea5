"""Requests to Azure and its responses: recorded without secrets while a switch is on, and replayed."""

from __future__ import annotations

import base64
import hashlib
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


SUBSCRIPTION = "11111111-1111-1111-1111-111111111111"
TENANT = "22222222-2222-2222-2222-222222222222"
CLIENT = "33333333-3333-3333-3333-333333333333"

_GUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE)
_FORMS = (
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"), "<token>"),
    (re.compile(r"(?i)\b(sig|signature|code|access_token|client_secret|password)=[^&\s\"']+"), r"\1=<secret>"),
    (re.compile(r"(?i)\b(AccountKey|SharedAccessKey)=[^;\s\"']+"), r"\1=<secret>"),
    (re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{86}=="), "<key>"),
    (re.compile(r"(?i)\bBearer\s+\S+"), "Bearer <token>"),
    (re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "<mail>"),
)
# Fields whose value is private, at any depth, in lower case.
_HIDDEN = frozenset(
    [
        "customdata",
        "userdata",
        "adminpassword",
        "keydata",
        "password",
        "secret",
        "clientsecret",
        "client_secret",
        "secrettext",
        "accesstoken",
        "access_token",
        "refresh_token",
        "protectedsettings",
        "commandtoexecute",
        "script",
        "primarykey",
        "secondarykey",
        "connectionstring",
        "sastoken",
        "accountsastoken",
        "servicesastoken",
        "contactemails",
    ]
)
# All that a template may say of a hidden value without saying the value: any other expression may contain it.
_REFERENCE = re.compile(r"\[(parameters|variables)\('[A-Za-z0-9_-]{1,64}'\)\]")
_SECURE = frozenset(["securestring", "secureobject"])
_TYPES = _SECURE | {"string", "int", "bool", "object", "array"}


class Scrubber:
    """The account's own ids have fixed stand-ins; that of any other id depends only on it and on the account."""

    def __init__(self, subscription: str, tenant: str = "", client: str = "") -> None:
        named = {subscription.lower(): SUBSCRIPTION, tenant.lower(): TENANT, client.lower(): CLIENT}
        self._known = {id: instead for id, instead in named.items() if id}
        self._salt = subscription.lower()

    def text(self, text: str) -> str:
        for form, instead in _FORMS:
            text = form.sub(instead, text)
        for id, instead in self._known.items():
            text = re.sub(re.escape(id), instead, text, flags=re.IGNORECASE)
        return _GUID.sub(lambda found: self._stand_in(found[0]), text)

    def body(self, value: Any, path: str = "") -> Any:
        """A JSON value. `path` is that of the request: the bodies of some consist of secrets."""
        if path.lower().endswith(("/listkeys", "/regeneratekey", "/runcommand", "/listsecrets", "/listaccountsas")):
            return "<hidden>" if value else value
        return self._value(value, _HIDDEN | _declared_secure(value))

    def _value(self, value: Any, hidden: frozenset[str]) -> Any:
        if isinstance(value, Mapping):
            return {self.text(str(key)): self._field(str(key), one, hidden) for key, one in value.items()}
        if isinstance(value, list):
            return [self._value(one, hidden) for one in value]
        return self.text(value) if isinstance(value, str) else value

    def _field(self, key: str, value: Any, hidden: frozenset[str]) -> Any:
        if key.lower() not in hidden or value in (None, "", [], {}):
            return self._value(value, hidden)
        return value if _says_no_value(value) else "<hidden>"

    def _stand_in(self, id: str) -> str:
        lowered = id.lower()
        if lowered in (SUBSCRIPTION, TENANT, CLIENT):
            return id
        digest = hashlib.sha256(f"{self._salt}/{lowered}".encode()).hexdigest()
        return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-8{digest[17:20]}-{digest[20:32]}"


def _declared_secure(value: Any) -> frozenset[str]:
    """Names of the parameters that a template anywhere in a body calls secure, in lower case."""
    if isinstance(value, list):
        return frozenset[str]().union(*map(_declared_secure, value))
    if not isinstance(value, Mapping):
        return frozenset()
    found = (str(name).lower() for name, one in value.items() if isinstance(one, Mapping) and _type(one) in _SECURE)
    return frozenset(found).union(*map(_declared_secure, value.values()))


def _says_no_value(value: Any) -> bool:
    """The declaration of a parameter, or a reference to one."""
    if isinstance(value, Mapping):
        return set(value) == {"type"} and _type(value) in _TYPES
    return isinstance(value, str) and bool(_REFERENCE.fullmatch(value))


def _type(declaration: Mapping[str, Any]) -> str:
    return str(declaration.get("type", "")).lower()


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
