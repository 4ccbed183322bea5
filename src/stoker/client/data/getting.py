"""The folder that a version is downloaded to: which files exist already, which conflict, and whether it fits."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stoker.client.data.content import CountedStore, Wrong, verify
from stoker.client.data.folder import UNFINISHED, clashes
from stoker.client.data.putting import index_file
from stoker.client.data.registry import Reaching, Registry
from stoker.client.progress import TransferProgress
from stoker.client.settings import ClientSettings
from stoker.client.source.statindex import StatIndex, digest, unchanged
from stoker.errors import Conflict, Corrupt, Missing, StoreFailed
from stoker.model.cause import Cause
from stoker.model.dataset import DataFile, DatasetVersion
from stoker.model.workspace import layout
from stoker.stores import Store
from stoker.stores.transfer.disk import disk_failed
from stoker.stores.transfer.files import Item, download

_SETTLED_S = 0.06  # an index ignores a file that was written just now


@dataclass(slots=True)
class DownloadPlan:
    wanted: list[DataFile] = field(default_factory=list)  # to download
    copies: list[tuple[DataFile, DataFile]] = field(default_factory=list)  # to copy from the first to the second
    there: int = 0
    in_the_way: list[str] = field(default_factory=list)

    @property
    def files(self) -> int:
        return len(self.wanted) + len(self.copies)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.wanted) + sum(file.size_bytes for _, file in self.copies)


class DownloadTarget:
    def __init__(self, folder: Path, index: StatIndex) -> None:
        self.folder = folder
        self._index = index

    def make(self, files: Sequence[DataFile]) -> None:
        """Raises if it cannot hold these files: for the system's reasons, or because names collide."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            told = clashes(file.path for file in files)
            if told and _takes_alike(self.folder):
                raise Conflict(f"this disk cannot hold all files: {told[0]}", hint="choose a folder on another disk")
        except OSError as error:
            raise disk_failed("write to", str(self.folder), error) from error

    def compare(self, files: Iterable[DataFile]) -> DownloadPlan:
        """What has to be done. Files with the same content are downloaded once."""
        plan = DownloadPlan()
        bringing: dict[str, DataFile] = {}
        folders: set[str] = set()
        for file in files:
            self._check_folders(file.path, folders)
            seen = self._seen(file)
            if seen and self._holds(seen, file):
                plan.there += 1
                continue
            if seen:
                plan.in_the_way.append(file.path)
            first = bringing.setdefault(file.sha256 or file.path, file)
            if first is file:
                plan.wanted.append(file)
            else:
                plan.copies.append((first, file))
        return plan

    def check_space(self, needed_bytes: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if needed_bytes > free:
            raise StoreFailed(
                f"the disk of {self.folder} has {free / 1e9:.1f} GB free, but {needed_bytes / 1e9:.1f} GB are required",
                hint="free some space, or choose a folder on another disk",
            )

    def place(self, file: DataFile) -> str:
        return f"{self.folder}/{file.path}"

    def copy(self, first: DataFile, other: DataFile) -> None:
        """Copies the same content; the copy is verified, in case the first was changed meanwhile."""
        place = Path(self.place(other))
        part = place.with_name(f"{UNFINISHED}{secrets.token_hex(8)}")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.place(first), part)
            if digest(str(part))[0] != first.sha256:
                raise Corrupt(f"{self.place(first)} changed while it was being copied", hint="retry")
            part.replace(place)
        except OSError as error:
            raise disk_failed("write", str(place), error) from error
        finally:
            part.unlink(missing_ok=True)

    def remember(self, files: Iterable[DataFile]) -> None:
        """So that next time nothing has to be read to know that it exists."""
        time.sleep(_SETTLED_S)
        now = time.time_ns()
        for file in files:
            if seen := self._seen(file):
                self._index.learn(file.path, seen, _mark(file), now)
        self._index.save()

    def others(self, files: Iterable[DataFile]) -> int:
        """Files in the folder that are not part of the version."""
        own = {Path(file.path) for file in files}
        found = (Path(where, name) for where, _, names in os.walk(self.folder) for name in names)
        return sum(not (path.name.startswith(UNFINISHED) or path.relative_to(self.folder) in own) for path in found)

    def _seen(self, file: DataFile) -> os.stat_result | None:
        try:
            return os.lstat(self.place(file))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise disk_failed("look at", self.place(file), error) from error

    def _holds(self, seen: os.stat_result, file: DataFile) -> bool:
        """Whether the existing file is the right one: by its hash, or unchanged since its download."""
        if not stat.S_ISREG(seen.st_mode) or seen.st_size != file.size_bytes:
            return False
        if known := self._index.known(file.path, seen):
            return known == _mark(file)
        if not file.sha256:
            return False
        try:
            sha256, before, after = digest(self.place(file))
        except OSError as error:
            raise disk_failed("read", self.place(file), error) from error
        return sha256 == file.sha256 and unchanged(before, after)

    def _check_folders(self, path: str, known: set[str]) -> None:
        """A link among the folders would redirect what is written below it."""
        folder = path.rpartition("/")[0]
        while folder and folder not in known:
            known.add(folder)
            place = self.folder / folder
            if place.is_symlink() or (place.exists() and not place.is_dir()):
                raise Conflict(
                    f"{place} exists and is not a folder", hint="choose another folder", cause=Cause.FOLDER_FOREIGN
                )
            folder = folder.rpartition("/")[0]


def _mark(file: DataFile) -> str:
    """What is remembered of a file: its hash, or for a file in place a value that changes with it."""
    return file.sha256 or hashlib.sha256(f"{file.key} {file.etag} {file.size_bytes}".encode()).hexdigest()


def _takes_alike(folder: Path) -> bool:
    """Whether the disk ignores case in names."""
    probe = folder / f".Stoker-{secrets.token_hex(4)}"
    probe.touch()
    try:
        return probe.with_name(probe.name.lower()).exists()
    finally:
        probe.unlink()


# Downloads a version of a dataset: only missing files, and every byte verified.


@dataclass(frozen=True, slots=True)
class Got:
    """`others` are files in the folder that are not part of the version; they are left alone."""

    version: DatasetVersion
    folder: Path
    new_files: int
    new_bytes: int
    others: int


def get(
    version: DatasetVersion,
    folder: Path,
    settings: ClientSettings,
    registry: Registry,
    reaching: Reaching,
    progress: TransferProgress,
    *,
    overwrite: bool = False,
) -> Got:
    """May be repeated, and resumes where it stopped. An existing file that differs is refused, or replaced with
    `overwrite`."""
    files = registry.manifest(version).files
    target = DownloadTarget(folder.absolute(), StatIndex(index_file(settings, folder)))
    target.make(files)
    plan = target.compare(files)
    if plan.in_the_way and not overwrite:
        more = f" and {len(plan.in_the_way) - 1} more" if len(plan.in_the_way) > 1 else ""
        raise Conflict(
            f"`{plan.in_the_way[0]}`{more} in {target.folder} differs from {version.ref}",
            hint="choose another folder, or replace it with `--overwrite`",
            cause=Cause.FOLDER_FOREIGN,
        )
    target.check_space(plan.size_bytes)
    progress.begin("getting", len(files), sum(file.size_bytes for file in files))
    progress.skipped(sum(file.size_bytes for file in files) - plan.size_bytes, plan.there)
    if plan.wanted:
        store = reaching.store(version.store, reads=prefixes(version.name, plan.wanted))
        _check_in_place(store, version, plan.wanted)
        items = (
            Item(target.place(file), file.stored_in(version.name), file.size_bytes, file.sha256) for file in plan.wanted
        )
        counted = CountedStore(store, lambda size: progress.moved(size, 0))
        download(counted, items, lambda _, files: progress.moved(0, files))
        _check_in_place(store, version, plan.wanted)  # in case one was replaced while it was being read
    for first, other in plan.copies:
        target.copy(first, other)
        progress.moved(other.size_bytes, 1)
    if plan.files:
        target.remember(files)
    return Got(version, target.folder, plan.files, plan.size_bytes, target.others(files))


def prefixes(name: str, files: Sequence[DataFile]) -> list[str]:
    """The folder of the dataset, and for files in place their top-level folders; everything if a file is in none."""
    tops = {file.key.partition("/")[0] + "/" if "/" in file.key else "" for file in files if file.key}
    own = [] if all(file.key for file in files) else [layout.dataset(name)]
    return [*own, *([""] if "" in tops else sorted(tops))]


def _check_in_place(store: Store, version: DatasetVersion, files: Sequence[DataFile]) -> None:
    """Checks that files without a hash are still those that were registered. One listing."""
    for fault in verify(store, version.name, [file for file in files if file.key], TransferProgress(), quick=True):
        kind = Missing if fault.wrong is Wrong.MISSING else Corrupt
        raise kind(
            f"`{fault.path}` of {version.ref} is {fault.wrong} in the store `{version.store}`",
            hint=f"list all differences with `stoker data verify {version.ref}`",
        )
