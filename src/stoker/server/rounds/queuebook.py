"""What the queue knows of runs that are over: how long those of each experiment took, and what each person has used."""

from __future__ import annotations

from collections import deque
from datetime import datetime

from stoker.engine.queue.facts import QueueFacts, worked_s
from stoker.engine.queue.order import decayed
from stoker.model import wire
from stoker.model.run.run import Run, RunState
from stoker.server.records.database import Database

_LOOKS_BACK = 500  # runs; earlier ones count next to nothing
_NEWEST = 5  # runs of an experiment, as in a forecast: older ones had another script


class QueueBook:
    """Read once, and then told of every run that is over."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._used: dict[str, float] | None = None  # by person, as of `_as_of`; None: not read yet
        self._as_of: datetime | None = None
        self._took: dict[str, deque[float]] = {}  # by experiment, newest last

    def current(self, now: datetime) -> QueueFacts:
        if self._used is None:
            self._read(now)
        used = {person: decayed(use, self._age_s(now)) for person, use in (self._used or {}).items()}
        return QueueFacts(used, {name: sorted(took)[len(took) // 2] for name, took in self._took.items() if took})

    def closed(self, run: Run) -> None:
        if self._used is not None and run.ended_at and self._as_of:
            self._count(run, self._as_of)

    def _read(self, now: datetime) -> None:
        self._used, self._as_of = {}, now
        for row in reversed(self._database.page(_LOOKS_BACK, "", "", "")):
            run = wire.from_plain(Run, row)
            if run.state.ended and run.ended_at:
                self._count(run, now)

    def _count(self, run: Run, as_of: datetime) -> None:
        """`_used` is as of one moment: what comes later counts for more."""
        ended = run.ended_at or as_of
        worked = worked_s(run, ended)
        if run.state is RunState.SUCCEEDED and worked:
            self._took.setdefault(run.experiment, deque(maxlen=_NEWEST)).append(worked)
        age_s = (as_of - ended).total_seconds()
        use = run.job.nodes * worked
        weight = decayed(1.0, age_s) if age_s >= 0 else 1.0 / decayed(1.0, -age_s)
        assert self._used is not None
        self._used[run.person] = self._used.get(run.person, 0.0) + use * weight

    def _age_s(self, now: datetime) -> float:
        return (now - self._as_of).total_seconds() if self._as_of else 0.0
