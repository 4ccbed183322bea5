"""The contents of a folder, as `os.scandir` sees them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from stoker.model.job.checkpointpaths import CheckpointPaths, fits, is_glob

Unreadable = Callable[[str, OSError], None]


def walk(top: str, unreadable: Unreadable) -> Iterator[tuple[str, os.DirEntry[str] | None]]:
    """Everything below `top` by its path with `/`: files, links and others; None stands for an empty folder.

    Links are not followed. Unreadable folders are passed to `unreadable`; those that vanish are skipped.
    """
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        try:
            with os.scandir(os.path.join(top, prefix)) as found:  # noqa: PTH118  # a Path for each would cost too much
                entries = list(found)
        except FileNotFoundError:
            continue
        except OSError as error:
            unreadable(prefix, error)
            continue
        if prefix and not entries:
            yield prefix, None
        for entry in entries:
            path = f"{prefix}/{entry.name}" if prefix else entry.name
            if entry.is_dir(follow_symlinks=False):
                waiting.append(path)
            else:
                yield path, entry


# Which of the files and folders that a job declares as checkpoints exist now.


def present(work: Path, paths: CheckpointPaths) -> list[str]:
    """Each once, none inside another. Links are not followed: their targets may be anywhere."""
    found: dict[str, None] = {}
    for root in paths.roots:
        found |= dict.fromkeys(_expand(str(work), root.split("/"), "") if is_glob(root) else _literal(work, root))
    return [one for one in found if not any(one.startswith(f"{other}/") for other in found)]


def _literal(work: Path, root: str) -> list[str]:
    return [root] if os.path.lexists(work / root) else []


def _expand(top: str, parts: list[str], prefix: str) -> Iterator[str]:
    """The paths below `prefix` that match the parts of a pattern."""
    if not parts:
        if prefix:
            yield prefix
        return
    head, *rest = parts
    if head == "**":
        yield from _expand(top, rest, prefix)
    elif not is_glob(head):
        path = f"{prefix}/{head}" if prefix else head
        if os.path.lexists(f"{top}/{path}") and not (rest and os.path.islink(f"{top}/{path}")):  # noqa: PTH114  # text
            yield from _expand(top, rest, path)
        return
    for entry in _entries(f"{top}/{prefix}"):
        path = f"{prefix}/{entry.name}" if prefix else entry.name
        folder = entry.is_dir(follow_symlinks=False)
        if head == "**":
            if folder and not entry.name.startswith("."):
                yield from _expand(top, parts, path)
        elif fits(entry.name, head) and (folder or not rest):
            yield from _expand(top, rest, path)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:  # gone, or not a folder
        return []
