"""The cost of many runs, from their spells: sums by experiment, person, day or cluster, to the last digit."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, time, timedelta, tzinfo
from decimal import Decimal

from stoker.engine.money.meter import cost
from stoker.model.run.money import By, CostRow, Costs, Spell
from stoker.model.run.run import Run

_US = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a spell: what it belongs to, and what that came to."""

    name: str
    run: str
    us: int
    usd: Decimal
    usd_per_hour: Decimal


@dataclass(slots=True)
class _Sum:
    runs: set[str] = field(default_factory=set)
    us: int = 0
    usd: Decimal = Decimal(0)
    usd_per_hour: Decimal = Decimal(0)

    def add(self, piece: _Piece) -> None:
        self.runs.add(piece.run)
        self.us += piece.us
        self.usd += piece.usd
        self.usd_per_hour += piece.usd_per_hour

    def row(self, name: str) -> CostRow:
        return CostRow(name, len(self.runs), self.us * Decimal("0.000001"), self.usd, self.usd_per_hour)


def costs(runs: Collection[Run], by: By, now: datetime, *, since: datetime | None = None, zone: tzinfo) -> Costs:
    """Days are those of the time zone, in order; everything else is sorted by cost, highest first."""
    sums: dict[str, _Sum] = {}
    total = _Sum()
    for run in runs:
        for piece in _pieces(run, by, since, now, zone):
            sums.setdefault(piece.name, _Sum()).add(piece)
            total.add(piece)
    rows = [one.row(name) for name, one in sums.items()]
    rows.sort(key=(lambda row: row.name) if by is By.DAY else lambda row: (-row.usd, row.name))
    return Costs(by, since, now, tuple(rows), total.row("total"))


def _pieces(run: Run, by: By, since: datetime | None, now: datetime, zone: tzinfo) -> Iterator[_Piece]:
    for spell in run.spells:
        for begin, end in _stretches(spell, by, since, now, zone):
            yield _Piece(
                name=begin.astimezone(zone).date().isoformat() if by is By.DAY else _name(run, by),
                run=run.id,
                us=(end - begin) // _US,
                usd=_until(spell, end) - _until(spell, begin),
                usd_per_hour=spell.usd_per_hour if spell.until is None and end == now else Decimal(0),
            )


def _stretches(
    spell: Spell, by: By, since: datetime | None, now: datetime, zone: tzinfo
) -> Iterator[tuple[datetime, datetime]]:
    """The part of a spell that counts, split at midnight if days are requested."""
    begin, end = max(spell.since, since or spell.since), spell.until or now
    while by is By.DAY and (midnight := _midnight(begin, zone)) < end:
        yield begin, midnight
        begin = midnight
    if begin < end:
        yield begin, end


def _midnight(at: datetime, zone: tzinfo) -> datetime:
    """The next one."""
    day = at.astimezone(zone).date() + timedelta(days=1)
    return datetime.combine(day, time(), zone).astimezone(at.tzinfo)


def _until(spell: Spell, moment: datetime) -> Decimal:
    """The cost until then: differences of these add up, while the costs of parts would each be rounded."""
    return cost(replace(spell, until=moment), moment)


def _name(run: Run, by: By) -> str:
    names = {By.EXPERIMENT: run.experiment, By.PERSON: run.person, By.CLUSTER: run.place, By.RUN: run.name}
    return names[by]
