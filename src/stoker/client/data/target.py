"""The folder that a version is brought to: what of it is there already, what is in the way, and whether it fits."""

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

from stoker.client.data.folder import UNFINISHED, clashes
from stoker.client.digest import digest, unchanged
from stoker.client.statindex import StatIndex
from stoker.errors import Conflict, Corrupt, StoreFailed
from stoker.model.dataset import DataFile
from stoker.stores.transfer.disk import disk_failed

_SETTLED_S = 0.06  # an index takes no note of a file that was written this moment


@dataclass(slots=True)
class Plan:
    wanted: list[DataFile] = field(default_factory=list)  # to be brought
    copies: list[tuple[DataFile, DataFile]] = field(default_factory=list)  # the second of what the first holds
    there: int = 0
    in_the_way: list[str] = field(default_factory=list)

    @property
    def files(self) -> int:
        return len(self.wanted) + len(self.copies)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.wanted) + sum(file.size_bytes for _, file in self.copies)


class Target:
    def __init__(self, folder: Path, index: StatIndex) -> None:
        self.folder = folder
        self._index = index

    def make(self, files: Sequence[DataFile]) -> None:
        """Raises where it cannot hold these files: for the system's reasons, or because it cannot tell them apart."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            told = clashes(file.path for file in files)
            if told and _takes_alike(self.folder):
                raise Conflict(f"this disk cannot hold all of it: {told[0]}", hint="choose a folder on another disk")
        except OSError as error:
            raise disk_failed("write to", str(self.folder), error) from error

    def compare(self, files: Iterable[DataFile]) -> Plan:
        """What is to be done. Files of the same content are brought once."""
        plan = Plan()
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
                f"the disk of {self.folder} has {free / 1e9:.1f} GB left, and {needed_bytes / 1e9:.1f} GB are needed",
                hint="free some space, or choose a folder on another disk",
            )

    def place(self, file: DataFile) -> str:
        return f"{self.folder}/{file.path}"

    def copy(self, first: DataFile, other: DataFile) -> None:
        """The same content once more; what is copied is verified, in case the first was changed meanwhile."""
        place = Path(self.place(other))
        part = place.with_name(f"{UNFINISHED}{secrets.token_hex(8)}")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.place(first), part)
            if digest(str(part))[0] != first.sha256:
                raise Corrupt(f"{self.place(first)} changed while it was being copied", hint="try again")
            part.replace(place)
        except OSError as error:
            raise disk_failed("write", str(place), error) from error
        finally:
            part.unlink(missing_ok=True)

    def remember(self, files: Iterable[DataFile]) -> None:
        """So that the next time nothing has to be read to know that it is there."""
        time.sleep(_SETTLED_S)
        now = time.time_ns()
        for file in files:
            if seen := self._seen(file):
                self._index.learn(file.path, seen, _mark(file), now)
        self._index.save()

    def others(self, files: Iterable[DataFile]) -> int:
        """Files in the folder that are none of these."""
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
        """Whether what is there is the file that is wanted: by its hash, or as it was when it was brought."""
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
        """A link among the folders would lead what is written below it to somewhere else."""
        folder = path.rpartition("/")[0]
        while folder and folder not in known:
            known.add(folder)
            place = self.folder / folder
            if place.is_symlink() or (place.exists() and not place.is_dir()):
                raise Conflict(f"{place} is in the way: a folder has to be there", hint="choose another folder")
            folder = folder.rpartition("/")[0]


def _mark(file: DataFile) -> str:
    """What is remembered of a file: its hash, or for one in place something that changes when it does."""
    return file.sha256 or hashlib.sha256(f"{file.key} {file.etag} {file.size_bytes}".encode()).hexdigest()


def _takes_alike(folder: Path) -> bool:
    """Whether the disk takes names for the same that differ in capitals."""
    probe = folder / f".Stoker-{secrets.token_hex(4)}"
    probe.touch()
    try:
        return probe.with_name(probe.name.lower()).exists()
    finally:
        probe.unlink()
