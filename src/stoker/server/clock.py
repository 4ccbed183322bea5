"""The server's clock: the time of day when it started, going on steadily whatever is done to the computer's clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

# What goes on while a laptop is shut: machines elsewhere cost money all the while.
_AWAKE_OR_NOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock:
    def __init__(self) -> None:
        self._wall = datetime.now(UTC)
        self._began = time.clock_gettime(_AWAKE_OR_NOT)

    def now(self) -> datetime:
        return self._wall + timedelta(seconds=time.clock_gettime(_AWAKE_OR_NOT) - self._began)

    def steady(self) -> float:
        """Seconds that only ever grow, for measuring how long something has lasted."""
        return time.monotonic()
