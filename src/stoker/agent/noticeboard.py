"""Notices from several places as one: the server may give one as a drill, and the machine itself may be told."""

from __future__ import annotations

import threading
from collections.abc import Callable

from stoker.model.orders import Notice


class NoticeBoard:
    """Whoever hears of notices posts here, from any thread. The one with the nearest deadline counts."""

    def __init__(self, see: Callable[[Notice | None], None]) -> None:
        self._see = see
        self._posted: dict[str, Notice | None] = {}
        self._lock = threading.Lock()

    def post(self, source: str, notice: Notice | None) -> None:
        """None: there is none, or it was withdrawn."""
        with self._lock:
            if notice == self._posted.get(source):
                return
            self._posted[source] = notice
            standing = [one for one in self._posted.values() if one]
            self._see(min(standing, key=lambda one: one.deadline, default=None))

    def posted(self, source: str) -> Notice | None:
        with self._lock:
            return self._posted.get(source)
