"""What differs between two versions, by path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.client.api.connection import Connection
from stoker.client.data import adding, getting, putting, verifying
from stoker.client.data.getting import Got
from stoker.client.data.putting import Put, PutOptions
from stoker.client.data.registry import About, DatasetRemoval, Reaching, Registry
from stoker.client.data.verifying import ContentFault
from stoker.client.progress import TransferProgress
from stoker.client.settings import ClientSettings
from stoker.model.dataset import DataFile, DatasetVersion, Manifest, reference


@dataclass(frozen=True, slots=True)
class DataChange:
    """A file that differs between the two. None: that version has no file of this path."""

    path: str
    first_bytes: int | None
    second_bytes: int | None


@dataclass(frozen=True, slots=True)
class DataDifference:
    first: DatasetVersion
    second: DatasetVersion
    changes: tuple[DataChange, ...]
    same_files: int

    @property
    def added(self) -> list[DataChange]:
        return [change for change in self.changes if change.first_bytes is None]

    @property
    def removed(self) -> list[DataChange]:
        return [change for change in self.changes if change.second_bytes is None]

    @property
    def changed(self) -> list[DataChange]:
        return [change for change in self.changes if None not in (change.first_bytes, change.second_bytes)]


def differ(first: DatasetVersion, second: DatasetVersion, ours: Manifest, theirs: Manifest) -> DataDifference:
    """By path, in order. A file in place and an uploaded one are compared by size, since nothing else is known of
    both."""
    left = {file.path: file for file in ours.files}
    right = {file.path: file for file in theirs.files}
    changes = tuple(
        DataChange(path, _size(left.get(path)), _size(right.get(path)))
        for path in sorted(left.keys() | right.keys())
        if not _same(left.get(path), right.get(path))
    )
    return DataDifference(first, second, changes, len(left.keys() | right.keys()) - len(changes))


def _size(file: DataFile | None) -> int | None:
    return file.size_bytes if file else None


def _same(one: DataFile | None, other: DataFile | None) -> bool:
    if one is None or other is None or one.size_bytes != other.size_bytes:
        return False
    if one.sha256 and other.sha256:
        return one.sha256 == other.sha256
    return bool(one.sha256 or other.sha256) or (one.key, one.etag) == (other.key, other.etag)


# Datasets, for programs: `Client.connect().datasets`.


class Datasets:
    """Versions are named as `hymenoptera` (the newest), `hymenoptera@3`, or by a prefix of their hash. `progress` may
    be read from another thread during a call."""

    def __init__(self, connection: Connection, settings: ClientSettings) -> None:
        self._settings = settings
        self._registry = Registry(connection, settings.person)
        self._reaching = Reaching(connection, settings)

    def put(
        self,
        source: Path | str,
        name: str,
        *,
        store: str = "",
        description: str = "",
        licence: str = "",
        tags: Sequence[str] = (),
        follow_links: bool = False,
        repair: bool = False,
        progress: TransferProgress | None = None,
    ) -> Put:
        """Uploads a folder or a file and creates a version of it, unless the newest is identical. Metadata that is not
        given stays unchanged; an empty store is the workspace's."""
        about = About(description, licence, tuple(tags))
        wish = PutOptions(Path(source), name, store, about, follow_links, repair)
        return putting.put(wish, self._settings, self._registry, self._reaching, progress or TransferProgress())

    def add(
        self,
        name: str,
        pattern: str,
        *,
        store: str,
        description: str = "",
        licence: str = "",
        tags: Sequence[str] = (),
        progress: TransferProgress | None = None,
    ) -> Put:
        """Creates a version of files that are already in a store. Nothing is copied."""
        about = About(description, licence, tuple(tags))
        return adding.add(name, pattern, store, about, self._registry, self._reaching, progress or TransferProgress())

    def get(
        self, ref: str, folder: Path | str, *, overwrite: bool = False, progress: TransferProgress | None = None
    ) -> Got:
        """Downloads the files of a version."""
        version, given = self.show(ref), progress or TransferProgress()
        return getting.get(
            version, Path(folder), self._settings, self._registry, self._reaching, given, overwrite=overwrite
        )

    def verify(self, ref: str, *, quick: bool = False, progress: TransferProgress | None = None) -> list[ContentFault]:
        """What differs between a version and its store. With `quick` contents are not read."""
        version = self.show(ref)
        files = self.files(version)
        store = self._reaching.store(version.store, reads=getting.prefixes(version.name, files))
        return verifying.verify(store, version.name, files, progress or TransferProgress(), quick=quick)

    def versions(self, name: str = "") -> list[DatasetVersion]:
        """By name, newest first; without a name those of all datasets."""
        return self._registry.versions(name)

    def show(self, ref: str) -> DatasetVersion:
        """One version: the newest, unless `ref` names another."""
        reference(ref)
        return self._registry.resolve(ref)

    def files(self, version: DatasetVersion) -> Sequence[DataFile]:
        """By path."""
        return self._registry.manifest(version).files

    def runs(self, version: DatasetVersion) -> list[str]:
        """The names of runs that read it, newest first."""
        return self._registry.runs(version)

    def diff(self, first: str, second: str) -> DataDifference:
        """What differs between two versions, of the same dataset or not."""
        one, other = self.show(first), self.show(second)
        return differ(one, other, self._registry.manifest(one), self._registry.manifest(other))

    def remove(self, ref: str, *, force: bool = False) -> DatasetRemoval:
        """A version, or all of them if no version is named. Refused for a version that a run has used, unless
        `force`."""
        reference(ref)
        return self._registry.remove(ref, force=force)
