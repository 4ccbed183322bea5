"""Limits that administrators set: what a person, or everybody together, may spend in a day or a month (UTC).

The rest of a limit is shared by the runs that cost money now: at their current rates it is spent at one time, and each
may cost until then. Every run stops its own reserve earlier, so that together they stay below it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from stoker.engine.money import meter
from stoker.engine.money.fuse import Allowance, dollars, least, own, reserve
from stoker.model.run.money import Limit, Period, Spell
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
        mine = [run for run in runs if limit.person in ("", run.person)]
        for run_id, allowance in _shares(limit, mine, limits.past, now):
            if run_id not in found or allowance.usd < found[run_id].usd:
                found[run_id] = allowance
    return found


def used(limit: Limit, runs: Iterable[Run], past: Iterable[tuple[str, Spell]], now: datetime) -> Decimal:
    """What was spent under a limit in the current period."""
    since = period(limit.period, now)[0]
    spells = [(run.person, spell) for run in runs for spell in run.spells]
    mine = (spell for person, spell in (*spells, *past) if limit.person in ("", person))
    return sum((_within(spell, since, now) for spell in mine), Decimal(0))


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
    again = period(limit.period, now)[1]
    rates: Mapping[str, Decimal] = {run.id: meter.rate(run) for run in runs}
    total, held_back = sum(rates.values(), Decimal(0)), sum((_held_back(run) for run in runs), Decimal(0))
    for run in runs:
        # A waiting run may have what the others do not need to finish properly.
        share = left * rates[run.id] / total if rates[run.id] else left - held_back
        yield run.id, Allowance(meter.spent(run, now) + share, name(limit), again)


def _held_back(run: Run) -> Decimal:
    """What a run needs to finish properly; one that has just got a node should do some work first."""
    attempt = run.attempt
    begins = attempt and attempt.offer and not attempt.state.over and not attempt.started_at
    return max(reserve(run), least(run, attempt.offer)) if begins and attempt and attempt.offer else reserve(run)


def _within(spell: Spell, since: datetime, now: datetime) -> Decimal:
    """What it has cost in the period, which a spell may overlap."""
    if (spell.until or now) <= since:
        return Decimal(0)
    return meter.cost(replace(spell, since=max(spell.since, since)), now)
