"""What people spend: the cost of many runs, in sums, and the limits that administrators set."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, time, timedelta, tzinfo
from decimal import Decimal

from stoker.engine.money import meter
from stoker.engine.money.fuse import Allowance, dollars, least, own, reserve
from stoker.engine.money.meter import cost
from stoker.model.run.money import By, CostRow, Costs, IdleSpell, Limit, Period, Spell
from stoker.model.run.run import Run


@dataclass(frozen=True, slots=True)
class LimitFacts:
    """The limits, and the cost of ended runs: each spell with its person."""

    given: tuple[Limit, ...] = ()
    past: tuple[tuple[str, Spell], ...] = ()


NONE = LimitFacts()


def allowances(runs: Collection[Run], limits: LimitFacts, now: datetime) -> dict[str, Allowance]:
    """By run id: the tightest of its budget and its limits. Without runs that nothing limits."""
    found = {run.id: allowance for run in runs if (allowance := own(run))}
    for limit in limits.given:
        for run_id, allowance in _shares(limit, runs, limits.past, now):
            if run_id not in found or allowance.usd < found[run_id].usd:
                found[run_id] = allowance
    return found


def used(limit: Limit, runs: Iterable[Run], past: Iterable[tuple[str, Spell]], now: datetime) -> Decimal:
    """What was spent under a limit in the current period, also on idle nodes."""
    since = period(limit.period, now)[0]
    spells = [each for run in runs for each in paid(run)]
    mine = (spell for person, spell in (*spells, *past) if limit.person in ("", person))
    return sum((_within(spell, since, now) for spell in mine), Decimal(0))


def paid(run: Run) -> Iterator[tuple[str, Spell]]:
    """Everything that its nodes have cost, each with the person who pays for it: idle time is the cluster owner's."""
    yield from ((run.person, spell) for spell in run.spells)
    yield from ((spell.owner, spell) for spell in run.idle)


def exhausted(runs: Collection[Run], limits: LimitFacts, now: datetime) -> set[str]:
    """The people, or "" for everybody, whose limit has no money left for idle nodes: what those cost until they are
    gone is held back."""
    return {
        limit.person
        for limit in limits.given
        if used(limit, runs, limits.past, now) + _idle(limit, runs)[1] >= limit.usd
    }


def period(of: Period, now: datetime) -> tuple[datetime, datetime]:
    """Its start and its end."""
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if of is Period.DAY:
        return day, day + timedelta(days=1)
    first = day.replace(day=1)
    return first, (first + timedelta(days=32)).replace(day=1)


def name(limit: Limit) -> str:
    """`anna's limit of $200.00 a month`"""
    whose = f"{limit.person}'s limit" if limit.person else "the limit of everybody together"
    return f"{whose} of {dollars(limit.usd)} a {limit.period}"


def _shares(
    limit: Limit, runs: Collection[Run], past: Iterable[tuple[str, Spell]], now: datetime
) -> Iterator[tuple[str, Allowance]]:
    left = limit.usd - used(limit, runs, past, now)
    idle_rate, idle_reserve = _idle(limit, runs)
    runs = [run for run in runs if limit.person in ("", run.person)]
    again = period(limit.period, now)[1]
    rates: Mapping[str, Decimal] = {run.id: meter.rate(run) for run in runs}
    total = sum(rates.values(), idle_rate)
    kept = sum((held_back(run) for run in runs), idle_reserve)
    for run in runs:
        # A waiting run may have what the others do not need to finish properly.
        share = left * rates[run.id] / total if rates[run.id] else left - kept
        yield run.id, Allowance(meter.spent(run, now) + share, name(limit), again)


def _idle(limit: Limit, runs: Iterable[Run]) -> tuple[Decimal, Decimal]:
    """What the idle nodes under a limit cost in an hour, and from the decision to release them until they are gone."""
    rate, reserve = Decimal(0), Decimal(0)
    for run in runs:
        for spell in run.idle:
            if spell.until is None and limit.person in ("", spell.owner):
                offer = next((one.offer for one in run.members if one.key == spell.key), None)
                release_s = meter.MARK_S + (offer.release_s if offer else 0.0)
                rate += spell.usd_per_hour
                reserve += spell.usd_per_hour * Decimal(release_s) / 3600
    return rate, reserve


def held_back(run: Run) -> Decimal:
    """What a run needs to finish properly; one that has just got a node should do some work first."""
    attempt = run.attempt
    begins = attempt and attempt.offer and not attempt.state.over and not attempt.started_at
    return max(reserve(run), least(run, attempt.offer)) if begins and attempt and attempt.offer else reserve(run)


def _within(spell: Spell, since: datetime, now: datetime) -> Decimal:
    """What it has cost in the period, which a spell may overlap."""
    if (spell.until or now) <= since:
        return Decimal(0)
    return meter.cost(replace(spell, since=max(spell.since, since)), now)


_US = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a spell: what it belongs to, and what that came to."""

    name: str
    run: str  # its id; empty: its node waited for the next one
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
        self.runs |= {piece.run} - {""}
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
    for person, spell in paid(run):
        idle = isinstance(spell, IdleSpell)
        name = _name(run, by) if not idle else _idle_name(run, by, person)
        for begin, end in _stretches(spell, by, since, now, zone):
            yield _Piece(
                name=begin.astimezone(zone).date().isoformat() if by is By.DAY else name,
                run="" if idle else run.id,
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
    return names.get(by, "")


def _idle_name(run: Run, by: By, owner: str) -> str:
    return {By.PERSON: owner, By.CLUSTER: run.place}.get(by, f"idle nodes of {run.place}")
