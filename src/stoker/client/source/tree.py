"""Walks a source folder, takes a snapshot of it, and opens its files by hash."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from stoker.client.source.ignore import FILES, STOKERIGNORE, VENV_MARK, Ignore, rules_of
from stoker.client.source.screening import Screen, SecretFinding, kind_of, secret_file
from stoker.client.source.secretvalues import EDITION, SecretHit, secrets_in
from stoker.client.source.statindex import StatIndex, digest, unchanged
from stoker.errors import Corrupt, Missing, SnapshotRefused
from stoker.model.job.sections import is_glob, matches
from stoker.model.snapshot import Entry, EntryKind, Snapshot
from stoker.stores.trees.blobstream import Item, blob_stream


@dataclass(slots=True)
class WalkedTree:
    """Paths are relative with `/`, in no particular order. Sockets, pipes and devices are omitted."""

    files: list[tuple[str, os.stat_result]] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)  # with their target, as it is written
    matched: list[str] = field(default_factory=list)  # excluded by a glob of `exclude`
    empty: set[str] = field(default_factory=set)  # folders without files of the tree


def walk(root: Path, exclude: Collection[str] = ()) -> WalkedTree:
    """Follows the ignore files; `exclude` names further paths and globs. Excluded folders are never entered."""
    found = WalkedTree()
    globs = [tuple(one.split("/")) for one in exclude if is_glob(one)]
    top = f"{_source(root)}/"
    todo = [("", Ignore.above(root))]
    while todo:
        folder, ignore = todo.pop()
        try:
            entries = list(os.scandir(top + folder))
        except FileNotFoundError:
            continue  # removed since it was listed
        except OSError as error:
            raise unreadable(folder or str(root), error) from error
        names = {entry.name for entry in entries}
        if folder and VENV_MARK in names:
            continue
        if not names.isdisjoint(FILES):
            ignore = ignore.entering(folder, rules_of(Path(top + folder)))
        if folder:
            found.empty.add(folder[:-1])
        for entry in entries:
            path = folder + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if ignore.excludes(entry.name, path, is_folder) or path in exclude:
                continue
            if globs and any(matches(tuple(path.split("/")), one) for one in globs):
                found.matched.append(path)
                continue
            if not path.isascii():
                _check_name(path)
            if is_folder:
                todo.append((f"{path}/", ignore))
            else:
                _add(found, entry, path)
    kept = [path for path, _ in found.files] + [path for path, _ in found.links] + list(found.empty)
    found.empty -= {path.rpartition("/")[0] for path in kept}
    return found


def unreadable(path: str, error: OSError) -> SnapshotRefused:
    reason = (error.strerror or str(error)).lower()
    return SnapshotRefused(
        f"`{shown(path)}` cannot be read: {reason}",
        hint=f"exclude it if the run does not need it: `echo '{shown(path)}' >> {STOKERIGNORE}`",
    )


def shown(path: str) -> str:
    """A path in an error message: bytes that are not UTF-8 as `\\xff`."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _source(root: Path) -> str:
    if root.is_dir():
        return os.fspath(root)
    if root.exists():
        raise SnapshotRefused(
            f"the source `{root}` is a file, expected a folder", hint=f"set `source` to `{root.parent}`"
        )
    raise SnapshotRefused(f"the source folder `{root}` does not exist", hint="set `source` to the folder of your code")


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise SnapshotRefused(
            f"the name `{shown(path)}` is not valid UTF-8, so it would be different on another computer",
            hint=f"rename it, or exclude it with a pattern in {STOKERIGNORE}",
        ) from None


def _add(found: WalkedTree, entry: os.DirEntry[str], path: str) -> None:
    try:
        if entry.is_symlink():
            # a Path would normalize a target that has to stay as written
            found.links.append((path, os.readlink(entry.path)))  # noqa: PTH115
            _check_name(f"{path} -> {found.links[-1][1]}")
        elif entry.is_file(follow_symlinks=False):
            found.files.append((path, entry.stat(follow_symlinks=False)))
    except FileNotFoundError:
        return  # removed since it was listed
    except OSError as error:
        raise unreadable(path, error) from error


# Refuses a source folder that is too large, and shows where its bytes are.

_SHOWN = 10


def check_size(root: Path, files: Sequence[tuple[str, os.stat_result]], limit_bytes: int) -> None:
    total = sum(seen.st_size for _, seen in files)
    if total <= limit_bytes:
        return
    largest = largest_paths((path, seen.st_size) for path, seen in files)
    lines = [f"  {size_text(size):>8}  {path}" for path, size in largest]
    raise SnapshotRefused(
        f"`{root}` contains {size_text(total)} in {len(files)} files, but at most {size_text(limit_bytes)} can be"
        " uploaded as code; the largest are\n" + "\n".join(lines),
        hint=f"exclude files that the code does not need: `echo '{largest[0][0]}' >> {STOKERIGNORE}`,"
        " and list data under `data:` in the job",
    )


def largest_paths(files: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Where most bytes are: a folder as one line (ending in `/`) unless a single item in it is half of it."""
    sizes: dict[str, int] = defaultdict(int)
    children: dict[str, set[str]] = defaultdict(set)
    for path, size in files:
        sizes[path] = size
        while path:
            parent = path.rstrip("/").rpartition("/")[0]
            parent = f"{parent}/" if parent else ""
            sizes[parent] += size
            children[parent].add(path)
            path = parent
    shown, todo = [], list(children[""])
    while todo:
        path = todo.pop()
        inside = children.get(path, set())
        if inside and max(sizes[one] for one in inside) * 2 >= sizes[path]:
            todo += inside
        else:
            shown.append((path, sizes[path]))
    return sorted(shown, key=lambda one: (-one[1], one[0]))[:_SHOWN]


def size_text(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


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
        """The blobs with these hashes, each once, as `blob_stream` writes them.

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
