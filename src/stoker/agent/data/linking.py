"""Files of a store that is a folder of this computer: linked instead of copied, where that is safe."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stoker.agent.data import cache
from stoker.agent.data.cache import hash_of
from stoker.agent.data.mounts import read_only
from stoker.agent.data.source import DataSource
from stoker.errors import Corrupt, Missing
from stoker.model.dataset import DataFile

_THREADS = 4  # hashing releases the interpreter lock


def can_link(source: DataSource, beside: str) -> bool:
    """Contents that Stoker stored, on the file system of `beside`, in a process that can mount them read-only: a store
    has the only copy, so file permissions alone are not enough."""
    if os.geteuid() != 0 or not source.files or any(file.key for file in source.files):
        return False
    try:
        place = source.local(source.files[0])
        return bool(place) and os.stat(place).st_dev == os.stat(beside).st_dev  # noqa: PTH116
    except OSError:
        return False


def in_place(source: DataSource) -> bool:
    """Files that were registered in place, on this computer."""
    return bool(source.files) and all(file.key and source.local(file) for file in source.files)


def verify(source: DataSource, check: Callable[[], None]) -> int:
    """Checks every content against its hash: by its mark, or hashed now and marked. Returns how many bytes were hashed.

    Raises Missing or Corrupt, naming the path.
    """
    hashed = 0
    lock = threading.Lock()

    def look(file: DataFile) -> None:
        nonlocal hashed
        check()
        if _verify(file, source.local(file), source.order.label):
            with lock:
                hashed += file.size_bytes

    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(look, _once(source.files)):
            pass
    return hashed


def _once(files: Iterable[DataFile]) -> Iterable[DataFile]:
    return {file.sha256: file for file in files}.values()


def _verify(file: DataFile, place: str, label: str) -> bool:
    """True where it had to be hashed."""
    try:
        seen = os.stat(place)  # noqa: PTH116  # one for each file of a dataset
    except FileNotFoundError:
        raise Missing(f"`{file.path}` of {label} is missing in the store", hint=_AGAIN) from None
    if cache.is_trusted(seen, file.sha256, file.size_bytes):
        return False
    if seen.st_size != file.size_bytes or hash_of(place) != file.sha256:
        raise Corrupt(f"`{file.path}` of {label} is damaged in the store: its hash does not match", hint=_AGAIN)
    fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    cache.set_mark(place, file.sha256, cache.ON_DISK)
    return True


_AGAIN = "find other damaged files with `stoker data verify`, and upload them again with `stoker data put`"


# The folder that a script reads an input from: it consists of links, and a script cannot change their targets through
# it.

Place = Callable[[DataFile, str], None]  # creates this file at this path


def plant(top: Path, files: Iterable[DataFile], place: Place) -> None:
    """Creates folders and then files. Names were checked when the manifest was read; a name that the file system
    refuses, or treats as another one, raises OSError."""
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
    """Makes the folder read-only for the script and its children; returns how, as text.

    As root by a mount that is read-only for root too. Otherwise by permissions: a script would have to change those
    first, and the cache detects it at its next look.
    """
    if read_only(top):
        return "a read-only mount"
    for folder, _, _ in os.walk(top, topdown=False):
        os.chmod(folder, 0o555)  # noqa: PTH101  # `os.walk` gives text
    return "permissions"


def symlink(target: str, path: str) -> None:
    os.symlink(target, path)  # noqa: PTH211  # one for each file of a dataset
