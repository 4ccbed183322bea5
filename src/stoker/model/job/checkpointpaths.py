"""What a job names under `checkpoints`: folders, files and globs below the working directory. Pure: nothing is read.

A name that ends in `/`, or has no suffix, is a folder, and is made before the script starts. A name with a suffix such
as `checkpoint.pth.tar` is whatever the script makes of it. In a glob, `*` stays within a folder and `**` does not; a
folder that a glob matches is kept as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

DEFAULT = "checkpoints"
BESIDE = ".stoker-exact"  # `exact: true` keeps what belongs to `NAME` in `.NAME.stoker-exact` beside it
_MAGIC = re.compile(r"[*?[]")
_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,9}")  # `.2` of `v1.2` is none


def is_glob(named: str) -> bool:
    return _MAGIC.search(named) is not None


def is_folder(named: str) -> bool:
    """Whether it is certainly a folder."""
    return not is_glob(named) and (named.endswith("/") or not _SUFFIX.fullmatch(PurePosixPath(named).suffix))


class CheckpointPaths:
    """All of those of one job. Paths are relative, with `/`."""

    def __init__(self, named: Iterable[str]) -> None:
        given = sorted({one.rstrip("/"): one for one in named}.values())
        self.folders = [one.rstrip("/") for one in given if is_folder(one)] or [DEFAULT]
        files = [one for one in given if not is_folder(one)]
        every = {
            *(one.rstrip("/") for one in given),
            *self.folders,
            *(beside for one in files if (beside := _beside(one))),
        }
        self._parts = {one: tuple(one.split("/")) for one in sorted(every)}
        # None of them inside another: what is in both is in the outer one.
        self.roots = [one for one in self._parts if not any(self._covers(other, one) for other in every - {one})]
        self._known: dict[str, str | None] = {}

    def root(self, path: str) -> str | None:
        """The file or folder that is named and that `path` is, or is in; None where it is no checkpoint."""
        if path not in self._known:
            names = tuple(path.split("/"))
            ends = range(1, len(names) + 1)
            self._known[path] = next(("/".join(names[:end]) for end in ends if self._names(names[:end])), None)
        return self._known[path]

    def top(self, path: str) -> str:
        """The folder that checkpoints lie in beside each other: the one that is named, or that of the named file."""
        root = self.root(path)
        return path.rpartition("/")[0] if root is None or root == path else root

    def _names(self, names: tuple[str, ...]) -> bool:
        return any(matches(names, self._parts[one]) for one in self.roots)

    def _covers(self, outer: str, inner: str) -> bool:
        return not is_glob(outer) and inner.startswith(f"{outer}/")


def _beside(named: str) -> str:
    """What lies beside the files of this name; empty where only whole folders can be meant."""
    folder, _, name = named.rstrip("/").rpartition("/")
    return "" if name == "**" else f"{folder}/.{name}{BESIDE}".lstrip("/")


def matches(names: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Whether the parts of a path are what the parts of a pattern say."""
    if not parts:
        return not names
    if parts[0] == "**":
        return any(matches(names[skipped:], parts[1:]) for skipped in range(len(names) + 1))
    return bool(names) and fits(names[0], parts[0]) and matches(names[1:], parts[1:])


def fits(name: str, part: str) -> bool:
    """As a shell has it: a hidden name has to be asked for."""
    return fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))
