"""How often a run requests machines that it does not get: the documented pauses, counted in the world's own time."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

from stoker.engine.patience import MARKET
from stoker.model.run.run import Run

HOUR_S = 3600.0
MOST_AN_HOUR = 15  # of one place: after 30 s, 1, 2 and 4 minutes, and from then on every 5 minutes


class RequestPace:
    """Of one world. `places` are those that each run may request machines from, `faults` what may end a pause early."""

    def __init__(self, places: int, faults: int) -> None:
        self.most = places * MOST_AN_HOUR + faults
        self._seen: set[tuple[str, int | datetime]] = set()
        self._vain: dict[str, list[float]] = defaultdict(list)  # by run: when its last refused requests ended

    def too_many(self, run: Run, now: float) -> int:
        """The refused requests of the last hour, if they are more than the pauses allow; else 0. Called at each change
        of a run. An attempt counts once, however many of its nodes were refused."""
        vain = self._vain[run.id]
        for what in _refused(run):
            if (run.id, what) not in self._seen:
                self._seen.add((run.id, what))
                vain.append(now)
        while vain and now - vain[0] > HOUR_S:
            vain.pop(0)
        return len(vain) if len(vain) > self.most else 0


def _refused(run: Run) -> list[int | datetime]:
    """Numbers of attempts that were refused a node, and times at which one was refused in advance. A round may end one
    attempt and begin another."""
    found: list[int | datetime] = []
    for attempt in run.attempts[-2:]:
        if attempt.started_at is None and any(one.trouble in MARKET.codes for one in attempt.troubled):
            found.append(attempt.number)
        found += [one.at for one in attempt.refusals]
    return found
