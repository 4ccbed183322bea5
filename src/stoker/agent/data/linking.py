"""Files of a store that is a folder of this computer: linked, and nothing is copied, where that is safe."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from stoker.agent.data import marks
from stoker.agent.data.cache import hash_of
from stoker.agent.data.source import Source
from stoker.errors import Corrupt, Missing
from stoker.model.dataset import DataFile

_THREADS = 4  # hashing leaves the interpreter to others


def can_link(source: Source, beside: str) -> bool:
    """Contents that Stoker stored, on the file system of `beside`, and a process that can protect them: a store is the
    only copy there is, so permissions alone would not do."""
    if os.geteuid() != 0 or not source.files or any(file.key for file in source.files):
        return False
    try:
        place = source.local(source.files[0])
        return bool(place) and os.stat(place).st_dev == os.stat(beside).st_dev  # noqa: PTH116
    except OSError:
        return False


def in_place(source: Source) -> bool:
    """Files that were registered where they lie, on this computer."""
    return bool(source.files) and all(file.key and source.local(file) for file in source.files)


def verify(source: Source, check: Callable[[], None]) -> int:
    """Every content is what its hash says: by its mark, or hashed now and marked. How many bytes were hashed.

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
        raise Missing(f"the store has lost `{file.path}` of {label}", hint=_AGAIN) from None
    if marks.is_trusted(seen, file.sha256, file.size_bytes):
        return False
    if seen.st_size != file.size_bytes or hash_of(place) != file.sha256:
        raise Corrupt(f"the store has damaged `{file.path}` of {label}: its bytes have another hash", hint=_AGAIN)
    fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    marks.set_mark(place, file.sha256, marks.ON_DISK)
    return True


_AGAIN = "see what else is damaged with `stoker data verify`, and put it again with `stoker data put`"
