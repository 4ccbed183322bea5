"""Which queued runs start now, as far as there is room, and which of those under way make room. What each waiting run
waits for, in words, and when it will likely start."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import takewhile

from stoker.engine.patience import MARKET, MOST_LOST, tries
from stoker.engine.queue.clusters import held_nodes
from stoker.engine.queue.order import (
    NOTHING_KNOWN,
    RANKS,
    UNDER_WAY,
    Active,
    QueueFacts,
    active,
    expected,
    in_order,
    left_s,
    likely_s,
    pack,
    width,
)
from stoker.model.orders import Wish
from stoker.model.run.run import Attempt, AttemptState, Run, RunState, Turn

MOST_DELAY_S, LONGEST_DELAY_S = 60.0, 300.0  # the longer one if only a person can change anything


def queue(runs: Collection[Run]) -> list[Run]:
    """The waiting runs, in starting order. Run ids sort by the time of submission."""
    waiting = (run for run in runs if run.state is RunState.QUEUED)
    return sorted(waiting, key=lambda run: (RANKS[run.job.priority], run.id))


def busy_slots(runs: Collection[Run], slots: Mapping[str, int | None]) -> dict[str, int]:
    """By provider: how many are in use."""
    found = dict.fromkeys(slots, 0)
    for one in runs:
        if one.state in UNDER_WAY:
            found[one.job.on] = found.get(one.job.on, 0) + width(one, slots.get(one.job.on))
    return found


def why_waiting(run: Run, ahead: int, busy: int, slots: Mapping[str, int | None]) -> str:
    """Why a queued run of no cluster has not started; empty if it is about to. `ahead` is how many start before it,
    `busy` how many slots of its provider are in use."""
    most = slots.get(run.job.on)
    if most is None or (busy + width(run, most) <= most and not ahead):
        return ""
    return f"{busy} of {most} slots are busy, {ahead} ahead"


def ahead(
    runs: Collection[Run], rooms: Mapping[str, int | None], now: datetime, facts: QueueFacts = NOTHING_KNOWN
) -> dict[str, int]:
    """By id of each waiting run: how many start before it in its room, by priority and in turns between people."""
    found: dict[str, int] = {}
    by_room: dict[str, list[Run]] = {}
    for run in runs:
        by_room.setdefault(room_of(run), []).append(run)
    for name, some in by_room.items():
        for number, one in enumerate(in_order(some, rooms.get(name), facts, now)):
            found[one.id] = number
    return found


@dataclass(frozen=True, slots=True)
class Placed:
    starts: tuple[Run, ...] = ()
    pauses: tuple[tuple[Run, Run], ...] = ()  # runs that make room, each with the one that they make room for
    rooms: Mapping[str, int] = field(
        default_factory=dict
    )  # by id: nodes of those that start with fewer than they prefer


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
    rooms: dict[str, int] = {}
    for name, most in pools.items():
        there = {run.id: nodes for run in runs if run.cluster == name and (nodes := held_nodes(run))}
        some = [run for run in here if run.cluster == name and run.job.least_nodes <= most]
        found = _placed(some, most, now, facts, there)
        admitted |= {run.id for run in found.starts}
        rooms |= {**found.rooms, **{run.id: most for run in found.starts if run.job.most_nodes > most}}
        pauses += found.pauses
    starts: list[Run] = []
    for name, room in slots.items():
        some = [run for run in here if run.job.on == name]
        may = [run for run in some if run.state in UNDER_WAY or not run.cluster or run.id in admitted]
        found = _placed(may, room, now, facts)
        starts += found.starts
        pauses += [one for one in found.pauses if one not in pauses]
        rooms |= {run_id: min(nodes, rooms.get(run_id, nodes)) for run_id, nodes in found.rooms.items()}
    return Placed(tuple(starts), tuple(pauses), rooms)


def _placed(
    runs: list[Run], most: int | None, now: datetime, facts: QueueFacts, there: Mapping[str, int] | None = None
) -> Placed:
    """For runs that share one room. `there` is by id how many nodes count as used, also of runs that have ended."""
    ready = [run for run in runs if run.state is RunState.QUEUED]
    if most is None:
        return Placed(tuple(queue(ready)))
    busy = [active(run, most, facts, now) for run in runs if run.state in UNDER_WAY]
    if there is not None:
        busy = [replace(one, nodes=max(there.get(one.id, 0), one.nodes)) for one in busy]
        working = {one.id for one in busy}
        busy += [Active(id, nodes, leaving=True) for id, nodes in there.items() if id not in working]
    is_full = sum(one.nodes for one in busy) >= most and not (there and any(run.id in there for run in ready))
    if not ready or most == 0 or (is_full and not any(one.yields for one in busy)):
        return Placed()
    by_id = {run.id: run for run in runs}
    waiting = [replace(one, has=(there or {}).get(one.id, 0)) for one in in_order(runs, most, facts, now)]
    waiting.sort(key=lambda one: not one.has)  # a run that has kept nodes continues on them before others get theirs
    found = pack(waiting, busy, most)
    pauses = tuple((by_id[one], by_id[found.first]) for one in found.pauses)
    return Placed(tuple(by_id[one] for one in found.starts), pauses, found.rooms)


def starting(
    runs: Collection[Run], rooms: Mapping[str, int | None], now: datetime, facts: QueueFacts = NOTHING_KNOWN
) -> dict[str, float | None]:
    """By id of each waiting run, in starting order: in how many seconds it will likely start; None: unknown. `rooms` is
    by cluster, and by provider for runs of no cluster."""
    found: dict[str, float | None] = {}
    by_room: dict[str, list[Run]] = {}
    for run in runs:
        by_room.setdefault(room_of(run), []).append(run)
    for name, some in by_room.items():
        most = rooms.get(name)
        waiting = in_order(some, most, facts, now)
        if most is None:
            found |= dict.fromkeys((one.id for one in waiting), 0.0 if name in rooms else None)
            continue
        busy = [active(run, most, facts, now) for run in some if run.state in UNDER_WAY]
        found |= expected(waiting, busy, most)
    return found


def room_left(run: Run, runs: Collection[Run], slots: Mapping[str, int | None], pools: Mapping[str, int]) -> int | None:
    """How many more nodes this run can have; None: no known limit. None at all while another one waits for them."""
    if any(one.state is RunState.QUEUED and one.wish is Wish.GO_ON and room_of(one) == room_of(run) for one in runs):
        return 0
    most = [(slots.get(run.job.on), [one for one in runs if one.job.on == run.job.on])]
    if run.cluster:
        most.append((pools.get(run.cluster, 0), [one for one in runs if one.cluster == run.cluster]))
    left = [
        room - sum(width(one, room) for one in some if one.state in UNDER_WAY)
        for room, some in most
        if room is not None
    ]
    return max(min(left), 0) if left else None


def room_of(run: Run) -> str:
    return run.cluster or run.job.on


def _ready(run: Run, now: datetime) -> bool:
    """After a second lost node in a row, each retry waits longer: a broken machine is not flooded with requests. Market
    conditions have their own pauses."""
    lost = tries(list(takewhile(_was_lost, reversed(run.attempts))))
    newest = run.attempt
    if lost < 2 or newest is None or newest.ended_at is None:
        return True
    waited_s = (now - newest.ended_at).total_seconds()
    most_s = MOST_DELAY_S if lost <= MOST_LOST else LONGEST_DELAY_S
    # A negative wait means that the clock was set back: better to start early than to wait for it to catch up.
    return not 0 <= waited_s < min(2.0 ** min(lost - 2, 20), most_s)


def _was_lost(attempt: Attempt) -> bool:
    """Only for providers without a market: offers of a market have pauses of their own."""
    return attempt.state is AttemptState.LOST and (attempt.trouble not in MARKET.codes or attempt.offer is None)


@dataclass(slots=True)
class _Room:
    """What the next run of one room waits for. Kept from turn to turn: ten thousand runs do not ask each other."""

    most: int | None  # None: no known limit
    taken: int = 0
    ahead: int = 0
    endless: list[Run] = field(default_factory=list)  # under way or ahead, of unknown length
    late: list[Run] = field(default_factory=list)  # the same, longer than they were expected to run

    def has(self, run: Run, facts: QueueFacts, now: datetime) -> None:
        if likely_s(run, facts) is None:
            self.endless.append(run)
        elif left_s(run, facts, now) is None:
            self.late.append(run)

    def unknown(self, run: Run) -> str:
        """Why it is not known when the run will start."""
        if self.endless:
            return f"{_names(self.endless)}: no earlier run has succeeded, and no `time_limit` is set"
        if self.late:
            return f"{_names(self.late)}: running longer than earlier runs did, and no `time_limit` is set"
        return run.reason or "it is not known when there will be room"


def turns(runs: Collection[Run], rooms: Mapping[str, int | None], now: datetime, facts: QueueFacts) -> list[Turn]:
    """Room by room, each in starting order. `rooms` is by cluster, and by provider for runs of no cluster."""
    by_id = {run.id: run for run in runs}
    found: list[Turn] = []
    there = {name: _Room(rooms.get(name)) for name in {room_of(run) for run in runs}}
    for run in runs:
        if run.state in UNDER_WAY:
            room = there[room_of(run)]
            room.taken += width(run, room.most)
            room.has(run, facts, now)
    for run_id, seconds in starting(runs, rooms, now, facts).items():
        run = by_id[run_id]
        room = there[room_of(run)]
        found.append(_turn(run, room, seconds, now))
        room.ahead += 1
        room.has(run, facts, now)
    return found


def _turn(run: Run, room: _Room, seconds: float | None, now: datetime) -> Turn:
    waits = run.reason
    if room.most is not None:
        waits = _words(width(run, room.most), max(room.most - room.taken, 0), room.most, room.ahead)
        waits = f"{run.reason}; {waits}" if run.reason and run.attempts else waits
    elif run.reason:
        seconds = None  # its place has no queue: it waits for something else
    unknown = room.unknown(run) if seconds is None else ""
    starts_at = now + timedelta(seconds=seconds) if seconds is not None else None
    job = run.job
    return Turn(
        run.name, room_of(run), job.most_nodes, job.priority, run.person, run.submitted_at, waits, starts_at, unknown
    )


def _names(runs: list[Run]) -> str:
    return ", ".join(one.name for one in runs[:3]) + (" and others" if len(runs) > 3 else "")


def _words(nodes: int, free: int, most: int, ahead: int) -> str:
    needs = f"{nodes} nodes" if nodes > 1 else "a node"
    room = f"{free} of {most} are free"
    if not ahead:
        return f"{needs}: {room}" if free < nodes else "it is about to start"
    return f"{needs}: {room}, {ahead} {'run is' if ahead == 1 else 'runs are'} ahead"
