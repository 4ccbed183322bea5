"""File operations that every program uses: locks, which the kernel releases however their holder ends; atomic writes,
to a temporary file that is renamed; checksums. Standard library only; knows nothing of Stoker."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_PAUSE_S = 0.01
_WAY = os.O_CREAT | os.O_RDWR | getattr(os, "O_CLOEXEC", 0)  # not on Windows, where descriptors are not inherited


@contextmanager
def held(path: Path, timeout_s: float | None = None) -> Iterator[None]:
    """Waits for the lock, without limit by default, and holds it. Raises TimeoutError, or OSError if the file cannot be
    created."""
    descriptor = claim(path, timeout_s)
    if descriptor is None:
        raise TimeoutError(f"{path} is held by another process")
    try:
        yield
    finally:
        os.close(descriptor)


def claim(path: Path, timeout_s: float | None = 0.0, pause_s: float = _PAUSE_S) -> int | None:
    """The lock, as a descriptor that holds it until it is closed in every process that has it; None if another process
    still holds it after this time."""
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
    """Whether the lock is held now. Checking shares it for a moment: only for locks whose takers retry."""
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        return False
    try:
        return not take(descriptor, shared=True)
    finally:
        os.close(descriptor)


def take(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Immediately or not at all; with `wait`, in the order in which the kernel grants it."""
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

    msvcrt = importlib.import_module("msvcrt")  # by name: it has no types on other systems
    try:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    except OSError:
        return False
    return True


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A place beside `path` to write to, which takes its name at the end. A kill at any moment leaves the old file or
    the new one; a failure leaves nothing beside it. Not made to survive a power failure."""
    part = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.part")
    try:
        yield part
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_whole(path: Path, data: bytes | str, *, mode: int = 0o666) -> None:
    """Replaces what was there. `mode` is what the user's umask may narrow."""
    content = data.encode() if isinstance(data, str) else data
    with (
        replacing(path) as part,
        os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file,
    ):
        file.write(content)


@cache
def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


def masked_crc(data: bytes) -> int:
    """CRC-32C, rotated and offset as the format requires."""
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
