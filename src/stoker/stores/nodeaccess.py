"""The store as a node sees it: each key by the route its access gives. Agents carry it: standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from stoker.errors import StoreDenied
from stoker.stores import Store, Stored
from stoker.stores.access import Access, Route
from stoker.stores.folder import FolderStore
from stoker.stores.location import StoreKind, locate
from stoker.stores.streaming import stream


def open_access(access: Access) -> AccessStore:
    return AccessStore(access)


class AccessStore:
    """Keys that no route covers, and writes where a route only reads, raise StoreDenied."""

    def __init__(self, access: Access, open_route: Callable[[Route], Store] | None = None) -> None:
        self._open = open_route or open_by_itself
        self._stores: dict[str, tuple[Route, Store]] = {}
        self.renew(access)

    def renew(self, access: Access) -> None:
        """Goes on with new tokens. Calls under way finish with the old ones."""
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
        return stream(store, rest, start, size)

    def put(self, key: str, data: bytes | BinaryIO, *, only_new: bool = False) -> None:
        store, rest = self._find(key, write=True)
        store.put(rest, data, only_new=only_new)

    def append(self, key: str, offset: int, data: bytes) -> int:
        store, rest = self._find(key, write=True)
        return store.append(rest, offset, data)

    def list(self, prefix: str) -> Iterator[Stored]:
        below = f"{prefix.removesuffix('/')}/" if prefix else ""
        route = self.access.route(below)
        if route is None and not any(one.prefix.startswith(below) for one in self.access.routes):
            raise StoreDenied(f"this access does not reach `{prefix}`")
        inner = [one for one in self.access.routes if one.prefix.startswith(below) and one is not route]
        if route:
            for stored in self._list(route, below.removeprefix(route.prefix)):
                if self.access.route(stored.key) is route:
                    yield stored
        for one in inner:
            for stored in self._list(one, ""):
                if self.access.route(stored.key) is one:
                    yield stored

    def delete(self, key: str) -> None:
        store, rest = self._find(key, write=True)
        store.delete(rest)

    def folder(self, prefix: str) -> FolderStore | None:
        """The folder of this computer that has the keys with this prefix, under the rest of their names, where it may
        be written to; None where the store is something else."""
        route = self.access.route(prefix)
        store = self._stores[route.prefix][1] if route and route.writes and route.prefix == prefix else None
        return store if isinstance(store, FolderStore) else None

    def _list(self, route: Route, prefix: str) -> Iterator[Stored]:
        _, store = self._stores[route.prefix]
        for stored in store.list(prefix):
            yield Stored(route.prefix + stored.key, stored.size_bytes, stored.changed_at, stored.etag)

    def _find(self, key: str, *, write: bool) -> tuple[Store, str]:
        route = self.access.route(key)
        if route is None:
            raise StoreDenied(f"this access does not reach `{key}`")
        if write and not route.writes:
            raise StoreDenied(f"this access only reads: `{key}` cannot be changed")
        return self._stores[route.prefix][1], key[len(route.prefix) :]


def open_by_itself(route: Route) -> Store:
    """With nothing but the standard library."""
    location = locate(route.url)
    if location.kind is StoreKind.FOLDER:
        return FolderStore(Path(location.prefix), durable=True)  # what a node commits is what a run goes on from
    if location.kind is StoreKind.AZURE:
        from stoker.stores.blobclient import open_blobs  # http costs a local agent 20 ms, which it does not need

        return open_blobs(location, route.token)
    from stoker.stores.s3client import open_bucket

    return open_bucket(location, route.token)
