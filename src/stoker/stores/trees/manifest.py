"""Checks the entries of a manifest before anything is written. Standard library only: agents carry this file."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.errors import Corrupt, SnapshotRefused
from stoker.model import wire
from stoker.model.snapshot import Entry, EntryKind, Snapshot, checked_path


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
        )
    return snapshot


def _check_text(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise SnapshotRefused(f"the manifest contains the path {path!r}, which is not text") from None
