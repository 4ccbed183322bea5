"""The progress of a transfer: counted by the code that transfers, read by the code that shows it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

_WINDOW_S = 8.0  # the rate's window: long enough to be stable, short enough to show a stall


@dataclass(frozen=True, slots=True)
class TransferState:
    """A transfer at one time. `left_s` is None while unknown."""

    what: str
    files: int
    all_files: int
    size_bytes: int
    all_bytes: int
    bytes_per_s: float
    seconds: float
    left_s: float | None


class TransferProgress:
    """May be updated from several threads. Totals may grow during the work."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._start = clock()
        self._what = ""
        self._files = self._all_files = self._bytes = self._all_bytes = 0
        self._recent: deque[tuple[float, int]] = deque()  # moments, and the bytes that had been moved by then
        self._moved = 0

    def begin(self, what: str, files: int, size_bytes: int) -> None:
        """A new part of the work, named with a word such as `uploading`, and its size."""
        with self._lock:
            self._what, self._all_files, self._all_bytes = what, files, size_bytes
            self._files = self._bytes = self._moved = 0
            self._start = self._clock()
            self._recent.clear()

    def expect(self, files: int, size_bytes: int) -> None:
        """More work of the same kind than was known."""
        with self._lock:
            self._all_files += files
            self._all_bytes += size_bytes

    def moved(self, size_bytes: int, files: int) -> None:
        """Bytes and files that were transferred since the last call. Bytes that have to be transferred again are given
        as a negative number."""
        now = self._clock()
        with self._lock:
            self._bytes += size_bytes
            self._moved += size_bytes
            self._files += files
            if not self._recent or now - self._recent[-1][0] > _WINDOW_S / 80:
                self._recent.append((now, self._moved))
            while len(self._recent) > 2 and now - self._recent[0][0] > _WINDOW_S:
                self._recent.popleft()

    def skipped(self, size_bytes: int, files: int) -> None:
        """What existed already: done, but not counted for the rate."""
        with self._lock:
            self._bytes += size_bytes
            self._files += files

    def standing(self) -> TransferState:
        with self._lock:
            now = self._clock()
            rate = self._rate(now)
            left = (self._all_bytes - self._bytes) / rate if rate > 0 and self._all_bytes >= self._bytes else None
            return TransferState(
                self._what, self._files, self._all_files, self._bytes, self._all_bytes, rate, now - self._start, left
            )

    def _rate(self, now: float) -> float:
        since, before = self._recent[0] if self._recent and now - self._recent[0][0] >= 0.5 else (self._start, 0)
        span = now - since
        return max(0.0, (self._moved - before) / span) if span > 0 else 0.0
