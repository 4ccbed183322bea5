"""Downloads the files of a manifest into a folder, verified, without ever replacing files of another run."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from stoker.errors import Conflict, Corrupt, Missing, StoreFailed
from stoker.model.cause import Cause
from stoker.model.snapshot import Entry, EntryKind
from stoker.stores.transfer.disk import disk_failed
from stoker.stores.transfer.verified import Verified
from stoker.stores.trees.unpack import checked

MARKER = ".stoker-run.json"  # names the owner of the folder
_PART = ".stoker-part-"  # a file being written
_PART_STALE_S = 3600.0  # its writer is gone
_PIECE_BYTES = 1 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def choose_folder(parent: Path, name: str, owner: str) -> Path:
    """`parent/name`, created and marked as the owner's; with `~2`, `~3`, … appended where it belongs to another."""
    names = itertools.chain([name], (f"{name}~{number}" for number in itertools.count(2)))
    return next(parent / one for one in names if _claim(parent / one, owner))


class Landing:
    """Call `wanted`, pass each of those to `take`, then `finish`. All of it may be repeated."""

    def __init__(self, entries: Iterable[Entry], folder: Path, owner: str) -> None:
        """Raises Conflict where the folder belongs to another run, or is not empty and has no owner."""
        self._entries = [entry for entry in checked(entries) if entry.path != MARKER]
        if not _claim(folder, owner):
            raise Conflict(
                f"`{folder}` does not belong to {owner}", hint="choose another folder", cause=Cause.FOLDER_FOREIGN
            )
        self._top = os.fspath(folder)
        self._parts = (f"{self._top}/{_PART}{os.urandom(6).hex()}-{number}" for number in itertools.count())
        self._folders = {"": True}  # checked ones, and whether they are real folders
        self._lacking: dict[str, list[Entry]] | None = None
        _remove_stale(self._top)

    def wanted(self) -> list[str]:
        """The missing hashes. Files with the right content are kept. Raises StoreFailed where the disk has no space for
        them: one content may have any number of names."""
        lacking = self._find_lacking()
        size_bytes = sum(entry.size_bytes for entries in lacking.values() for entry in entries)
        if size_bytes > shutil.disk_usage(self._top).free:
            told = f"not enough space for {size_bytes / 1e9:.1f} GB in `{self._top}`"
            raise StoreFailed(told, hint="free some space, then try again", cause=Cause.DISK_FULL)
        return list(lacking)

    def take(self, sha256: str, stream: BinaryIO) -> None:
        """Writes a content to every path that lacks it. An unwanted one is not read. Raises Corrupt."""
        lacking = self._find_lacking()
        if sha256 not in lacking:
            return
        first, *others = lacking[sha256]
        try:
            self._write(first, _verified(stream, first))
        except Corrupt as error:
            raise Corrupt(f"`{first.path}` was damaged in transit: {error.message}", hint="try again") from error
        for other in others:
            with Path(self._top, first.path).open("rb", buffering=0) as copy:
                self._write(other, _verified(copy, other))
        del lacking[sha256]

    def finish(self) -> None:
        """Adds links and empty folders. Raises Missing where a wanted content was never passed to `take`."""
        lacking = [entry.path for entries in self._find_lacking().values() for entry in entries]
        if lacking:
            raise Missing(f"{len(lacking)} of {len(self._entries)} files are missing, the first is `{lacking[0]}`")
        for entry in self._entries:
            if entry.kind is EntryKind.FOLDER:
                self._make_folder(entry.path)
            elif entry.kind is EntryKind.LINK:
                self._link(entry)

    def _find_lacking(self) -> dict[str, list[Entry]]:
        if self._lacking is None:
            self._lacking = {}
            for entry in self._entries:
                if entry.kind is EntryKind.FILE and not self._has(entry):
                    self._lacking.setdefault(entry.sha256, []).append(entry)
        return self._lacking

    def _has(self, entry: Entry) -> bool:
        if not self._is_folder(entry.path.rpartition("/")[0]):
            return False
        path = Path(self._top, entry.path)
        try:
            seen = path.lstat()
            if not stat.S_ISREG(seen.st_mode) or seen.st_size != entry.size_bytes or _hash(path) != entry.sha256:
                return False
            if bool(seen.st_mode & 0o100) != entry.executable:
                path.chmod(seen.st_mode | (seen.st_mode & 0o444) >> 2 if entry.executable else seen.st_mode & ~0o111)
        except OSError:
            return False  # it can be replaced, if the folder is writable
        return True

    def _is_folder(self, folder: str) -> bool:
        """Whether this is a folder below ours, and not the target of a link."""
        if folder not in self._folders:
            real = self._is_folder(folder.rpartition("/")[0])
            self._folders[folder] = real and _is_real_folder(f"{self._top}/{folder}")
        return self._folders[folder]

    def _make_folder(self, folder: str) -> None:
        if self._is_folder(folder):
            return
        self._make_folder(folder.rpartition("/")[0])
        path = Path(self._top, folder)
        try:
            path.unlink(missing_ok=True)  # a link or file of an earlier manifest
            path.mkdir()
        except OSError as error:
            raise disk_failed("make the folder", folder, error) from error
        self._folders[folder] = True

    def _write(self, entry: Entry, content: Verified) -> None:
        mode = 0o777 if entry.executable else 0o666
        with self._placing(entry.path) as part, os.fdopen(os.open(part, _NEW, mode), "wb") as file:
            while piece := content.read(_PIECE_BYTES):
                file.write(piece)

    def _link(self, entry: Entry) -> None:
        with self._placing(entry.path) as part:
            os.symlink(entry.target, part)  # noqa: PTH211  # a Path would tidy up the target

    @contextmanager
    def _placing(self, path: str) -> Iterator[str]:
        """A temporary name, which then replaces what is at `path`. Links are not followed."""
        self._make_folder(path.rpartition("/")[0])
        part, place = next(self._parts), f"{self._top}/{path}"
        try:
            yield part
            _replace(part, place)
        except BaseException as error:
            with suppress(OSError):
                os.unlink(part)  # noqa: PTH108  # a Path would cost as much as the call
            if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
                raise disk_failed("write", path, error) from error
            raise


def _replace(part: str, place: str) -> None:
    try:
        os.replace(part, place)  # noqa: PTH105  # a Path would cost as much as the call
    except IsADirectoryError:
        Path(place).rmdir()  # of an earlier manifest; fails if it is not empty
        Path(part).replace(place)


def _claim(folder: Path, owner: str) -> bool:
    """Whether the folder belongs to the owner: by its marker, or because it was empty or missing and is marked now."""
    marker = folder / MARKER
    try:
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
        if not folder.is_dir():
            return False
        if not any(os.scandir(folder)):
            with marker.open("x", encoding="utf-8") as file:
                json.dump({"run": owner}, file)
            return True
        marked = json.loads(marker.read_bytes())
        return isinstance(marked, dict) and marked.get("run") == owner
    except (FileNotFoundError, FileExistsError, ValueError):
        return False  # no marker, one that appeared just now, or an empty one
    except OSError as error:
        raise disk_failed("write to", str(folder), error) from error


def _remove_stale(top: str) -> None:
    """Partial files of a dead process."""
    old = time.time() - _PART_STALE_S
    for entry in os.scandir(top):
        if entry.name.startswith(_PART):
            with suppress(FileNotFoundError):
                if entry.stat(follow_symlinks=False).st_mtime < old:
                    Path(entry.path).unlink()


def _is_real_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:  # missing, or an invalid name: creating it reports that
        return False


def _verified(stream: BinaryIO, entry: Entry) -> Verified:
    """Bytes that verify themselves are not hashed a second time."""
    if isinstance(stream, Verified) and stream.sha256 == entry.sha256:
        return stream
    return Verified(stream, entry.sha256, entry.size_bytes)


def _hash(path: Path) -> str:
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
