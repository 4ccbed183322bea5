"""The rights of a credential for Azure Blob: an account key, a SAS, a login, or none; and tokens made from it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qs, urlencode, urlsplit

from stoker.errors import BadInput
from stoker.stores.azure.client import API_VERSION
from stoker.stores.credential import NONE, Credential
from stoker.stores.kinds import Location

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
