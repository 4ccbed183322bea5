"""Who gets the processors first while a node is about to go: the agent, which has seconds, and needs little of them.

A script may run far more threads than its node has processors, and an agent among them gets one share of many. Only a
privileged agent, as those of a cloud's machines are, may go first; any other one keeps its share.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

AHEAD = -15  # as `nice` counts
_SELF = Path("/proc/self")


class Priority:
    """Of all threads of this process: each one may hold what another waits for. The script keeps its own."""

    def __init__(self) -> None:
        self._usual: int | None = None  # while it is ahead

    def raise_(self) -> None:
        if self._usual is None:
            self._usual = os.getpriority(os.PRIO_PROCESS, 0)
            _set(AHEAD)

    def restore(self) -> None:
        if self._usual is not None:
            _set(self._usual)
            self._usual = None


def _set(nice: int) -> None:
    try:
        threads = [int(one.name) for one in (_SELF / "task").iterdir()]
    except OSError:  # not Linux
        return
    for thread in threads:
        with suppress(OSError):  # not allowed, or ended
            os.setpriority(os.PRIO_PROCESS, thread, nice)
    with suppress(OSError):  # where the system gives each session its share, threads only count within their own
        (_SELF / "autogroup").write_text(str(nice))
