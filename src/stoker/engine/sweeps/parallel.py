"""`max_parallel`: how many trials of a sweep have nodes at the same time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from stoker.engine.queue.order import UNDER_WAY
from stoker.model.run.run import Run, RunState
from stoker.model.run.sweep import Sweep


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
