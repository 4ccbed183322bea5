"""A lock on a file, on every system: the kernel gives it back however its holder ends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PAUSE_S = 0.01
_WAY = os.O_CREAT | os.O_RDWR | getattr(os, "O_CLOEXEC", 0)  # not on Windows, which inherits nothing anyway


@contextmanager
def held(path: Path, timeout_s: float | None = None) -> Iterator[None]:
    """Waits for the lock, for ever where nothing else is said, and holds it. Raises TimeoutError, or OSError where the
    file cannot be made."""
    descriptor = claim(path, timeout_s)
    if descriptor is None:
        raise TimeoutError(f"{path} is held by another process")
    try:
        yield
    finally:
        os.close(descriptor)


def claim(path: Path, timeout_s: float | None = 0.0, pause_s: float = _PAUSE_S) -> int | None:
    """The lock, as a descriptor that holds it until it is closed in every process that has it; None: somebody else
    holds it, and still did after this time."""
    descriptor = os.open(path, _WAY, 0o600)
    give_up = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        while not take(descriptor, wait=give_up is None):
            if give_up is not None and time.monotonic() >= give_up:
                os.close(descriptor)
                return None
            time.sleep(pause_s)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_held(path: Path) -> bool:
    """Somebody holds the lock now. Looking shares it for a moment: for locks whose takers try again."""
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        return False
    try:
        return not take(descriptor, shared=True)
    finally:
        os.close(descriptor)


def take(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool:
    """At once, or not at all; with `wait` in the order in which the kernel lets those who wait have it."""
    try:
        import fcntl  # not on Windows
    except ImportError:
        return _take_on_windows(descriptor)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
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
