"""What all trials of a sweep share: one budget, and `max_parallel`, how many of them have nodes at the same time.

The budget is never passed, and trials that work finish before others start.

What is left belongs first to the trials that have nodes, the most promising one first: each gets what it will likely
still cost. A waiting trial may start with what they do not need. Where it turns out that the rest does not pay for all
of them, the least promising one saves and pauses, not all at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import ROUND_DOWN, Decimal

from stoker.engine.money import meter
from stoker.engine.money.fuse import Allowance, dollars
from stoker.engine.money.spending import held_back
from stoker.engine.queue.order import UNDER_WAY
from stoker.model.run.run import Run, RunState
from stoker.model.run.sweep import Sweep


def sweep_allowances(runs: Collection[Run], facts: SweepFacts, now: datetime) -> dict[str, Allowance]:
    """By run id, for the open trials of all sweeps that have a budget."""
    found: dict[str, Allowance] = {}
    for id, sweep in facts.known.items():
        if sweep.budget is not None:
            mine = [run for run in runs if run.trial and run.trial.sweep == id]
            found |= dict(shares(sweep, facts.past.get(id, PastTrials()), mine, now))
    return found


def shares(sweep: Sweep, past: PastTrials, runs: Collection[Run], now: datetime) -> Iterator[tuple[str, Allowance]]:
    """By run id, for the open trials of the sweep: the most that each may cost in total."""
    budget = sweep.budget
    if budget is None:
        return
    spent = {run.id: meter.spent(run, now) for run in runs}
    rates = {run.id: meter.rate(run) for run in runs}
    left = budget - past.usd - sum(spent.values(), Decimal(0))
    done = tuple(spent[run.id] for run in runs if run.state is RunState.SUCCEEDED)
    past = PastTrials(past.usd, (*past.succeeded, *done))
    kept = {run.id: held_back(run) for run in runs if rates[run.id]}
    # The machine of a trial that has ended costs until it is gone, and nothing more.
    busy = sorted((run for run in runs if rates[run.id] and not run.state.ended), key=lambda run: promise(sweep, run))
    pool = left - sum(kept.values(), Decimal(0))
    needs = {run.id: likely(spent[run.id], past) for run in runs}
    granted, over = _granted(pool, busy, needs)
    total = sum((rates[run.id] for run in busy), Decimal(0))
    whose, hint = f"the budget of {sweep.name}, {dollars(budget)},", f"stoker sweep budget {sweep.name} {2 * budget:f}"
    for run in runs:
        if not rates[run.id]:  # it starts if it can likely finish, too
            share = over if over >= needs[run.id] else Decimal(0)
        elif pool < 0:  # not even enough to finish properly: what there is, by what each costs
            share = left * rates[run.id] / sum(rates.values(), Decimal(0))
        elif run.state.ended:
            share = kept[run.id]
        else:
            share = kept[run.id] + granted[run.id] + over * rates[run.id] / total
        usd = (spent[run.id] + share).quantize(meter.NANO, rounding=ROUND_DOWN)
        yield run.id, Allowance(usd, whose, shared=bool(kept) and not rates[run.id], hint=hint)


def _granted(pool: Decimal, busy: Sequence[Run], needs: Mapping[str, Decimal]) -> tuple[dict[str, Decimal], Decimal]:
    """What each of the working trials gets beyond a proper end, the most promising first, and what is left over."""
    found: dict[str, Decimal] = {}
    for run in busy:
        found[run.id] = min(needs[run.id], max(pool, Decimal(0)))
        pool -= found[run.id]
    return found, max(pool, Decimal(0))


def likely(spent: Decimal, past: PastTrials) -> Decimal:
    """What a trial will still cost: as much as those that have succeeded did on average, half as much again if it has
    passed that; as much as so far while none has succeeded."""
    if not past.succeeded:
        return spent
    mean = sum(past.succeeded, Decimal(0)) / len(past.succeeded)
    return max(mean - spent, mean / 2 if spent > mean else Decimal(0))


def promise(sweep: Sweep, run: Run) -> tuple[float, str]:
    """Sorts the most promising trial first: by the metric that the job names, then by who started first."""
    best, target = sweep.job.retention.best, sweep.job.stop_when
    name = best.removeprefix("-") if best else target.metric if target else ""
    lower = best.startswith("-") if best else bool(target and target.test.startswith("<"))
    found = run.metrics.get(name)
    value = found.last if found else math.nan
    return (math.inf if math.isnan(value) else value if lower else -value, run.id)


@dataclass(frozen=True, slots=True)
class PastTrials:
    """Of trials that are over: what all of them have cost, and each that has succeeded."""

    usd: Decimal = Decimal(0)
    succeeded: tuple[Decimal, ...] = ()


@dataclass(frozen=True, slots=True)
class SweepFacts:
    """The sweeps that have open trials, by id."""

    known: Mapping[str, Sweep] = field(default_factory=dict)
    past: Mapping[str, PastTrials] = field(default_factory=dict)  # of those that have a budget


NO_SWEEPS = SweepFacts()


def beyond(runs: Collection[Run], facts: SweepFacts) -> set[str]:
    """Ids of trials that have to wait for others of their sweep. Those that have started before go first."""
    limits = {id: one.max_parallel for id, one in facts.known.items() if one.max_parallel is not None}
    if not limits:
        return set()
    free, waiting = dict(limits), dict[str, list[Run]]()
    for run in runs:
        if run.trial is None or run.trial.sweep not in limits:
            continue
        if run.state in UNDER_WAY:
            free[run.trial.sweep] -= 1
        elif run.state is RunState.QUEUED and not run.trial.paused:
            waiting.setdefault(run.trial.sweep, []).append(run)
    held: set[str] = set()
    for sweep, some in waiting.items():
        some.sort(key=lambda run: (not run.attempts, run.id))
        held |= {run.id for run in some[max(free[sweep], 0) :]}
    return held


def at_rungs(runs: Collection[Run]) -> set[str]:
    """Ids of trials that their search has paused."""
    return {run.id for run in runs if run.state is RunState.QUEUED and run.trial and run.trial.paused}


def parallel_words(run: Run, facts: SweepFacts) -> str:
    """Why such a trial waits."""
    sweep = facts.known[run.trial.sweep] if run.trial else None
    return f"{sweep.max_parallel} trials of {sweep.name} may run at the same time" if sweep else ""
