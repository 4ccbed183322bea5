"""An exclusive lock on a file, on every system: the kernel gives it back however its holder ends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PAUSE_S = 0.01


@contextmanager
def held(path: Path, timeout_s: float) -> Iterator[None]:
    """Waits for the lock and holds it. Raises TimeoutError, or OSError where the file cannot be made."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        give_up = time.monotonic() + timeout_s
        while not _take(descriptor):
            if time.monotonic() > give_up:
                raise TimeoutError(f"{path} is held by another process")
            time.sleep(_PAUSE_S)
        yield
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Somebody holds the lock now. Looking takes it for a moment: for locks whose takers try again."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not _take(descriptor)
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> bool:
    try:
        import fcntl  # not on Windows
    except ImportError:
        return _take_on_windows(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _take_on_windows(descriptor: int) -> bool:
    import importlib

    msvcrt = importlib.import_module("msvcrt")  # by name: elsewhere it has no types to check
    try:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    except OSError:
        return False
    return True
