"""How long a script waited for a mount: looked at from outside, many times a second.

A moment counts in which some thread of the script waits inside the kernel for the bytes of a file and none of its
threads is running: then nothing goes on but the reading. What waits for others, as a trainer for its data loaders,
counts with them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from stoker.agent.shipping.worker import Worker

EVERY_S = 0.1
SHARE = 50  # looking takes at most one part in so many of the time
_PROC = Path("/proc")
_WAITS = ("fuse_", "request_wait_answer", "folio_wait", "wait_on_page", "io_schedule", "filemap_")


class WaitWatch(Worker):
    """`pids` gives the processes of the script."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        super().__init__("data waits")
        self._pids = pids
        self.waited_s = 0.0

    def work(self) -> None:
        before = time.monotonic()
        pause_s = EVERY_S
        while not self.ending.wait(pause_s):
            start = time.monotonic()
            if is_waiting(self._pids()):
                self.waited_s += start - before
            before = start
            pause_s = max(EVERY_S, SHARE * (time.monotonic() - start))


def is_waiting(pids: Iterable[int]) -> bool:
    """Of a kernel that does not tell where a thread waits, one that cannot be interrupted counts as reading."""
    reading = False
    for pid in pids:
        with suppress(OSError):
            for thread in os.listdir(_PROC / str(pid) / "task"):  # noqa: PTH208  # dozens, many times a second
                place = f"{_PROC}/{pid}/task/{thread}"
                state = _read(f"{place}/stat").rpartition(")")[2].split(maxsplit=1)[0]
                if state == "R":
                    return False
                if state in "DS":
                    where = _read(f"{place}/wchan")
                    reading = reading or where.startswith(_WAITS) or (state == "D" and where in ("0", ""))
    return reading


def _read(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096).decode(errors="replace")
    finally:
        os.close(fd)
