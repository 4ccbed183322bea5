"""Which queued runs start now, as far as there is room, and which of those under way make room."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile

from stoker.engine.patience import MARKET, MOST_LOST
from stoker.engine.queue.facts import NOTHING_KNOWN, RANKS, UNDER_WAY, QueueFacts, active, in_order, width
from stoker.engine.queue.packing import expected, pack
from stoker.model.run.run import Attempt, AttemptState, Run, RunState

MOST_DELAY_S, LONGEST_DELAY_S = 60.0, 300.0  # the longer one if only a person can change anything


def queue(runs: Collection[Run]) -> list[Run]:
    """The waiting runs, in starting order. Run ids sort by the time of submission."""
    waiting = (run for run in runs if run.state is RunState.QUEUED)
    return sorted(waiting, key=lambda run: (RANKS[run.job.priority], run.id))


def why_waiting(run: Run, runs: Collection[Run], slots: Mapping[str, int | None]) -> str:
    """Why a queued run has not started; empty if it is about to."""
    most = slots.get(run.job.on)
    busy = sum(width(one, most) for one in runs if one.job.on == run.job.on and one.state in UNDER_WAY)
    before = takewhile(lambda one: one.id != run.id, queue(runs))
    ahead = sum(one.job.on == run.job.on for one in before)
    if most is None or (busy + width(run, most) <= most and not ahead):
        return ""
    return f"{busy} of {most} slots are busy, {ahead} ahead"


@dataclass(frozen=True, slots=True)
class Placed:
    starts: tuple[Run, ...] = ()
    pauses: tuple[tuple[Run, Run], ...] = ()  # runs that make room, each with the one that they make room for


def place(
    runs: Collection[Run],
    slots: Mapping[str, int | None],
    now: datetime,
    *,
    held: Collection[str] = (),
    facts: QueueFacts = NOTHING_KNOWN,
) -> list[Run]:
    """The runs that start where there are no clusters: see `placed`."""
    return list(placed(runs, slots, {}, now, held=held, facts=facts).starts)


def placed(
    runs: Collection[Run],
    slots: Mapping[str, int | None],
    pools: Mapping[str, int],
    now: datetime,
    *,
    held: Collection[str] = (),
    facts: QueueFacts = NOTHING_KNOWN,
) -> Placed:
    """`slots` is how many nodes each provider may run at once; None: no known limit, so that all start. `pools` is the
    same for clusters, whose nodes are nodes of their providers. `held` are ids of runs whose earlier nodes still exist:
    a second attempt at the same time could write twice."""
    out = {run.id for run in runs if run.id in held or not _ready(run, now)}
    here = [run for run in runs if run.id not in out or run.state in UNDER_WAY]
    pauses: list[tuple[Run, Run]] = []
    admitted: set[str] = set()
    for name, most in pools.items():
        found = _placed([run for run in here if run.cluster == name and run.job.nodes <= most], most, now, facts)
        admitted |= {run.id for run in found.starts}
        pauses += found.pauses
    starts: list[Run] = []
    for name, room in slots.items():
        some = [run for run in here if run.job.on == name]
        may = [run for run in some if run.state in UNDER_WAY or not run.cluster or run.id in admitted]
        found = _placed(may, room, now, facts)
        starts += found.starts
        pauses += [one for one in found.pauses if one not in pauses]
    return Placed(tuple(starts), tuple(pauses))


def _placed(runs: list[Run], most: int | None, now: datetime, facts: QueueFacts) -> Placed:
    """For runs that share one room."""
    ready = [run for run in runs if run.state is RunState.QUEUED]
    if most is None:
        return Placed(tuple(queue(ready)))
    busy = [active(run, most, facts, now) for run in runs if run.state in UNDER_WAY]
    is_full = sum(one.nodes for one in busy) >= most
    if not ready or most == 0 or (is_full and not any(one.yields for one in busy)):
        return Placed()
    by_id = {run.id: run for run in runs}
    found = pack(in_order(runs, most, facts, now), busy, most)
    pauses = tuple((by_id[one], by_id[found.first]) for one in found.pauses)
    return Placed(tuple(by_id[one] for one in found.starts), pauses)


def starting(
    runs: Collection[Run], rooms: Mapping[str, int | None], now: datetime, facts: QueueFacts = NOTHING_KNOWN
) -> dict[str, float | None]:
    """By id of each waiting run, in starting order: in how many seconds it will likely start; None: unknown. `rooms` is
    by cluster, and by provider for runs of no cluster."""
    found: dict[str, float | None] = {}
    for name in dict.fromkeys(room_of(run) for run in runs):
        most = rooms.get(name)
        some = [run for run in runs if room_of(run) == name]
        waiting = in_order(some, most, facts, now)
        if most is None:
            found |= dict.fromkeys((one.id for one in waiting), 0.0 if name in rooms else None)
            continue
        busy = [active(run, most, facts, now) for run in some if run.state in UNDER_WAY]
        found |= expected(waiting, busy, most)
    return found


def room_of(run: Run) -> str:
    return run.cluster or run.job.on


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
