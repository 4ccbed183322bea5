"""Which queued runs start now: by priority, then by age, as far as there is room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import takewhile

from stoker.engine.patience import MARKET, MOST_LOST
from stoker.model.job.job import Priority
from stoker.model.run.run import Attempt, AttemptState, Run, RunState

_RANK = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}
_UNDER_WAY = (RunState.STARTING, RunState.RUNNING)
MOST_DELAY_S, LONGEST_DELAY_S = 60.0, 300.0  # the longer one if only a person can change anything


def queue(runs: Collection[Run]) -> list[Run]:
    """The waiting runs, in starting order. Run ids sort by the time of submission."""
    waiting = (run for run in runs if run.state is RunState.QUEUED)
    return sorted(waiting, key=lambda run: (_RANK[run.job.priority], run.id))


def why_waiting(run: Run, runs: Collection[Run], slots: Mapping[str, int | None]) -> str:
    """Why a queued run has not started; empty if it is about to."""
    most = slots.get(run.job.on)
    busy = sum(_width(one, most) for one in runs if one.job.on == run.job.on and one.state in _UNDER_WAY)
    before = takewhile(lambda one: one.id != run.id, queue(runs))
    ahead = sum(one.job.on == run.job.on for one in before)
    if most is None or (busy + _width(run, most) <= most and not ahead):
        return ""
    return f"{busy} of {most} slots are busy, {ahead} ahead"


def place(
    runs: Collection[Run],
    slots: Mapping[str, int | None],
    now: datetime,
    *,
    held: Collection[str] = (),
    waiting: Sequence[Run] | None = None,
) -> list[Run]:
    """`waiting` are those that may start, in their order; None: all, by priority and age. `slots` is how many nodes
    each provider may run at once; None: no known limit. `held` are ids of runs whose earlier nodes still exist: a
    second attempt at the same time could write twice. A run that does not fit holds back those after it on the same
    provider, so that narrow runs do not starve wide ones."""
    under_way = (run for run in runs if run.state in _UNDER_WAY)
    busy = Counter(dict.fromkeys(slots, 0))
    for run in under_way:
        busy[run.job.on] += _width(run, slots.get(run.job.on))
    chosen: list[Run] = []
    full = {name for name, most in slots.items() if most is not None and busy[name] >= most}
    if len(full) == len(slots):
        return []
    for run in queue(runs) if waiting is None else waiting:
        on, most = run.job.on, slots.get(run.job.on, 0)
        if on in full or run.id in held or not _ready(run, now):
            continue
        if most is not None and busy[on] + _width(run, most) > most:
            full.add(on)
            continue
        busy[on] += _width(run, most)
        chosen.append(run)
    return chosen


def _width(run: Run, most: int | None) -> int:
    """How many slots it takes. A gang that is wider than its place, as on a laptop, gets the whole place."""
    return run.job.nodes if most is None else min(run.job.nodes, max(most, 1))


def _ready(run: Run, now: datetime) -> bool:
    """After a second lost node in a row, each retry waits longer: a broken machine is not flooded with requests. Market
    conditions have their own pauses."""
    lost = len(list(takewhile(_was_lost, reversed(run.attempts))))
    newest = run.attempt
    if lost < 2 or newest is None or newest.ended_at is None:
        return True
    waited_s = (now - newest.ended_at).total_seconds()
    most_s = MOST_DELAY_S if lost <= MOST_LOST else LONGEST_DELAY_S
    # A negative wait means that the clock was set back: better to start early than to wait for it to catch up.
    return not 0 <= waited_s < min(2.0 ** min(lost - 2, 20), most_s)


def _was_lost(attempt: Attempt) -> bool:
    """A market pauses by itself; a provider without one has no offer to try instead."""
    return attempt.state is AttemptState.LOST and (attempt.trouble not in MARKET.codes or attempt.offer is None)
