"""The training itself: work that is done second by second until something stops it."""

from __future__ import annotations

from stoker.testing.world.timeline import Timeline


class WorldScript:
    def __init__(self, timeline: Timeline, work_s: float) -> None:
        self._timeline = timeline
        self.work_s = work_s
        self._base_s = 0.0  # work done when it last started or changed
        self._since: float | None = None  # None: it is stopped
        self._speed = 1.0

    @property
    def works(self) -> bool:
        return self._since is not None

    @property
    def done_s(self) -> float:
        if self._since is None:
            return self._base_s
        return min(self._base_s + (self._timeline.now - self._since) * self._speed, self.work_s)

    @property
    def ends_in_s(self) -> float:
        return (self.work_s - self.done_s) / self._speed

    def put_back(self, done_s: float) -> None:
        self._base_s = done_s

    def go(self) -> None:
        self._base_s, self._since = self.done_s, self._timeline.now

    def stop(self) -> None:
        self._base_s, self._since = self.done_s, None

    def slow_down(self, factor: float) -> None:
        """Also of a stopped one: it is slower when it continues."""
        done_s, going = self.done_s, self.works
        self._base_s, self._since = done_s, self._timeline.now if going else None
        self._speed *= factor
