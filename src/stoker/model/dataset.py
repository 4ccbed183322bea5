"""A dataset: a named list of files in a store, of which every version is known by the hash of that list.

Standard library only: agents read manifests too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import NamedTuple

from stoker.errors import BadInput, DatasetRefused, SnapshotRefused
from stoker.model.cause import Cause
from stoker.model.snapshot import checked_path
from stoker.model.workspace import layout

_FORMAT = 1
_ROWS = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
_PART = r"(?!\.\.?(?:/|\Z))[^/\0\\:]+"  # a name that means the same everywhere, and is neither `.` nor `..`
_PLAIN_PATH = re.compile(f"{_PART}(?:/{_PART})*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,78}[a-z0-9])?")
_NUMBER = re.compile(r"[0-9]{1,6}")
_HASH = re.compile(r"[0-9a-f]{7,64}")


class DataFile(NamedTuple):
    """One file of a dataset. `path` is relative with `/`.

    What Stoker uploaded lies under its hash, and has no `key` of its own. A file registered where it already was has
    a `key`, and no hash: its size and `etag` pin it.
    """

    path: str
    size_bytes: int
    sha256: str = ""
    key: str = ""
    etag: str = ""

    def stored_in(self, dataset: str) -> str:
        """The key of its content in the store of the dataset with this name."""
        return self.key or layout.content(dataset, self.sha256)


@dataclass(frozen=True, slots=True)
class DatasetVersion:
    """A version as the server knows it; its files are in the manifest at `layout.manifest(name, id)` in `store`."""

    name: str
    number: int
    id: str  # the hash of its manifest: the same files have the same one everywhere
    store: str  # the name of a store
    files: int
    size_bytes: int
    created_at: datetime
    description: str = ""
    licence: str = ""
    tags: tuple[str, ...] = ()
    person: str = ""

    @property
    def ref(self) -> str:
        """What pins it: `hymenoptera@3`."""
        return f"{self.name}@{self.number}"

    @property
    def manifest(self) -> str:
        """The key of its manifest."""
        return layout.manifest(self.name, self.id)


class Manifest:
    """The files of a version, by path. Its text is the same wherever it is made, and the text's hash is its id."""

    __slots__ = ("files",)

    def __init__(self, files: Iterable[DataFile]) -> None:
        """Raises DatasetRefused where they cannot all lie in one folder, with nothing outside of it."""
        self.files = checked(sorted(files, key=itemgetter(0)))

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def to_bytes(self) -> bytes:
        rows = ",\n".join(_ROWS.encode(_row(file)) for file in self.files)
        return f'{{"format":{_FORMAT},"files":[\n{rows}\n]}}\n'.encode()

    @property
    def id(self) -> str:
        return manifest_id(self.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes, id: str = "") -> Manifest:
        """Raises DatasetRefused if it is not a manifest, or not the one with this id."""
        if id and manifest_id(data) != id:
            raise DatasetRefused(f"the manifest {id[:12]} is damaged: its bytes have another hash")
        try:
            told = json.loads(data)
            if told["format"] != _FORMAT:
                raise DatasetRefused(f"the manifest has the form {told['format']}, and this Stoker knows {_FORMAT}")
            return cls(DataFile(*row) for row in told["files"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DatasetRefused(f"this is not the manifest of a dataset: {error}") from None


def manifest_id(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def checked(files: Sequence[DataFile]) -> Sequence[DataFile]:
    """The files, if each is what it has to be, no path leaves the folder, and none stands in another's way."""
    paths: set[str] = set()
    folders: set[str] = set()
    for file in files:
        _check_kinds(file)
        if not _PLAIN_PATH.fullmatch(file.path) or not file.path.isascii():
            _check_path(file.path)
        if file.path in paths:
            raise DatasetRefused(f"the path `{file.path}` is there twice")
        paths.add(file.path)
        folder = file.path.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    if both := paths & folders:
        raise DatasetRefused(f"the path `{min(both)}` is both a file and a folder")
    return files


class Reference(NamedTuple):
    """Which version is meant: a number, the beginning of a hash, or neither for the newest."""

    name: str
    number: int = 0
    id: str = ""


def reference(text: str) -> Reference:
    """`hymenoptera`, `hymenoptera@3` or `hymenoptera@1f2e3d4c…`. Raises BadInput."""
    name, at, version = text.partition("@")
    checked_name(name)
    if not at:
        return Reference(name)
    if _NUMBER.fullmatch(version) and int(version):
        return Reference(name, int(version))
    if _HASH.fullmatch(version):
        return Reference(name, id=version)
    raise BadInput(
        f"invalid dataset version `{version}`: `{text}`",
        hint=f"give a number as in `{name}@3`, or at least 7 digits of a hash",
    )


def checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadInput(
            f"`{name}` cannot name a dataset",
            hint="use up to 80 lower-case letters, digits, `-`, `_` and `.`",
            cause=Cause.NAME_INVALID,
        )
    return name


def _row(file: DataFile) -> list[str | int]:
    """Without what is empty at the end."""
    return list(file) if file.key or file.etag else [file.path, file.size_bytes, file.sha256]


def _check_kinds(file: DataFile) -> None:
    texts = (file.path, file.sha256, file.key, file.etag)
    size = file.size_bytes
    if not all(isinstance(text, str) for text in texts) or type(size) is not int or size < 0:
        raise DatasetRefused(f"a manifest has the row {list(file)!r}, which does not describe a file")
    if file.key:
        _check_path(file.key)
    elif not _SHA256.fullmatch(file.sha256):
        raise DatasetRefused(f"a manifest has neither a hash nor a key for `{file.path}`")


def _check_path(path: str) -> None:
    try:
        checked_path(path).encode()
    except SnapshotRefused as error:
        raise DatasetRefused(error.message) from None
    except UnicodeEncodeError:
        raise DatasetRefused(f"a manifest names the path {path!r}, which is not text") from None
    if path.endswith("/") or "//" in path or "." in path.split("/"):
        raise DatasetRefused(f"a manifest names the path `{path}`, which is not in its shortest form")
