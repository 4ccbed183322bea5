"""What differs between two versions, by path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.client.api.connection import Connection
from stoker.client.data import adding, getting, putting, verifying
from stoker.client.data.getting import Got
from stoker.client.data.putting import Put, Wish
from stoker.client.data.registry import About, Reaching, Registry, Removal
from stoker.client.data.verifying import Fault
from stoker.client.progress import Progress
from stoker.client.settings import Settings
from stoker.model.dataset import DataFile, DatasetVersion, Manifest, reference


@dataclass(frozen=True, slots=True)
class DataChange:
    """A file that is not the same in both. None: that version has none of this path."""

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
    """By path, in order. A file in place and one that was uploaded are compared by size, since nothing else is known of
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


# Datasets, as a program asks for them: `Client.connect().datasets`.


class Datasets:
    """Versions are named as `hymenoptera` (the newest), `hymenoptera@3`, or by the beginning of their hash. `progress`
    may be looked at from another thread while a call goes on."""

    def __init__(self, connection: Connection, settings: Settings) -> None:
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
        progress: Progress | None = None,
    ) -> Put:
        """Brings a folder or a file to a store, and makes a version of it, unless the newest is just that. What is not
        said of it is as it was; an empty store is the workspace's."""
        about = About(description, licence, tuple(tags))
        wish = Wish(Path(source), name, store, about, follow_links, repair)
        return putting.put(wish, self._settings, self._registry, self._reaching, progress or Progress())

    def add(
        self,
        name: str,
        pattern: str,
        *,
        store: str,
        description: str = "",
        licence: str = "",
        tags: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> Put:
        """Makes a version of what is in a store already. Nothing is copied."""
        about = About(description, licence, tuple(tags))
        return adding.add(name, pattern, store, about, self._registry, self._reaching, progress or Progress())

    def get(self, ref: str, folder: Path | str, *, overwrite: bool = False, progress: Progress | None = None) -> Got:
        """Brings the files of a version to a folder."""
        version, given = self.show(ref), progress or Progress()
        return getting.get(
            version, Path(folder), self._settings, self._registry, self._reaching, given, overwrite=overwrite
        )

    def verify(self, ref: str, *, quick: bool = False, progress: Progress | None = None) -> list[Fault]:
        """What of a version is not in its store as it should be. With `quick` contents are not read."""
        version = self.show(ref)
        files = self.files(version)
        store = self._reaching.store(version.store, reads=getting.prefixes(version.name, files))
        return verifying.verify(store, version.name, files, progress or Progress(), quick=quick)

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

    def remove(self, ref: str, *, force: bool = False) -> Removal:
        """A version, or all of them where no version is named. Refused for what a run has used, unless `force`."""
        reference(ref)
        return self._registry.remove(ref, force=force)
