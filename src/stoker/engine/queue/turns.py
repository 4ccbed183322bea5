"""What each waiting run waits for, in words, and when it will likely start."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from stoker.engine.offers.placement import room_of, starting
from stoker.engine.queue.facts import UNDER_WAY, QueueFacts, left_s, likely_s, width
from stoker.model.run.queue import Turn
from stoker.model.run.run import Run


def turns(runs: Collection[Run], rooms: Mapping[str, int | None], now: datetime, facts: QueueFacts) -> list[Turn]:
    """Room by room, each in starting order. `rooms` is by cluster, and by provider for runs of no cluster."""
    by_id = {run.id: run for run in runs}
    found: list[Turn] = []
    ahead: dict[str, list[Run]] = {}
    for run_id, seconds in starting(runs, rooms, now, facts).items():
        run = by_id[run_id]
        before = ahead.setdefault(room_of(run), [])
        found.append(_turn(run, runs, rooms, seconds, before, facts, now))
        before.append(run)
    return found


def _turn(
    run: Run,
    runs: Collection[Run],
    rooms: Mapping[str, int | None],
    seconds: float | None,
    before: list[Run],
    facts: QueueFacts,
    now: datetime,
) -> Turn:
    most = rooms.get(room_of(run))
    busy = [one for one in runs if room_of(one) == room_of(run) and one.state in UNDER_WAY]
    waits = run.reason
    if most is not None:
        taken = sum(width(one, most) for one in busy)
        waits = _words(width(run, most), max(most - taken, 0), most, len(before))
        waits = f"{run.reason}; {waits}" if run.reason and run.attempts else waits
    elif run.reason:
        seconds = None  # its place has no queue: it waits for something else
    unknown = _unknown(run, [*busy, *before], facts, now) if seconds is None else ""
    starts_at = now + timedelta(seconds=seconds) if seconds is not None else None
    return Turn(
        run.name, room_of(run), run.job.nodes, run.job.priority, run.person, run.submitted_at, waits, starts_at, unknown
    )


def _unknown(run: Run, ahead: list[Run], facts: QueueFacts, now: datetime) -> str:
    if endless := [one for one in ahead if likely_s(one, facts) is None]:
        return f"{_names(endless)}: no earlier run has succeeded, and no `time_limit` is set"
    if late := [one for one in ahead if left_s(one, facts, now) is None]:
        return f"{_names(late)}: running longer than earlier runs did, and no `time_limit` is set"
    return run.reason or "it is not known when there will be room"


def _names(runs: list[Run]) -> str:
    return ", ".join(one.name for one in runs[:3]) + (" and others" if len(runs) > 3 else "")


def _words(nodes: int, free: int, most: int, ahead: int) -> str:
    needs = f"{nodes} nodes" if nodes > 1 else "a node"
    room = f"{free} of {most} are free"
    if not ahead:
        return f"{needs}: {room}" if free < nodes else "it is about to start"
    return f"{needs}: {room}, {ahead} {'run is' if ahead == 1 else 'runs are'} ahead"
