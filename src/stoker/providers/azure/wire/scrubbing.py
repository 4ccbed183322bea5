"""Removes secrets from requests and responses, by name and form, and replaces ids by stand-ins.

The same id becomes the same stand-in everywhere, so that relations stay visible and a client can still parse the
responses. Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

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
