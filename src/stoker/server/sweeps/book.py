"""Every sweep, in memory: read once, saved when it changes. The results of runs that are over."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from stoker.engine.money import meter
from stoker.engine.sweeps.budget import PastTrials, SweepFacts
from stoker.errors import NotFound
from stoker.model import wire
from stoker.model.cause import Cause
from stoker.model.job.fields import nearest
from stoker.model.run.money import Spell
from stoker.model.run.run import Run, RunState
from stoker.model.run.sweep import Sweep
from stoker.server.records.database import Database
from stoker.server.records.sweeps import SweepTable


class SweepBook:
    def __init__(self, database: Database) -> None:
        self.table = SweepTable(database.engine)
        self._known: dict[str, Sweep] | None = None  # by id; None: not read yet
        self._paid: dict[str, dict[str, tuple[Decimal, bool]]] = {}  # by sweep, by run: its cost, and if it succeeded
        self._past: dict[str, PastTrials] = {}  # by sweep: the sum of these
        self._growing: dict[str, asyncio.Lock] = {}  # by sweep
        self.trouble: dict[str, str] = {}  # by sweep: why its next trials could not be drawn

    @property
    def all(self) -> list[Sweep]:
        """Oldest first."""
        return list(self._by_id().values())

    def _by_id(self) -> dict[str, Sweep]:
        if self._known is None:
            self._known = {one.id: one for one in self.table.all()}
        return self._known

    def facts(self) -> SweepFacts:
        """For the engine."""
        known = self._by_id()
        return SweepFacts(known, {id: self.past(id) for id, one in known.items() if one.budget is not None})

    def closed(self, run: Run) -> None:
        """The run has ended and all its nodes are gone, or it was removed: later rounds do not include it."""
        if run.trial and run.trial.sweep in self._paid:
            ended_at = run.ended_at or run.submitted_at
            self._paid[run.trial.sweep][run.id] = meter.spent(run, ended_at), run.state is RunState.SUCCEEDED
            self._past.pop(run.trial.sweep, None)

    def past(self, sweep: str) -> PastTrials:
        """What the trials that are over have cost. Read once."""
        if sweep not in self._paid:
            self._paid[sweep] = {run["id"]: _paid(run) for run in self.table.past(sweep)}
        if sweep not in self._past:
            found = self._paid[sweep].values()
            usd = sum((usd for usd, _ in found), Decimal(0))
            self._past[sweep] = PastTrials(usd, tuple(usd for usd, succeeded in found if succeeded))
        return self._past[sweep]

    def growing(self, sweep: Sweep) -> asyncio.Lock:
        """A lock, held from reading the existing trials to saving more of them."""
        return self._growing.setdefault(sweep.id, asyncio.Lock())

    def now(self, sweep: Sweep) -> Sweep:
        """As it is by now."""
        return self._by_id()[sweep.id]

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
        self._by_id()[sweep.id] = sweep

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


def _paid(run: Mapping[str, Any]) -> tuple[Decimal, bool]:
    """Every node of it is gone: its cost no longer depends on the time."""
    ended_at = datetime.fromisoformat(run["ended_at"] or run["submitted_at"])
    return plain_usd(run, ended_at), run["state"] == RunState.SUCCEEDED


def plain_usd(run: Mapping[str, Any], now: datetime) -> Decimal:
    """What a run in its plain form has cost."""
    return sum((meter.cost(wire.from_plain(Spell, one), now) for one in run["spells"]), Decimal(0))
