"""What administrators allow, with what runs that are over have cost under it: kept at hand for every round."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from stoker.engine.money.limits import NONE, LimitFacts, period
from stoker.model.run.money import Limit, Period, Spell
from stoker.model.run.run import Run
from stoker.server.records.database import Database
from stoker.server.records.tables import LimitTable


class LimitBook:
    """Costs nothing as long as there are no limits: only then are the runs that are over looked through, once."""

    def __init__(self, database: Database, wake: Callable[[], None] = lambda: None) -> None:
        self._database = database
        self._table = LimitTable(database.engine)
        self._given: tuple[Limit, ...] | None = None  # None: not read yet
        self._past: dict[str, tuple[tuple[str, Spell], ...]] = {}  # by run id: whose, and what each node cost
        self.wake = wake

    def current(self, now: datetime) -> LimitFacts:
        """For the engine. Whatever lies before this month no longer matters."""
        given = self.given
        if not given:
            return NONE
        since = period(Period.MONTH, now)[0]
        past = (one for spells in self._past.values() for one in spells)
        return LimitFacts(given, tuple(one for one in past if one[1].until is None or one[1].until > since))

    @property
    def given(self) -> tuple[Limit, ...]:
        if self._given is None:
            self._read()
        return self._given or ()

    def over(self, person: str) -> tuple[Limit, ...]:
        """Those that runs of this person are under."""
        return tuple(one for one in self.given if one.person in ("", person))

    def save(self, limit: Limit) -> None:
        self._table.save(limit)
        self._read()
        self.wake()

    def remove(self, of: Period, person: str) -> bool:
        found = self._table.remove(of, person)
        self._read()
        self.wake()
        return found

    def closed(self, run: Run) -> None:
        """A run is over, with all its nodes gone: it will be in no round any more."""
        if self._given:
            self._past[run.id] = _spells(run)

    def _read(self) -> None:
        before, self._given = self._given, tuple(self._table.all())
        if self._given and not before:
            over = (run for run in self._database.paid_runs() if not run.tended)
            self._past = {run.id: _spells(run) for run in over}


def _spells(run: Run) -> tuple[tuple[str, Spell], ...]:
    return tuple((run.person, spell) for spell in run.spells)
