"""Removes a folder, whatever a script did to it, and entries of a cache by when they were last used. Standard library
only: agents carry this file."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

_TRIES = 20
_OPEN = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


def clear(top: str) -> None:
    """A missing folder is fine, and so are repeated or concurrent calls. Raises OSError."""
    try:
        if not stat.S_ISDIR(os.lstat(top).st_mode):
            Path(top).unlink()
            return
    except (FileNotFoundError, NotADirectoryError):
        return
    for left in reversed(range(_TRIES)):
        try:
            _clear(top)
            return
        except OSError as error:  # another process has moved a folder up, to remove it next
            if not left or error.errno != errno.ENOTEMPTY:
                raise


def _clear(top: str) -> None:
    folders = [top]
    while folders:
        folder = folders.pop()
        with suppress(FileNotFoundError):
            folders += _emptied(folder, top)
            if folder != top:
                Path(folder).rmdir()
    with suppress(FileNotFoundError):
        Path(top).rmdir()


def _emptied(folder: str, top: str) -> list[str]:
    """Unlinks its files, and returns its folders, which are in `top` now."""
    Path(folder).chmod(stat.S_IRWXU)
    moved = []
    file = os.open(folder, _OPEN)
    try:
        with os.scandir(file) as found:
            entries = list(found)
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    os.unlink(entry.name, dir_fd=file)
                continue
            place = f"{top}/{entry.name if folder == top else f'.part-{secrets.token_hex(8)}'}"
            with suppress(FileNotFoundError):
                os.chmod(entry.name, stat.S_IRWXU, dir_fd=file)  # a folder without write permission cannot be moved
                if folder != top:
                    os.rename(entry.name, place, src_dir_fd=file)
                moved.append(place)
    finally:
        os.close(file)
    return moved


_BEING_USED_S = 3600.0  # a submission that has just found an entry needs it until it is uploaded


def mark_used(entry: Path) -> None:
    """By its time. A missing entry is fine."""
    with suppress(OSError):
        os.utime(entry)


def unused(folder: Path, older_than_s: float, now: float) -> dict[Path, int]:
    """Entries of the folder that were not used for that long, and their sizes in bytes. `now` is Unix time."""
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
