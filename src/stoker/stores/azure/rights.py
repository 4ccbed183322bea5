"""The rights of a credential for Azure Blob: an account key, a SAS or a login; tokens made from it, and the parts for a
node."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import importlib
import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from stoker.errors import BadInput, StoreDenied
from stoker.stores.access import NONE, Access, Credential, Route
from stoker.stores.azure.client import API_VERSION, sas_expires_at
from stoker.stores.azure.containers import BlobContainers, check_room, container_of
from stoker.stores.kinds import Location
from stoker.stores.objects.wire import Request, Wire

READ = "rl"
READ_BLOB = "r"
WRITE = "racwdl"
_EARLY_S = 900  # a token is valid from some time ago, since clocks differ


@dataclass(frozen=True, slots=True)
class AzureRights:
    """One of `key`, `sas` and `login`, or none of them for a public container."""

    key: str = field(default="", repr=False)
    sas: str = field(default="", repr=False)
    login: Credential | None = None

    @property
    def splits(self) -> bool:
        """Whether it can create containers, and tokens for one of them."""
        return bool(self.key or self.login)


def rights(location: Location, credential: Credential) -> tuple[Location, AzureRights]:
    """Returns the location too: a connection string may name another endpoint for the account."""
    values = credential.values
    if credential.kind == "account-key":
        return location, AzureRights(key=_checked_key(values["key"]))
    if credential.kind == "sas":
        return location, AzureRights(sas=_checked_sas(values["token"]))
    if credential.kind == "login":
        return location, AzureRights(login=credential)
    if credential.kind == "connection-string":
        return _from_connection_string(location, values["text"])
    if credential.kind == NONE:
        return location, AzureRights()
    raise BadInput(f"a credential of the kind `{credential.kind}` does not work for `{location.url}`")


def account_sas(location: Location, key: str, for_s: float) -> str:
    """For operations on containers themselves: create, list and delete."""
    only = _only(location)
    fields = {"sp": "rwdlac", "ss": "b", "srt": "sco", "se": _text(time.time() + for_s), "sv": API_VERSION}
    order = (location.account, "rwdlac", "b", "sco", "", fields["se"], "", only, API_VERSION, "", "")
    return _signed({**fields, "spr": only}, order, key)


def service_sas(location: Location, key: str, permissions: str, for_s: float, blob: str = "") -> str:
    """For the contents of one container and nothing else, or for one blob in it."""
    fields, place = _service_fields(location, permissions, for_s, blob)
    times = (permissions, fields["st"], fields["se"], place)
    order = (*times, "", "", fields["spr"], API_VERSION, fields["sr"], *[""] * 7)
    return _signed(fields, order, key)


def delegated_sas(
    location: Location, delegation: Mapping[str, str], permissions: str, for_s: float, blob: str = ""
) -> str:
    """The same with a user delegation key of a login, by its field names on the wire."""
    own = {
        "skoid": delegation["SignedOid"],
        "sktid": delegation["SignedTid"],
        "skt": delegation["SignedStart"],
        "ske": delegation["SignedExpiry"],
        "sks": delegation["SignedService"],
        "skv": delegation["SignedVersion"],
    }
    fields, place = _service_fields(location, permissions, for_s, blob)
    times = (permissions, fields["st"], fields["se"], place)
    order = (*times, *own.values(), *[""] * 4, fields["spr"], API_VERSION, fields["sr"], *[""] * 7)
    return _signed({**fields, **own}, order, delegation["Value"])


def _service_fields(location: Location, permissions: str, for_s: float, blob: str) -> tuple[dict[str, str], str]:
    now = time.time()
    fields = {"sp": permissions, "st": _text(now - _EARLY_S), "se": _text(now + for_s), "sv": API_VERSION}
    place = f"/blob/{location.account}/{location.container}" + (f"/{location.prefix}{blob}" if blob else "")
    return {**fields, "sr": "b" if blob else "c", "spr": _only(location)}, place


def _only(location: Location) -> str:
    """A token is never sent unencrypted, except to an emulator that supports nothing else."""
    return "" if location.endpoint.startswith("http:") else "https"


def sas_writes(sas: str) -> bool:
    return {"r", "w"} <= set(parse_qs(sas).get("sp", [""])[0])


def _text(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def _signed(fields: Mapping[str, str], order: tuple[str, ...], key: str) -> str:
    digest = hmac.new(base64.b64decode(key), "\n".join(order).encode(), hashlib.sha256).digest()
    given = {name: value for name, value in fields.items() if value}
    return urlencode({**given, "sig": base64.b64encode(digest).decode()})


def _checked_key(key: str) -> str:
    try:
        base64.b64decode(key.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise BadInput("the account key is not base64", hint="copy it again: az storage account keys list") from None
    return key.strip()


def _checked_sas(token: str) -> str:
    """Also from a whole SAS URL, as the portal shows it."""
    sas = (urlsplit(token).query if "://" in token else token).strip().lstrip("?")
    if "sig" not in parse_qs(sas):
        raise BadInput("the SAS has no signature (`sig=`)", hint="pass the whole token, in quotes")
    return sas


def _from_connection_string(location: Location, text: str) -> tuple[Location, AzureRights]:
    parts = dict(part.partition("=")[::2] for part in text.strip().strip(";").split(";") if part)
    account, endpoint = parts.get("AccountName", location.account), parts.get("BlobEndpoint", "").rstrip("/")
    if account != location.account:
        raise BadInput(f"the connection string is for the account `{account}`, but the URL is for `{location.account}`")
    place = replace(location, endpoint=endpoint) if endpoint else location
    if parts.get("AccountKey"):
        return place, AzureRights(key=_checked_key(parts["AccountKey"]))
    if parts.get("SharedAccessSignature"):
        return place, AzureRights(sas=_checked_sas(parts["SharedAccessSignature"]))
    raise BadInput("the connection string has neither an AccountKey nor a SharedAccessSignature")


_SCOPE = "https://storage.azure.com/.default"
_AUTHORITY = "https://login.microsoftonline.com"
_RENEWED_EARLY_S = 300.0  # a token is renewed this long before it expires
_HINT = "log in with `az login`, or set tenant, client and secret of a service principal"


class Login:
    """Requests a token once, and again shortly before it expires. Thread-safe."""

    def __init__(self, credential: Credential) -> None:
        self._values = credential.values
        self._authority = credential.values.get("authority", _AUTHORITY)
        self._lock = threading.Lock()
        self._token = ""
        self.expires_at = 0.0

    def token(self) -> str:
        """Raises StoreDenied without a login."""
        with self._lock:
            if time.time() > self.expires_at - _RENEWED_EARLY_S:
                self._token, self.expires_at = self._ask()
            return self._token

    def _ask(self) -> tuple[str, float]:
        if self._values.get("secret"):
            return self._principal()
        return _identity(self._values) or _command()

    def _principal(self) -> tuple[str, float]:
        fields = {"client_id": self._values["client"], "client_secret": self._values["secret"]}
        body = urlencode({**fields, "grant_type": "client_credentials", "scope": _SCOPE}).encode()
        target = f"/{self._values['tenant']}/oauth2/v2.0/token"
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        wire = Wire(self._authority, ca_file=self._values.get("ca_file", ""))
        reply = wire.ask(lambda: Request("POST", target, form, body))
        found = json.loads(reply.body or b"{}")
        if "access_token" not in found:
            said = str(found.get("error_description", f"status {reply.status}")).splitlines()[0]
            raise StoreDenied(f"the login of the service principal failed: {said}", hint=_HINT)
        return str(found["access_token"]), time.time() + float(found.get("expires_in", 3600))


def _identity(values: Mapping[str, str]) -> tuple[str, float] | None:
    """With its own authority where one is named, which the public Azure does not confirm."""
    try:
        identity = importlib.import_module("azure.identity")  # where the user has it; slow to load
    except ImportError:
        return None
    own: dict[str, Any] = {}
    if authority := values.get("authority"):
        own = {"authority": authority, "disable_instance_discovery": True}
    if ca_file := values.get("ca_file"):
        own["connection_verify"] = ca_file
    try:
        found = identity.DefaultAzureCredential(**own, process_timeout=_LOGIN_S).get_token(_SCOPE)
    except Exception as error:  # every kind of login has its own errors
        raise StoreDenied(f"not logged in to Azure: {reason(str(error))}", hint=_HINT) from error
    return str(found.token), float(found.expires_on)


def reason(said: str) -> str:
    """Azure's own, or that of its CLI: the SDK lists what each kind of login lacks, under a line that says nothing."""
    found = _DIRECTORY.search(said) or _CLI.search(said)
    return found[1].strip() if found else (said.strip() or "no reason given").splitlines()[0]


_DIRECTORY = re.compile(r"(AADSTS\d+[^\r\n]*?)(?=\s*Trace ID|\s*Correlation ID|[\r\n]|$)")
_CLI = re.compile(r"AzureCliCredential: ([^\r\n]+)")
_LOGIN_S = 60  # for the Azure CLI to give a token: on a busy computer, starting it takes longer than the SDK's 10 s


def _command() -> tuple[str, float]:
    az = shutil.which("az")
    if not az:
        raise StoreDenied("not logged in to Azure: found neither azure-identity nor the Azure CLI", hint=_HINT)
    argv = [az, "account", "get-access-token", "--resource", "https://storage.azure.com/", "--output", "json"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_LOGIN_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreDenied(f"the Azure CLI has no token: {error}", hint=_HINT) from error
    if done.returncode:
        raise StoreDenied(
            f"the Azure CLI has no token: {(done.stderr.strip() or 'no output').splitlines()[-1]}", hint=_HINT
        )
    found = json.loads(done.stdout)
    return str(found["accessToken"]), float(found.get("expires_on") or time.time() + 1800)


Sign = Callable[[Location, str, str], str]  # for a container: permissions, and one blob; empty: all


def grant_azure(
    location: Location, credential: Credential, *, reads: Sequence[str], writes: Sequence[str], for_s: float
) -> Access:
    place, held = rights(location, credential)
    prefixes = sorted({*reads, *writes})
    if not held.splits:
        return _as_it_is(place, held, prefixes, writes)
    check_room(place)
    sign = _signer(place, held, for_s)
    routes = []
    for prefix in prefixes:
        where, inside = container_of(place, prefix)
        token = sign(where, *_rights_for(prefix, inside, writes))
        routes.append(Route(prefix, _below(where, inside), token, prefix in writes))
    return Access(tuple(routes), time.time() + for_s)


def _rights_for(prefix: str, inside: str, writes: Sequence[str]) -> tuple[str, str]:
    """A prefix that does not end with `/` is one blob, and read-only."""
    if prefix in writes:
        return WRITE, ""
    return (READ_BLOB, inside) if prefix and not prefix.endswith("/") else (READ, "")


def _signer(place: Location, held: AzureRights, for_s: float) -> Sign:
    if held.key:
        return lambda where, permissions, blob: service_sas(where, held.key, permissions, for_s, blob)
    assert held.login
    delegation = _delegation(place, Login(held.login), for_s)
    return lambda where, permissions, blob: delegated_sas(where, delegation, permissions, for_s, blob)


def _delegation(place: Location, login: Login, for_s: float) -> dict[str, str]:
    """A key with which a login can sign, for at most seven days."""
    account = BlobContainers(place, lambda: ("", {"Authorization": f"Bearer {login.token()}"}))
    now = time.time()
    start, end = (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now + part)) for part in (-900, for_s + 900))
    body = f'<?xml version="1.0" encoding="utf-8"?><KeyInfo><Start>{start}</Start><Expiry>{end}</Expiry></KeyInfo>'
    answer = account.ask_xml("restype=service&comp=userdelegationkey", body.encode())
    return {one.tag: one.text or "" for one in answer}


def _as_it_is(place: Location, held: AzureRights, prefixes: Sequence[str], writes: Sequence[str]) -> Access:
    """A SAS cannot make another one: the node gets this one, whose end and rights its maker chose."""
    may_write = bool(held.sas) and sas_writes(held.sas)
    if not may_write and writes:
        raise StoreDenied(f"the credential for `{place.url}` only reads, and `{next(iter(writes))}` is to be written")
    routes = tuple(Route(prefix, _below(place, prefix), held.sas, prefix in writes) for prefix in prefixes)
    return Access(routes, sas_expires_at(held.sas))


def _below(location: Location, prefix: str) -> str:
    inside = location.prefix + prefix
    return Location(location.kind, location.endpoint, location.account, location.container, inside).url
