"""The kind `folder`: a folder of this computer. Standard library only: agents carry this file."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from stoker.stores import Store
from stoker.stores.access import Access, Credential, Route
from stoker.stores.folder.store import FolderStore
from stoker.stores.kinds import Grant, Location, StoreKind

_SAFE = "/:@!$&'()*+,;=~"


class FolderKind(StoreKind):
    name = "folder"
    schemes = ("", "file")
    forms = ("file:///FOLDER",)
    local = True
    carried = ("stoker.stores.folder.store",)
    advice = dict.fromkeys(
        ("write", "list", "read", "run folder", "delete"), "check the permissions of the folder: `ls -ld`"
    )

    def locate(self, url: str) -> Location:
        path = unquote(urlsplit(url).path) if "://" in url else url
        if not path.startswith("/"):
            raise ValueError("the path of a folder starts with `/`")
        return Location(self.name, prefix=path.rstrip("/") or "/")

    def spell(self, location: Location) -> str:
        return f"file://{quote(location.prefix.removesuffix('/'), safe=_SAFE)}"

    def endpoint(self, location: Location) -> str:
        return ""

    def open(self, location: Location, credential: Credential) -> Store:
        return FolderStore(Path(location.prefix))

    def open_on_node(self, route: Route, place: Location) -> Store:
        """A run resumes from what a node commits. Its orders were there: so a missing root is unavailable."""
        return _opened(route, place, durable=True, makes_root=False)

    def open_route(self, route: Route, place: Location) -> Store:
        return _opened(route, place)

    def grant(self, location: Location, credential: Credential, part: Grant) -> Access:
        return Access(tuple(self._route(location.prefix, one, one in part.writes) for one in part.prefixes))

    def _route(self, root: str, prefix: str, writes: bool) -> Route:
        place = f"{root.rstrip('/')}/{prefix}".rstrip("/") or "/"
        return Route(prefix, self.spell(self.locate(place)), "", writes)


def _opened(route: Route, place: Location, *, durable: bool = False, makes_root: bool = True) -> FolderStore:
    keys = Path(place.prefix)
    depth = route.prefix.removesuffix(route.one).count("/")
    whole = keys.parents[depth - 1] if depth else None
    return FolderStore(keys, durable=durable, makes_root=makes_root, part_of=whole)
