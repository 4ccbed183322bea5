"""Runs as the queue sees them: how wide, how long, whose, and which of them may be paused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from stoker.engine.decision import Decision
from stoker.engine.queue.order import HIGH, LOW, NORMAL, STARVED_S, QueuedRun, ordered
from stoker.engine.queue.packing import Active
from stoker.model.job.job import Priority
from stoker.model.node.orders import Notice, Wish
from stoker.model.run.run import AttemptState, Run, RunState

RANKS = {Priority.HIGH: HIGH, Priority.NORMAL: NORMAL, Priority.LOW: LOW}
PAUSE_S = 60.0  # notice for a run that makes room
UNDER_WAY = (RunState.STARTING, RunState.RUNNING)


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """What runs that are over tell."""

    used: Mapping[str, float] = field(default_factory=dict)  # by person: node-seconds, decayed
    seconds: Mapping[str, float] = field(default_factory=dict)  # by experiment: how long a run of it takes


NOTHING_KNOWN = QueueFacts()


def width(run: Run, most: int | None) -> int:
    """How many slots it takes. A gang that is wider than its place, as on a laptop, gets the whole place."""
    return run.job.nodes if most is None else min(run.job.nodes, max(most, 1))


def in_order(runs: Collection[Run], most: int | None, facts: QueueFacts, now: datetime) -> list[QueuedRun]:
    """The waiting ones of these runs, which share one place."""
    waiting = [_waiting(run, most, facts, now) for run in runs if run.state is RunState.QUEUED]
    return ordered(waiting, _used(runs, facts, now))


def active(run: Run, most: int | None, facts: QueueFacts, now: datetime) -> Active:
    attempt = run.attempt
    ends_in_s = left_s(run, facts, now)
    if attempt and attempt.yielded and attempt.notice:
        ends_in_s = max((attempt.notice.deadline - now).total_seconds(), 0.0)
    leaving = bool(attempt and attempt.yielded) or run.wish is Wish.CANCEL
    yields = _may_pause(run) and _waited_s(run, now) < STARVED_S
    return Active(run.id, width(run, most), ends_in_s, yields, leaving)


def paused(run: Run, other: Run, now: datetime) -> Decision:
    """It saves, ends, and waits for its turn: the other one has a higher priority."""
    attempt = run.attempts[-1]
    notice = Notice(now, now + timedelta(seconds=PAUSE_S))
    after = run.with_newest(replace(attempt, notice=notice, yielded=other.name))
    text = f"attempt {attempt.number} saves and makes room for {other.name}, which has a higher priority"
    return Decision(after).noting(now, "paused-for", text)


def likely_s(run: Run, facts: QueueFacts) -> float | None:
    """How long it takes as a whole: as earlier runs did, or as long as it may."""
    known = facts.seconds.get(run.experiment)
    limit = run.job.time_limit
    return min(known, limit) if known is not None and limit else known if known is not None else limit


def worked_s(run: Run, now: datetime) -> float:
    """By its script, in all attempts."""
    spans = [(one.ended_at or now) - one.started_at for one in run.attempts if one.started_at]
    return sum(max(span.total_seconds(), 0.0) for span in spans)


def _waiting(run: Run, most: int | None, facts: QueueFacts, now: datetime) -> QueuedRun:
    rank, waited_s = RANKS[run.job.priority], _waited_s(run, now)
    return QueuedRun(run.id, width(run, most), rank, run.person, waited_s, left_s(run, facts, now))


def _waited_s(run: Run, now: datetime) -> float:
    """In all: a run that was paused does not start over."""
    return max((now - run.submitted_at).total_seconds() - worked_s(run, now), 0.0)


def left_s(run: Run, facts: QueueFacts, now: datetime) -> float | None:
    likely = likely_s(run, facts)
    if likely is None:
        return None
    left_s = likely - worked_s(run, now)
    if left_s > 0:
        return left_s
    limit = run.job.time_limit  # it takes longer than those before it
    return max(limit - worked_s(run, now), 0.0) if limit else None


def _used(runs: Collection[Run], facts: QueueFacts, now: datetime) -> dict[str, float]:
    used = dict(facts.used)
    for run in runs:
        if run.attempts:
            used[run.person] = used.get(run.person, 0.0) + run.job.nodes * worked_s(run, now)
    return used


def _may_pause(run: Run) -> bool:
    """A run of low priority that has saved: what it did since then, it saves on the notice."""
    attempt = run.attempt
    if attempt is None or run.state is not RunState.RUNNING or attempt.state is not AttemptState.RUNNING:
        return False
    busy = attempt.notice or attempt.fused or attempt.broken_at or attempt.spare or run.wish is not Wish.GO_ON
    return run.job.priority is Priority.LOW and attempt.saved and not busy and not run.job.deadline
