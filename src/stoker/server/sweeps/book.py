"""Every sweep, in memory: read once, saved when it changes. The results of runs that are over."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from stoker.engine.money import meter
from stoker.engine.sweeps.parallel import PastTrials, SweepFacts
from stoker.errors import NotFound
from stoker.model.cause import Cause
from stoker.model.job.fields import nearest
from stoker.model.run.run import Run, RunState
from stoker.model.run.sweep import Sweep
from stoker.server.records.database import Database
from stoker.server.records.sweeps import SweepTable


class SweepBook:
    def __init__(self, database: Database) -> None:
        self._past: dict[str, dict[str, tuple[Decimal, bool]]] = {}  # by sweep, by run: its cost, and if it succeeded
        self.table = SweepTable(database.engine)
        self._known: dict[str, Sweep] | None = None  # by id; None: not read yet

    @property
    def all(self) -> list[Sweep]:
        """Oldest first."""
        if self._known is None:
            self._known = {one.id: one for one in self.table.all()}
        return list(self._known.values())

    def facts(self) -> SweepFacts:
        """For the engine."""
        if not self.all:
            return SweepFacts()
        known = self._known or {}
        past = {id: self._past_of(id) for id, one in known.items() if one.budget is not None}
        return SweepFacts(known, past)

    def closed(self, run: Run) -> None:
        """The run has ended and all its nodes are gone: later rounds do not include it."""
        if run.trial and run.trial.sweep in self._past:
            self._past[run.trial.sweep][run.id] = _paid(run)

    def _past_of(self, sweep: str) -> PastTrials:
        if sweep not in self._past:
            self._past[sweep] = {run.id: _paid(run) for run in self.table.paid(sweep) if not run.tended}
        found = self._past[sweep].values()
        return PastTrials(sum((usd for usd, _ in found), Decimal(0)), tuple(usd for usd, done in found if done))

    def named(self, name: str) -> Sweep:
        """Of this name; of an experiment, the newest; `last` is the newest of all."""
        found = [one for one in self.all if name in (one.name, one.experiment, "last")]
        if not found:
            names = [*(one.name for one in self.all), *(one.experiment for one in self.all)]
            near = nearest(name, names)
            hint = f"did you mean `{near}`?" if near else "list them: `stoker sweep ls`"
            raise NotFound(f"there is no sweep called `{name}`", hint=hint, cause=Cause.NO_SUCH_SWEEP)
        return next((one for one in found if one.name == name), found[-1])

    def keep(self, sweep: Sweep) -> None:
        """It was saved: from here on the engine sees it."""
        assert self.all is not None
        assert self._known is not None
        self._known[sweep.id] = sweep

    def save(self, sweep: Sweep) -> None:
        self.table.save(sweep)
        self.keep(sweep)


_MOST_KEPT = 200_000  # rows in memory

Row = Mapping[str, Any]  # a ResultRow in its plain form


class ResultCache:
    """The row of a run that has ended, and of which nothing costs any more, never changes."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}

    def get(self, run_id: str) -> Row | None:
        return self._rows.get(run_id)

    def keep(self, run_id: str, row: Row) -> None:
        if len(self._rows) < _MOST_KEPT:
            self._rows[run_id] = row


def _paid(run: Run) -> tuple[Decimal, bool]:
    """Every node of it is gone: its cost no longer depends on the time."""
    return meter.spent(run, run.ended_at or run.submitted_at), run.state is RunState.SUCCEEDED
