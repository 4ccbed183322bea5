"""The folder that a script reads an input from: made of links, and nothing the script does there reaches what they lead
to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from stoker.agent.data.mounts import read_only
from stoker.model.dataset import DataFile

Place = Callable[[DataFile, str], None]  # makes this path that file


def plant(top: Path, files: Iterable[DataFile], place: Place) -> None:
    """Folders and then files, by a Place. Names were checked when the manifest was read; a name that the file system
    refuses, or takes for another's, raises OSError."""
    made: set[str] = set()
    root = os.fspath(top)
    top.mkdir(parents=True, exist_ok=True)
    for file in files:
        folder = file.path.rpartition("/")[0]
        if folder not in made:
            os.makedirs(f"{root}/{folder}", exist_ok=True)  # noqa: PTH103  # a Path for each file would cost more
            made.add(folder)
        place(file, f"{root}/{file.path}")


def protect(top: Path) -> str:
    """The script, and whoever it starts, can only read what is there; how, in words.

    As root by a mount that is read-only to root too. Otherwise by permissions: a script would have to change those
    first, and the cache finds out when it next looks.
    """
    if read_only(top):
        return "a read-only mount"
    for folder, _, _ in os.walk(top, topdown=False):
        os.chmod(folder, 0o555)  # noqa: PTH101  # `os.walk` gives text
    return "permissions"


def symlink(target: str, path: str) -> None:
    os.symlink(target, path)  # noqa: PTH211  # one for each file of a dataset
