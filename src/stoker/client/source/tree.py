"""Takes a snapshot of a source folder, and opens its files by hash."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from stoker.client.source.ignore import STOKERIGNORE
from stoker.client.source.screening import Screen, SecretFinding, kind_of, secret_file
from stoker.client.source.secretvalues import EDITION, SecretHit, secrets_in
from stoker.client.source.statindex import StatIndex, digest, unchanged
from stoker.client.source.walk import check_size, unreadable, walk
from stoker.errors import Corrupt, Missing, SnapshotRefused
from stoker.model.snapshot import Entry, EntryKind, Snapshot
from stoker.stores.trees.blobstream import Item, blob_stream

_TRIES = 3  # for a file that changes while it is read


@dataclass(frozen=True, slots=True)
class SourceTree:
    root: Path
    snapshot: Snapshot
    files: Mapping[str, Entry]  # by sha256; one of several identical files
    index: Path | None = None
    findings: tuple[
        SecretFinding, ...
    ] = ()  # secrets in the folder: files that are not uploaded are not in the snapshot
    matched: tuple[str, ...] = ()  # what the globs to exclude have matched
    elsewhere: Mapping[str, Path] = field(default_factory=dict)  # files that are not in the folder, by sha256

    def path(self, sha256: str) -> Path:
        if sha256 not in self.files:
            raise Missing(f"no file in `{self.root}` has the hash {sha256}")
        return self.elsewhere.get(sha256) or self.root / self.files[sha256].path

    def with_files(self, added: Mapping[str, Path], instead_of: Callable[[str], bool]) -> SourceTree:
        """With files from elsewhere, by their path in the snapshot, which replace its own files of the same path."""
        entries = [entry for entry in self.snapshot.entries if not instead_of(entry.path)]
        files = {entry.sha256: entry for entry in entries if entry.kind is EntryKind.FILE}
        elsewhere: dict[str, Path] = {}
        for path, file in added.items():
            sha256, _, after = digest(str(file), lambda _: None)
            entry = Entry(path, EntryKind.FILE, sha256, after.st_size)
            entries.append(entry)
            files[sha256], elsewhere[sha256] = entry, file
        snapshot = Snapshot(tuple(sorted(entries, key=lambda entry: entry.path)))
        return replace(self, snapshot=snapshot, files=files, elsewhere=elsewhere)

    def open(self, sha256: str) -> BinaryIO:
        """The file as it is now, which may differ from the snapshot."""
        return self.path(sha256).open("rb", buffering=0)

    def stream(self, missing: Iterable[str]) -> Iterator[bytes]:
        """The blobs with these hashes, each once, as `stores.blobstream` writes them.

        Raises SnapshotRefused if a file has changed since the snapshot was taken.
        """
        path = ""

        def items() -> Iterator[Item]:
            nonlocal path
            for sha256 in dict.fromkeys(missing):
                self.path(sha256)  # raises Missing
                path = self.files[sha256].path
                yield sha256, self.files[sha256].size_bytes, partial(self.open, sha256)

        try:
            yield from blob_stream(items())
        except (Corrupt, OSError) as error:
            if self.index:
                self.index.unlink(missing_ok=True)  # in case the index is wrong
            raise SnapshotRefused(f"`{path}` changed during the upload", hint="retry") from error


def scan(
    root: Path,
    *,
    index: Path | None = None,
    exclude: Sequence[str] = (),
    needed: Collection[str] = (),
    limit_bytes: int = 500_000_000,
    now_ns: Callable[[], int] = time.time_ns,
) -> SourceTree:
    """Reads only the files that changed since `index` was written, and writes it again.

    `exclude` names relative paths and globs to exclude, and `needed` those that the job names itself. Raises
    SnapshotRefused; for a secret in code, once `screening.check` is called.
    """
    found = walk(root, {str(PurePosixPath(path)) for path in exclude})
    check_size(root, found.files, limit_bytes)
    hashes = StatIndex(index)
    entries = [Entry(path, EntryKind.LINK, target=target) for path, target in found.links]
    entries += [Entry(path, EntryKind.FOLDER) for path in found.empty]
    files: dict[str, Entry] = {}
    screen = Screen(root, needed)
    for path, seen in found.files:
        sha256 = hashes.known(path, seen)
        note = hashes.note(path) if sha256 else None
        if note != EDITION:  # true for nearly every file
            hits = _noted(note)
            if hits is None:
                read = _read(root, path, hashes, now_ns)
                if not read:
                    continue
                sha256, seen, hits = read
            if hits is not None and not screen.keeps(path, hits, seen.st_size):
                continue
        entry = Entry(path, EntryKind.FILE, sha256, seen.st_size, bool(seen.st_mode & 0o100))
        entries.append(entry)
        files[sha256] = entry
    hashes.save()
    snapshot = Snapshot(tuple(sorted(entries, key=lambda entry: entry.path)))
    return SourceTree(root, snapshot, files, index, tuple(screen.findings), tuple(found.matched))


def _read(
    root: Path, path: str, hashes: StatIndex, now_ns: Callable[[], int]
) -> tuple[str, os.stat_result, list[SecretHit] | None] | None:
    """The file's hash with its stat, which did not change meanwhile, and its secrets: None if neither its name nor its
    text has any. None alone: it was removed since it was listed."""
    for _ in range(_TRIES):
        read_at_ns, beginning = now_ns(), list[bytes]()
        try:
            sha256, before, after = digest(f"{root}/{path}", beginning.append)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(path, error) from error
        if sha256 and unchanged(before, after):
            hits = secrets_in(b"".join(beginning), kind_of(path))
            told = bool(hits or secret_file(path))
            hashes.learn(path, after, sha256, read_at_ns, [EDITION, *hits] if told else EDITION)
            return sha256, after, hits if told else None
    raise SnapshotRefused(
        f"`{path}` changed each of the {_TRIES} times it was read",
        hint=f"retry when no process writes to it, or add it to {STOKERIGNORE}",
    )


def _noted(note: Any) -> Sequence[SecretHit] | None:
    """The secrets that an earlier scan found; None if it has to be scanned again. A note that is only the edition's
    number means that neither the name nor the text of a file has any."""
    if not isinstance(note, list) or not note or note[0] != EDITION:
        return None
    try:
        return [SecretHit(int(line), str(kind), bool(sure)) for line, kind, sure in note[1:]]
    except (TypeError, ValueError):
        return None
