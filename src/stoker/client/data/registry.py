"""What the server knows of datasets, and how a version is told to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from stoker.client.connection import Connection
from stoker.errors import ServerUnavailable
from stoker.model import wire
from stoker.model.dataset import DatasetVersion, Manifest

_TRIES = 3
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class About:
    """What people want to know of a dataset. Empty: as it was before."""

    description: str = ""
    licence: str = ""
    tags: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.description or self.licence or self.tags)


@dataclass(frozen=True, slots=True)
class Start:
    """Where content goes, and the mark that a registration has to show."""

    store: str
    mark: str
    newest: DatasetVersion | None


@dataclass(frozen=True, slots=True)
class Removal:
    """What was removed. Without `finished`, the server is still removing content."""

    versions: tuple[DatasetVersion, ...]
    finished: bool
    files: int
    size_bytes: int


class Registry:
    def __init__(self, connection: Connection, person: str = "") -> None:
        self._connection = connection
        self._person = person

    def start(self, name: str, store: str) -> Start:
        return wire.from_plain(Start, self._connection.get(f"{_path(name)}/start", {"store": store}))

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
        """Raises DatasetRefused where it is damaged, or names a path outside its folder."""
        for _ in range(_TRIES):
            try:
                _, pieces = self._connection.stream(f"{_path(version.ref)}/manifest")
                return Manifest.from_bytes(b"".join(pieces), version.id)
            except ServerUnavailable as error:
                failed = error  # restarted while it was answering
        raise failed

    def register(self, name: str, start: Start, manifest: Manifest, about: About) -> DatasetVersion:
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

    def remove(self, ref: str, *, force: bool = False) -> Removal:
        told: Any = self._connection.delete(_path(ref) + ("?force=true" if force else ""))
        return wire.from_plain(Removal, told)


def _path(ref: str) -> str:
    return f"/v1/datasets/{quote(ref, safe='@')}"


def _pieces(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _PIECE_BYTES):
        yield data[start : start + _PIECE_BYTES]
