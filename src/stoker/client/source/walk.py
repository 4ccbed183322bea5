"""Walks a source folder and lists its files. Only folders and ignore files are read."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stoker.client.source.ignore import FILES, STOKERIGNORE, VENV_MARK, Ignore, rules_of
from stoker.errors import SnapshotRefused
from stoker.model.job.checkpointpaths import is_glob, matches


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
