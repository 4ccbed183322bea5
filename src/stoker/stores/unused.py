"""Entries of a cache folder by when they were last used: a user of an entry marks it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from stoker.stores.trees.clearing import clear

_BEING_USED_S = 3600.0  # a submission that has just found an entry needs it until it is uploaded


def mark_used(entry: Path) -> None:
    """By its time. A missing entry is fine."""
    with suppress(OSError):
        os.utime(entry)


def unused(folder: Path, older_than_s: float, now: float) -> dict[Path, int]:
    """Entries of the folder that were not used for so long, and their sizes in bytes. `now` is Unix time."""
    before = now - max(older_than_s, _BEING_USED_S)
    found: dict[Path, int] = {}
    with suppress(OSError):
        for entry in sorted(folder.iterdir()):
            with suppress(OSError):
                files = [entry, *entry.rglob("*")] if entry.is_dir() and not entry.is_symlink() else [entry]
                seen = [file.lstat() for file in files]
                if max(one.st_mtime for one in seen) < before:
                    found[entry] = sum(one.st_blocks * 512 for one in seen)
    return found


def remove_unused(folder: Path, older_than_s: float, now: float) -> int:
    """The freed bytes. What cannot be removed stays until the next time."""
    freed = 0
    for entry, size_bytes in unused(folder, older_than_s, now).items():
        with suppress(OSError):
            clear(str(entry))
            freed += size_bytes
    return freed
