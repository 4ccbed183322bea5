"""Brings a version of a dataset to a folder: only what is not there yet, and every byte verified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.client.data.counting import Counted
from stoker.client.data.putting import index_file
from stoker.client.data.reaching import Reaching
from stoker.client.data.registry import Registry
from stoker.client.data.target import Target
from stoker.client.data.verifying import Wrong, verify
from stoker.client.progress import Progress
from stoker.client.settings import Settings
from stoker.client.statindex import StatIndex
from stoker.errors import Conflict, Corrupt, Missing
from stoker.model import layout
from stoker.model.dataset import DataFile, DatasetVersion
from stoker.stores import Store
from stoker.stores.transfer.files import Item, download


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
    settings: Settings,
    registry: Registry,
    reaching: Reaching,
    progress: Progress,
    *,
    overwrite: bool = False,
) -> Got:
    """May be repeated, and goes on where it stopped. A file that is there and different is refused, or replaced with
    `overwrite`."""
    files = registry.manifest(version).files
    target = Target(folder.absolute(), StatIndex(index_file(settings, folder)))
    target.make(files)
    plan = target.compare(files)
    if plan.in_the_way and not overwrite:
        more = f" and {len(plan.in_the_way) - 1} more" if len(plan.in_the_way) > 1 else ""
        raise Conflict(
            f"`{plan.in_the_way[0]}`{more} in {target.folder} would be replaced by {version.ref}",
            hint="choose another folder, or `--overwrite`",
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
        counted = Counted(store, lambda size: progress.moved(size, 0))
        download(counted, items, lambda _, files: progress.moved(0, files))
        _check_in_place(store, version, plan.wanted)  # in case one was replaced while it was being read
    for first, other in plan.copies:
        target.copy(first, other)
        progress.moved(other.size_bytes, 1)
    if plan.files:
        target.remember(files)
    return Got(version, target.folder, plan.files, plan.size_bytes, target.others(files))


def prefixes(name: str, files: Sequence[DataFile]) -> list[str]:
    """The folder of the dataset, and of files in place those at the top of the store; all of it for what is in none."""
    tops = {file.key.partition("/")[0] + "/" if "/" in file.key else "" for file in files if file.key}
    own = [] if all(file.key for file in files) else [layout.dataset(name)]
    return [*own, *([""] if "" in tops else sorted(tops))]


def _check_in_place(store: Store, version: DatasetVersion, files: Sequence[DataFile]) -> None:
    """Files that have no hash are still those that were registered. One listing."""
    for fault in verify(store, version.name, [file for file in files if file.key], Progress(), quick=True):
        kind = Missing if fault.wrong is Wrong.MISSING else Corrupt
        raise kind(
            f"`{fault.path}` of {version.ref} is {fault.wrong} in the store `{version.store}`",
            hint=f"see all that is wrong with `stoker data verify {version.ref}`",
        )
