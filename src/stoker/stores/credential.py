"""What opens a store: kept by server and client in a keychain, never sent to a node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from stoker.errors import BadInput


class CredentialKind(StrEnum):
    NONE = "none"
    ACCOUNT_KEY = "account-key"
    SAS = "sas"
    CONNECTION_STRING = "connection-string"
    LOGIN = "login"
    S3_KEY = "s3-key"


# The names of the values each kind has; those behind a `?` may be absent.
VALUES: Mapping[CredentialKind, tuple[str, ...]] = {
    CredentialKind.NONE: (),
    CredentialKind.ACCOUNT_KEY: ("key",),
    CredentialKind.SAS: ("token",),
    CredentialKind.CONNECTION_STRING: ("text",),
    # Without a secret: whoever is logged in on this machine. The authority and its certificate are those of an Azure
    # that is not the public one.
    CredentialKind.LOGIN: ("?tenant", "?client", "?secret", "?authority", "?ca_file"),
    CredentialKind.S3_KEY: ("id", "secret", "?session", "?role"),  # role: the ARN to assume for nodes
}


@dataclass(frozen=True, slots=True)
class Credential:
    """Neither its repr nor its messages show a value, so that it may stand in a traceback."""

    kind: CredentialKind = CredentialKind.NONE
    values: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Raises BadInput where the values are not those of the kind. A kind may be given by its name."""
        object.__setattr__(self, "kind", _kind(self.kind))
        names = {name.lstrip("?") for name in VALUES[self.kind]}
        needed = {name for name in VALUES[self.kind] if not name.startswith("?")}
        for name in sorted(needed):
            if not self.values.get(name):
                raise BadInput(f"a credential of the kind `{self.kind}` needs its {name}")
        if unknown := sorted(set(self.values) - names):
            raise BadInput(f"a credential of the kind `{self.kind}` has no `{unknown[0]}`")

    def to_text(self) -> str:
        """For a keychain."""
        return json.dumps({"kind": self.kind, **self.values})

    @classmethod
    def from_text(cls, text: str) -> Credential:
        try:
            values = json.loads(text)
            kind = values.pop("kind")
            if not all(isinstance(value, str) for value in values.values()):
                raise TypeError
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BadInput("this is not a credential that Stoker has kept", hint="stoker store add") from None
        return cls(kind, values)


def _kind(name: str) -> CredentialKind:
    try:
        return CredentialKind(name)
    except ValueError:
        raise BadInput(f"`{name}` is no kind of credential; there are {', '.join(CredentialKind)}") from None


NOTHING = Credential()
