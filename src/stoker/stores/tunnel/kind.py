"""The kind `tunnel`: only nodes open it, with the token that their server has made. Standard library only: agents carry
this file."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from stoker.errors import BadInput, StoreDenied
from stoker.stores import Store
from stoker.stores.access import Access, Credential, Route
from stoker.stores.kinds import Grant, Location, StoreKind
from stoker.stores.tunnel.client import TunnelStore, socket_of

_SAFE = "/:@!$&'()*+,;=~"
_SERVER = re.compile(r"[A-Za-z0-9._-]+")


class TunnelKind(StoreKind):
    """URLs are `tunnel://SERVER/FOLDER`: the tag of the server, and the path on its computer, or the URL of a store
    that it can reach."""

    name = "tunnel"
    schemes = ("tunnel",)
    forms = ()  # nobody writes one
    carried = ("stoker.stores.tunnel.client",)

    def locate(self, url: str) -> Location:
        parts = urlsplit(url)
        if not _SERVER.fullmatch(parts.netloc) or not parts.path.startswith("/"):
            raise ValueError("expected `tunnel://SERVER/FOLDER`")
        return Location(self.name, endpoint=parts.netloc, prefix=unquote(parts.path))

    def spell(self, location: Location) -> str:
        return f"tunnel://{location.endpoint}{quote(location.prefix, safe=_SAFE)}"

    def endpoint(self, location: Location) -> str:
        return ""

    def open_on_node(self, route: Route, place: Location) -> Store:
        return TunnelStore(route, socket_of(Path.home(), place.endpoint))

    def open(self, location: Location, credential: Credential) -> Store:
        raise BadInput(f"`{location.url}` can be opened by a node only", hint="use the folder itself: file:///FOLDER")

    def open_route(self, route: Route, place: Location) -> Store:
        return self.open_on_node(route, place)

    def grant(self, location: Location, credential: Credential, part: Grant) -> Access:
        raise StoreDenied(f"`{location.url}` cannot be shared further")
