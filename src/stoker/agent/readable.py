"""Waiting for something to read."""

from __future__ import annotations

import select
from collections.abc import Iterable


def readable(fds: Iterable[int], seconds: float) -> list[int]:
    """Those that can be read within so long. Not by `select`, which knows the first 1,024 files of a process only: the
    agent may hold thousands open."""
    waiting = select.poll()
    for fd in fds:
        waiting.register(fd, select.POLLIN)
    return [fd for fd, _ in waiting.poll(seconds * 1000)]
