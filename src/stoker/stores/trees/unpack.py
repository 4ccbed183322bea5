"""Writes the tree of a snapshot into a new folder. Standard library only: agents carry this file. Checks the entries of
a manifest before anything is written. Standard library only: agents carry this file."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from stoker.errors import Conflict, Corrupt, Missing, SnapshotRefused
from stoker.model import wire
from stoker.model.cause import Cause
from stoker.model.snapshot import Entry, EntryKind, Snapshot, checked_path
from stoker.model.workspace import layout
from stoker.stores import Store
from stoker.stores.transfer.disk import Hashing, disk_failed, pieces
from stoker.stores.transfer.verified import Verified

_AT_ONCE_BYTES = 4 << 20  # larger files are read in pieces
_LARGE_AT_ONCE = 3
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def unpack(store: Store, snapshot: Snapshot, folder: Path, content_key: Callable[[str], str] = layout.blob) -> None:
    """The folder is created, or empty: so nothing in it can redirect a write. Links come last for the same reason.
    `content_key` returns the key of the content with a hash.

    Raises Corrupt or Missing, naming the path, where the store does not have a file's bytes. The caller removes what
    was written until then.
    """
    entries = checked(snapshot.entries)
    top = os.fspath(folder)
    made: set[str] = set()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(os.scandir(top)):
            raise Conflict(f"`{folder}` is not empty", hint="unpack into a fresh folder", cause=Cause.FOLDER_FOREIGN)
        for entry in entries:
            place = entry.path if entry.kind is EntryKind.FOLDER else entry.path.rpartition("/")[0]
            if place not in made:
                os.makedirs(f"{top}/{place}", exist_ok=True)  # noqa: PTH103  # a Path for each file would cost more
                made.add(place)
            if entry.kind is EntryKind.FILE and entry.size_bytes <= _AT_ONCE_BYTES:
                _write(store, entry, content_key(entry.sha256), f"{top}/{entry.path}")
        large = [one for one in entries if one.kind is EntryKind.FILE and one.size_bytes > _AT_ONCE_BYTES]
        _side_by_side(large, lambda one: _write(store, one, content_key(one.sha256), f"{top}/{one.path}"))
        for entry in entries:
            if entry.kind is EntryKind.LINK:
                os.symlink(entry.target, f"{top}/{entry.path}")  # noqa: PTH211  # the same
    except OSError as error:
        raise disk_failed("unpack into", error.filename or top, error) from error


def _side_by_side(entries: list[Entry], write: Callable[[Entry], None]) -> None:
    """A few at a time: hashing one takes longer than reading and writing it. Raises the first error."""
    if len(entries) < 2:
        for entry in entries:
            write(entry)
        return
    from concurrent.futures import (
        ThreadPoolExecutor,
    )  # here, because it is slow to import and most agents do not need it

    with ThreadPoolExecutor(_LARGE_AT_ONCE, "unpack") as pool:
        writing = [pool.submit(write, entry) for entry in entries]
        try:
            for one in writing:
                one.result()
        finally:
            for one in writing:
                one.cancel()


def _write(store: Store, entry: Entry, key: str, path: str) -> None:
    try:
        fd = os.open(path, _NEW, 0o777 if entry.executable else 0o666)
        with os.fdopen(fd, "wb", buffering=0) as file:
            if entry.size_bytes > _AT_ONCE_BYTES:
                _write_large(store, entry, key, file)
                return
            content = Verified(io.BytesIO(store.get(key, 0, entry.size_bytes)), entry.sha256, entry.size_bytes)
            _write_all(file, content.read())
    except Missing as error:
        raise Missing(f"the content of `{entry.path}` is missing in the store: {error.message}") from error
    except Corrupt as error:
        raise Corrupt(f"the content of `{entry.path}` is damaged in the store: {error.message}") from error


def _write_large(store: Store, entry: Entry, key: str, file: io.FileIO) -> None:
    """Read and written here, hashed in a thread: on a fast disk both take about as long."""
    hashing = Hashing()
    left, found = entry.size_bytes, ""
    try:
        for piece in pieces(store, key, entry.size_bytes):
            hashing.put(piece)
            _write_all(file, piece)
            left -= len(piece)
    finally:
        found = hashing.finish()
    if left:
        raise Corrupt(f"the bytes of {entry.sha256} ended {left} too early")
    if found != entry.sha256:
        raise Corrupt(f"the bytes do not have the hash {entry.sha256}")


def _write_all(file: io.FileIO, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) or 0 :]


def checked(entries: Iterable[Entry]) -> list[Entry]:
    """The entries, if they all fit into one folder, with nothing outside it and nothing behind a link."""
    known: dict[str, Entry] = {}
    for entry in entries:
        path = checked_path(entry.path)
        if not path.isascii():
            _check_text(path)
        if path.endswith("/") or "//" in path or "." in path.split("/"):
            raise SnapshotRefused(f"the manifest contains the path `{path}`, which is not normalized")
        if path in known:
            raise SnapshotRefused(f"the manifest contains the path `{path}` twice")
        known[path] = entry
    folders: set[str] = set()
    for path in known:
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:
            if folder in known and known[folder].kind is not EntryKind.FOLDER:
                raise SnapshotRefused(f"the manifest contains `{path}`, but also `{folder}` as a {known[folder].kind}")
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return list(known.values())


def verified(data: bytes, id: str) -> Snapshot:
    """The snapshot with this id. Raises Corrupt where the text is that of another one: then it is not the submitted
    code."""
    try:
        snapshot = wire.load(Snapshot, data)
        found = snapshot.id
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise Corrupt(f"the file list of the snapshot {id[:12]} is damaged") from None
    if found != id:
        raise Corrupt(
            f"the files of the snapshot {id[:12]} in the store are not the submitted ones",
            hint="the store was changed: submit the code again, and check who may write there",
            cause=Cause.CODE_DIFFERS,
        )
    return snapshot


def _check_text(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise SnapshotRefused(f"the manifest contains the path {path!r}, which is not text") from None
