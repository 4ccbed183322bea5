"""What opens a store: stored by server and client in a keychain, never sent to a node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from stoker.errors import BadInput

NONE = "none"


@dataclass(frozen=True, slots=True)
class Credential:
    """`kind` is one of those of the store's kind: `kinds.check_credential` checks it. Neither its repr nor its messages
    show a value, so that it may appear in a traceback."""

    kind: str = NONE
    values: Mapping[str, str] = field(default_factory=dict, repr=False)

    def to_text(self) -> str:
        """For a keychain."""
        return json.dumps({"kind": self.kind, **self.values})

    @classmethod
    def from_text(cls, text: str) -> Credential:
        try:
            values = json.loads(text)
            kind = values.pop("kind")
            if not all(isinstance(value, str) for value in (kind, *values.values())):
                raise TypeError
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BadInput("this is not a credential stored by Stoker", hint="stoker store add") from None
        return cls(kind, values)


NOTHING = Credential()
