"""The server's clock: the time of day when it started, going on steadily whatever is done to the computer's clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta


class Clock:
    def __init__(self) -> None:
        self._wall = datetime.now(UTC)
        self._steady = time.monotonic()

    def now(self) -> datetime:
        return self._wall + timedelta(seconds=time.monotonic() - self._steady)

    def steady(self) -> float:
        """Seconds that only ever grow, for measuring how long something has lasted."""
        return time.monotonic()
