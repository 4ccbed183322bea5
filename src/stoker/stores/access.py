"""What a node or a client gets instead of a credential: tokens for parts of a store, which expire.

Standard library only: agents carry this file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from stoker.errors import BadInput


@dataclass(frozen=True, slots=True)
class Route:
    """Keys with the prefix `prefix` are at `url`, under the rest of their name; a prefix that does not end with `/` is
    the key of one object, at `url` itself. `token` is a SAS for Azure, JSON of temporary keys for S3, and empty for a
    folder."""

    prefix: str
    url: str
    token: str = field(default="", repr=False)
    writes: bool = False

    @property
    def one(self) -> str:
        """The name of its single object; empty where it is for a folder."""
        return self.prefix.rpartition("/")[2]

    def covers(self, key: str) -> bool:
        return key == self.prefix if self.one else key.startswith(self.prefix)


@dataclass(frozen=True, slots=True)
class Access:
    """`expires_at` is in unix seconds; 0 means never."""

    routes: tuple[Route, ...]
    expires_at: float = 0.0

    def route(self, key: str) -> Route | None:
        """The one with the longest prefix."""
        fitting = [route for route in self.routes if route.covers(key)]
        return max(fitting, key=lambda route: len(route.prefix), default=None)

    def to_text(self) -> str:
        """Contains the tokens: for a node's environment, or encrypted."""
        routes = [[route.prefix, route.url, route.token, route.writes] for route in self.routes]
        return json.dumps({"expires_at": self.expires_at, "routes": routes})

    @classmethod
    def from_text(cls, text: str) -> Access:
        try:
            found = json.loads(text)
            routes = tuple(Route(str(p), str(u), str(t), bool(w)) for p, u, t, w in found["routes"])
            return cls(routes, float(found["expires_at"]))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise BadInput("this is not an access to a store") from None
