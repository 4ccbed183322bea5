"""Opens stores: by URL and credential for the server, by an access for clients and nodes.

Standard library only, except for what kinds import when they are used: agents carry this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import BinaryIO

from stoker.errors import StoreDenied
from stoker.stores import Store, Stored
from stoker.stores.access import NOTHING, Access, Credential, Route
from stoker.stores.folder.store import FolderStore
from stoker.stores.kinds import Location, locate, named


def open_store(url: str, credential: Credential | None = None) -> Store:
    """Sends no request. Raises BadInput where URL and credential do not match."""
    location = locate(url)
    return named(location.kind).open(location, credential or NOTHING)


def open_granted(access: Access) -> AccessStore:
    """As `open_access`, for a client: with libraries that need less CPU."""
    return AccessStore(access, _open_route)


def open_access(access: Access) -> AccessStore:
    """With only the standard library."""
    return AccessStore(access)


class AccessStore(Store):
    """Keys that no route covers, and writes where a route only reads, raise StoreDenied."""

    def __init__(self, access: Access, open_route: Callable[[Route], Store] | None = None) -> None:
        self._open = open_route or open_on_node
        self._stores: dict[str, tuple[Route, Store]] = {}
        self.renew(access)

    def renew(self, access: Access) -> None:
        """Continues with new tokens. Calls in progress finish with the old ones."""
        stores: dict[str, tuple[Route, Store]] = {}
        for route in access.routes:
            known = self._stores.get(route.prefix)
            stores[route.prefix] = known if known and known[0] == route else (route, self._open(route))
        self.access = access
        self._stores = stores
        self.url = max(access.routes, key=lambda route: route.writes).url if access.routes else ""

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        store, rest = self._find(key, write=False)
        return store.get(rest, start, size)

    def stream(self, key: str, start: int, size: int) -> Iterator[memoryview]:
        store, rest = self._find(key, write=False)
        return store.stream(rest, start, size)

    def put(self, key: str, data: bytes | BinaryIO, *, only_new: bool = False) -> None:
        store, rest = self._find(key, write=True)
        store.put(rest, data, only_new=only_new)

    def append(self, key: str, offset: int, data: bytes) -> int:
        store, rest = self._find(key, write=True)
        return store.append(rest, offset, data)

    def list(self, prefix: str) -> Iterator[Stored]:
        below = f"{prefix.removesuffix('/')}/" if prefix else ""
        route = self.access.route(below)
        inner = [one for one in self.access.routes if one.prefix.startswith(below) and not one.one and one is not route]
        if route is None and not inner:
            raise StoreDenied(f"this access does not permit listing `{prefix}`")
        if route:
            for stored in self._list(route, below.removeprefix(route.prefix)):
                if self._lists(stored.key) is route:
                    yield stored
        for one in inner:
            for stored in self._list(one, ""):
                if self._lists(stored.key) is one:
                    yield stored

    @property
    def left_out(self) -> int:
        """How many objects listings have omitted, because their names are not keys."""
        return sum(store.left_out for _, store in self._stores.values())

    def delete(self, key: str) -> None:
        store, rest = self._find(key, write=True)
        store.delete(rest)

    def route(self, key: str) -> Route | None:
        return self.access.route(key)

    def path(self, key: str) -> str:
        route = self.access.route(key)
        return self._stores[route.prefix][1].path(route.one or key[len(route.prefix) :]) if route else ""

    @property
    def near(self) -> bool:
        return all(store.near for _, store in self._stores.values())

    def folder(self, prefix: str) -> FolderStore | None:
        """The local folder with the keys of this prefix, under the rest of their names, if it is writable; None where
        the store is something else."""
        route = self.access.route(prefix)
        store = self._stores[route.prefix][1] if route and route.writes and route.prefix == prefix else None
        return store if isinstance(store, FolderStore) else None

    def _lists(self, key: str) -> Route | None:
        """The route that shows a key in a listing: those for one object list nothing."""
        folders = [route for route in self.access.routes if not route.one and route.covers(key)]
        return max(folders, key=lambda route: len(route.prefix), default=None)

    def _list(self, route: Route, prefix: str) -> Iterator[Stored]:
        _, store = self._stores[route.prefix]
        for stored in store.list(prefix):
            yield Stored(route.prefix + stored.key, stored.size_bytes, stored.changed_at, stored.etag)

    def _find(self, key: str, *, write: bool) -> tuple[Store, str]:
        route = self.access.route(key)
        if route is None:
            raise StoreDenied(f"this access does not include `{key}`")
        if write and not route.writes:
            raise StoreDenied(f"this access is read-only: `{key}` cannot be changed")
        return self._stores[route.prefix][1], route.one or key[len(route.prefix) :]


def open_on_node(route: Route) -> Store:
    place = _place_of(route)
    return named(place.kind).open_on_node(route, place)


def _open_route(route: Route) -> Store:
    place = _place_of(route)
    return named(place.kind).open_route(route, place)


def _place_of(route: Route) -> Location:
    """Where its keys are: for one object, its folder."""
    location = locate(route.url)
    if not route.one:
        return location
    path = location.prefix.removesuffix("/").removesuffix(route.one)
    return replace(location, prefix=(path.rstrip("/") or "/") if location.local else path)
