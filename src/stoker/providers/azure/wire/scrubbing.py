"""Takes out of requests and answers what nobody else should read: secrets by their names and forms, ids by stand-ins.

Ids stay ids: the same one becomes the same stand-in everywhere, so that what belongs together can still be seen, and a
client can still read the answers. Pure.
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
# Fields whose value is nobody's business, at any depth, in lower case.
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


class Scrubber:
    """The account's own ids have stand-ins that are known; that of another depends on it and on the account alone."""

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
        """A JSON value. `path` is that of the request: the bodies of some say nothing but secrets."""
        if path.lower().endswith(("/listkeys", "/regeneratekey", "/runcommand", "/listsecrets", "/listaccountsas")):
            return "<hidden>" if value else value
        return self._value(value)

    def _value(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {self.text(str(key)): self._field(str(key), one) for key, one in value.items()}
        if isinstance(value, list):
            return [self._value(one) for one in value]
        return self.text(value) if isinstance(value, str) else value

    def _field(self, key: str, value: Any) -> Any:
        if key.lower() not in _HIDDEN or value in (None, "", [], {}):
            return self._value(value)
        if isinstance(value, Mapping) and set(value) == {"type"}:  # the declaration of a parameter, not its value
            return dict(value)
        if isinstance(value, str) and value.startswith("[") and value.endswith("]"):  # an expression of a template
            return self.text(value)
        return "<hidden>"

    def _stand_in(self, id: str) -> str:
        lowered = id.lower()
        if lowered in (SUBSCRIPTION, TENANT, CLIENT):
            return id
        digest = hashlib.sha256(f"{self._salt}/{lowered}".encode()).hexdigest()
        return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-8{digest[17:20]}-{digest[20:32]}"
