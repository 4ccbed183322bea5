"""Datasets for programs, what differs between versions, and local data that a remote run reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stoker.client.api.connection import Connection
from stoker.client.data import content, getting, marks, putting
from stoker.client.data.content import ContentFault
from stoker.client.data.getting import Got
from stoker.client.data.marks import DataUse
from stoker.client.data.putting import Put, PutOptions
from stoker.client.data.registry import About, DatasetRemoval, Reaching, Registry
from stoker.client.progress import TransferProgress
from stoker.client.settings import ClientSettings
from stoker.errors import NotFound
from stoker.model.dataset import DataFile, DatasetVersion, Manifest, reference
from stoker.model.job.job import DataInput, Job


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
        about: About | None = None,
        follow_links: bool = False,
        repair: bool = False,
        progress: TransferProgress | None = None,
    ) -> Put:
        """Uploads a folder or a file and creates a version of it, unless the newest is identical. Metadata that is not
        given stays unchanged; an empty store is the workspace's."""
        wish = PutOptions(Path(source), name, store, about or About(), follow_links, repair)
        return putting.put(wish, self._settings, self._registry, self._reaching, progress or TransferProgress())

    def add(
        self,
        name: str,
        pattern: str,
        *,
        store: str,
        about: About | None = None,
        progress: TransferProgress | None = None,
    ) -> Put:
        """Creates a version of files that are already in a store. Nothing is copied."""
        return putting.add(
            name, pattern, store, about or About(), self._registry, self._reaching, progress or TransferProgress()
        )

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
        return content.verify(store, version.name, files, progress or TransferProgress(), quick=quick)

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


ASSUMED_BYTES_PER_S = 10_000_000  # a good home connection: the first estimate, before anything is measured
_LONGEST = 80


@dataclass(frozen=True, slots=True)
class DataMove:
    """An input of the job, and the dataset it becomes. `known`: its newest version has as many files and bytes."""

    use: DataUse
    dataset: str
    known: bool = False

    @property
    def expected_s(self) -> float:
        return self.use.size_bytes / ASSUMED_BYTES_PER_S


Agree = Callable[[Sequence[DataMove]], TransferProgress]  # raises if the user refuses


def moves(job: Job, folder: Path, connection: Connection, datasets: Datasets) -> list[DataMove]:
    """What the job reads on this computer but its machines cannot. The server knows which machines can."""
    uses = {use.name: use for use in marks.look(job, folder) if use.local}
    if not uses:
        return []
    wanted = connection.post("/v1/plan", {"job": job.plain()}).get("to_store", ())
    return [_move(job, uses[name], datasets) for name in wanted if name in uses]


def dataset_name(job: Job, name: str) -> str:
    """Named after the experiment, so that no other dataset gets a version of it."""
    return re.sub(r"[^a-z0-9._-]+", "-", f"{job.name}-{name}".lower())[:_LONGEST].strip("-._")


def moved(job: Job, made: Mapping[str, str], uses: Sequence[DataUse]) -> Job:
    """The job with datasets, by their reference, instead of paths. A single file stays a file: its dataset is a
    folder."""
    data = dict(job.data)
    for use in uses:
        if use.name in made:
            given, path = data[use.name], Path(use.where)
            file = None if path.is_dir() else path.name
            data[use.name] = DataInput(dataset=made[use.name], file=file, at=given.at, mode=given.mode)
    return replace(job, data=data)


def _move(job: Job, use: DataUse, datasets: Datasets) -> DataMove:
    name = dataset_name(job, use.name)
    try:
        newest = datasets.show(name)
    except NotFound:
        return DataMove(use, name)
    return DataMove(use, name, (newest.files, newest.size_bytes) == (use.files, use.size_bytes))
