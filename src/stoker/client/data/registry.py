"""Opens stores for a client: with its own access, limited to what it needs, and renewed before it expires."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote, urlencode

from stoker.client.api.connection import Connection
from stoker.client.settings import ClientSettings
from stoker.errors import ServerUnavailable, StoreDenied
from stoker.model import wire
from stoker.model.dataset import DatasetVersion, Manifest
from stoker.stores import AT_ONCE, Store, Stored
from stoker.stores.access import Access
from stoker.stores.folder.store import FolderStore
from stoker.stores.kinds import locate
from stoker.stores.opening import AccessStore, open_granted

T = TypeVar("T")
_EARLY_S = 300.0  # before it expires: a chunk in transfer has to arrive
_SHARE = 0.2  # of a short access, instead


class Reaching:
    def __init__(self, connection: Connection, settings: ClientSettings) -> None:
        self._connection = connection
        self._settings = settings

    def store(self, name: str, *, reads: Sequence[str], writes: Sequence[str] = ()) -> Reached:
        """`reads` and `writes` are prefixes of keys. Raises StoreDenied for a folder of a remote server."""
        return Reached(lambda: self._access(name, reads, writes))

    def _access(self, name: str, reads: Sequence[str], writes: Sequence[str]) -> Access:
        asked = {"reads": list(reads), "writes": list(writes)}
        told = self._connection.post(f"/v1/stores/{quote(name, safe='')}/access", asked)
        access = Access.from_text(told["access"])
        if not self._settings.local and any(locate(route.url).local for route in access.routes):
            raise StoreDenied(
                f"the store `{name}` is a folder of the server's computer",
                hint="name a store that both can reach with `--store`; list them with `stoker store ls`",
            )
        return access


class Reached(Store):
    """A store whose access is renewed when it is about to expire, or is refused before that."""

    def __init__(self, ask: Callable[[], Access]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._opened = open_granted(ask())
        self._renew_at = _renew_at(self._opened.access)
        self.url = self._opened.url
        self.at_once = FolderStore.at_once if self.near else AT_ONCE

    @property
    def near(self) -> bool:
        return self._opened.near

    def folder(self, prefix: str) -> FolderStore | None:
        return self._current().folder(prefix)

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        return self._try(lambda store: store.get(key, start, size))

    def put(self, key: str, data: bytes | BinaryIO, *, only_new: bool = False) -> None:
        if isinstance(data, bytes):
            self._try(lambda store: store.put(key, data, only_new=only_new))
        else:
            self._current().put(key, data, only_new=only_new)  # a file that was read cannot be sent again

    def append(self, key: str, offset: int, data: bytes) -> int:
        return self._try(lambda store: store.append(key, offset, data))

    def list(self, prefix: str) -> Iterator[Stored]:
        return self._current().list(prefix)

    @property
    def left_out(self) -> int:
        """How many objects listings have skipped, because their names are not valid keys."""
        return self._opened.left_out

    def delete(self, key: str) -> None:
        self._try(lambda store: store.delete(key))

    def _try(self, work: Callable[[AccessStore], T]) -> T:
        access = self._current().access
        try:
            return work(self._opened)
        except StoreDenied:
            if not access.expires_at:
                raise
            self._renew(access)
        return work(self._opened)

    def _current(self) -> AccessStore:
        if time.time() >= self._renew_at:
            self._renew(self._opened.access)
        return self._opened

    def _renew(self, old: Access) -> None:
        """Once, however many threads found it expired."""
        with self._lock:
            if self._opened.access is old:
                self._opened.renew(self._ask())
                self._renew_at = _renew_at(self._opened.access)


def _renew_at(access: Access) -> float:
    if not access.expires_at:
        return float("inf")
    lasts_s = access.expires_at - time.time()
    return access.expires_at - min(_EARLY_S, _SHARE * lasts_s)


# The server's record of datasets, and how a version is registered.

_TRIES = 3
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class About:
    """Metadata of a dataset. Empty: unchanged."""

    description: str = ""
    licence: str = ""
    tags: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.description or self.licence or self.tags)


@dataclass(frozen=True, slots=True)
class UploadStart:
    """Where content is uploaded, and the mark that the registration has to present."""

    store: str
    mark: str
    newest: DatasetVersion | None


@dataclass(frozen=True, slots=True)
class DatasetRemoval:
    """What was removed. Without `finished`, the server is still removing content."""

    versions: tuple[DatasetVersion, ...]
    finished: bool
    files: int
    size_bytes: int


class Registry:
    def __init__(self, connection: Connection, person: str = "") -> None:
        self._connection = connection
        self._person = person

    def start(self, name: str, store: str) -> UploadStart:
        return wire.from_plain(UploadStart, self._connection.get(f"{_path(name)}/start", {"store": store}))

    def versions(self, name: str = "") -> list[DatasetVersion]:
        """By name, newest first. Without a name those of all datasets."""
        told = self._connection.get(f"{_path(name)}/versions" if name else "/v1/datasets")
        return [wire.from_plain(DatasetVersion, one) for one in told["versions"]]

    def resolve(self, ref: str) -> DatasetVersion:
        return wire.from_plain(DatasetVersion, self._connection.get(_path(ref)))

    def runs(self, version: DatasetVersion) -> list[str]:
        """The names of runs that read this version, newest first."""
        found: list[str] = self._connection.get(f"{_path(version.ref)}/runs")["runs"]
        return found

    def manifest(self, version: DatasetVersion) -> Manifest:
        """Raises DatasetRefused if it is damaged, or contains a path outside its folder."""
        for _ in range(_TRIES):
            try:
                _, pieces = self._connection.stream(f"{_path(version.ref)}/manifest")
                return Manifest.from_bytes(b"".join(pieces), version.id)
            except ServerUnavailable as error:
                failed = error  # restarted during the response
        raise failed

    def register(self, name: str, start: UploadStart, manifest: Manifest, about: About) -> DatasetVersion:
        """May be repeated: the same files are the same version. Raises DatasetChanging."""
        query: list[tuple[str, str]] = [("store", start.store), ("mark", start.mark), ("person", self._person)]
        query += [("description", about.description), ("licence", about.licence), *(("tag", tag) for tag in about.tags)]
        path = f"{_path(name)}/versions?{urlencode(query)}"
        data = manifest.to_bytes()
        for _ in range(_TRIES):
            try:
                return wire.from_plain(DatasetVersion, self._connection.upload(path, _pieces(data)))
            except ServerUnavailable as error:
                failed = error
        raise failed

    def remove(self, ref: str, *, force: bool = False) -> DatasetRemoval:
        told: Any = self._connection.delete(_path(ref) + ("?force=true" if force else ""))
        return wire.from_plain(DatasetRemoval, told)


def _path(ref: str) -> str:
    return f"/v1/datasets/{quote(ref, safe='@')}"


def _pieces(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _PIECE_BYTES):
        yield data[start : start + _PIECE_BYTES]
