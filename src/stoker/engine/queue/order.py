"""Who is next where there is not room for all: runs as the queue sees them, their order, and what fits."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import attrgetter

from stoker.engine.nodes.elastic import hurries
from stoker.model.job.job import Priority
from stoker.model.orders import Wish
from stoker.model.run.run import AttemptState, Run, RunState

HIGH, NORMAL, LOW = 0, 1, 2  # ranks: the lowest number goes first
HALF_LIFE_S = 86_400.0  # after which a person's use counts half
STEP_S = 86_400.0  # of waiting that raises a run by one rank
STARVED_S = 3 * 86_400.0  # of waiting after which a run precedes all that wait for less
CHARGE_S = 3600.0  # of usage that every node counts for at its start, even if it is shorter


@dataclass(frozen=True, slots=True)
class QueuedRun:
    """A run that waits. `seconds` is how long it will likely take; None: unknown."""

    id: str  # ids sort by the time of submission
    nodes: int = 1
    rank: int = NORMAL
    person: str = ""
    waited_s: float = 0.0
    seconds: float | None = None
    least: int = 0  # nodes that it starts with if there is no room for all; 0: it waits for all
    has: int = 0  # nodes that it has kept, and that count as used


def ordered(waiting: Collection[QueuedRun], used: Mapping[str, float]) -> list[QueuedRun]:
    """`used` is the decayed node-seconds of each person. Whoever has used least is next, and each start counts at once,
    so that people take turns. A run that has waited for very long goes first: nothing waits forever."""
    starved: list[QueuedRun] = []
    levels: defaultdict[int, list[QueuedRun]] = defaultdict(list)
    for one in sorted(waiting, key=attrgetter("id")):  # the oldest first
        if one.waited_s < STEP_S:
            levels[one.rank].append(one)
        elif one.waited_s < STARVED_S:
            levels[max(one.rank - int(one.waited_s // STEP_S), HIGH)].append(one)
        else:
            starved.append(one)
    counted = dict(used)
    for one in starved:
        counted[one.person] = counted.get(one.person, 0.0) + one.nodes * CHARGE_S
    return [*starved, *(one for level in sorted(levels) for one in _in_turns(levels[level], counted))]


def _in_turns(runs: Iterable[QueuedRun], counted: dict[str, float]) -> Iterable[QueuedRun]:
    mine: defaultdict[str, list[QueuedRun]] = defaultdict(list)
    for one in runs:
        mine[one.person].append(one)
    turns = [(counted.get(person, 0.0), person, iter(some)) for person, some in mine.items()]
    heapq.heapify(turns)  # no two are of one person, so iterators are never compared
    while turns:
        use, person, rest = turns[0]
        following = next(rest, None)
        if following is None:
            counted[person] = use
            heapq.heappop(turns)
            continue
        heapq.heapreplace(turns, (use + following.nodes * CHARGE_S, person, rest))
        yield following


def decayed(used: float, seconds: float) -> float:
    """The usage that still counts after so many seconds."""
    return used * math.exp2(-max(seconds, 0.0) / HALF_LIFE_S)


RANKS = {Priority.HIGH: HIGH, Priority.NORMAL: NORMAL, Priority.LOW: LOW}
UNDER_WAY = (RunState.STARTING, RunState.RUNNING)


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """What the queue learns from runs that are over."""

    used: Mapping[str, float] = field(default_factory=dict)  # by person: node-seconds, decayed
    seconds: Mapping[str, float] = field(default_factory=dict)  # by experiment: how long a run of it takes


NOTHING_KNOWN = QueueFacts()


def width(run: Run, most: int | None) -> int:
    """How many slots it takes. A gang that is wider than its place, as on a laptop, gets the whole place."""
    return run.width if most is None else min(run.width, max(most, 1))


def in_order(runs: Collection[Run], most: int | None, facts: QueueFacts, now: datetime) -> list[QueuedRun]:
    """The waiting ones of these runs, which share one place."""
    waiting = [_waiting(run, most, facts, now) for run in runs if run.state is RunState.QUEUED]
    return ordered(waiting, _used(runs, facts, now))


def active(run: Run, most: int | None, facts: QueueFacts, now: datetime) -> Active:
    attempt = run.attempt
    ends_in_s = left_s(run, facts, now)
    if attempt and attempt.leaves and attempt.notice:
        ends_in_s = max((attempt.notice.deadline - now).total_seconds(), 0.0)
    leaving = bool(attempt and attempt.leaves) or run.wish is Wish.CANCEL
    yields = _may_pause(run) and _waited_s(run, now) < STARVED_S
    return Active(run.id, width(run, most), ends_in_s, yields, leaving)


def likely_s(run: Run, facts: QueueFacts) -> float | None:
    """The expected duration of a run: that of earlier runs, or its time limit."""
    known = facts.seconds.get(run.experiment)
    limit = run.job.time_limit
    return min(known, limit) if known is not None and limit else known if known is not None else limit


def worked_s(run: Run, now: datetime) -> float:
    """Seconds in which its script ran, in all attempts."""
    spans = [(one.ended_at or now) - one.started_at for one in run.attempts if one.started_at]
    return sum(max(span.total_seconds(), 0.0) for span in spans)


def node_seconds(run: Run, now: datetime) -> float:
    """Seconds in which its script ran, times the nodes of each attempt."""
    spans = [(len(one.members), (one.ended_at or now) - one.started_at) for one in run.attempts if one.started_at]
    return sum(nodes * max(span.total_seconds(), 0.0) for nodes, span in spans)


def _waiting(run: Run, most: int | None, facts: QueueFacts, now: datetime) -> QueuedRun:
    rank, waited_s = RANKS[run.job.priority], _waited_s(run, now)
    least = run.job.least_nodes if run.job.is_elastic and hurries(run, now) else 0
    return QueuedRun(run.id, width(run, most), rank, run.person, waited_s, left_s(run, facts, now), least)


def _waited_s(run: Run, now: datetime) -> float:
    """Seconds of waiting in total: a paused run keeps its waiting time."""
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
            used[run.person] = used.get(run.person, 0.0) + node_seconds(run, now)
    return used


def _may_pause(run: Run) -> bool:
    """A run of low priority that has saved: what it did since then, it saves on the notice."""
    attempt = run.attempt
    if attempt is None or run.state is not RunState.RUNNING or attempt.state is not AttemptState.RUNNING:
        return False
    busy = attempt.notice or attempt.fused or attempt.broken_at or attempt.spare or run.wish is not Wish.GO_ON
    return run.job.priority is Priority.LOW and attempt.saved and not busy and not run.job.deadline


@dataclass(frozen=True, slots=True)
class Active:
    """A run that has nodes. `ends_in_s`: None: unknown."""

    id: str
    nodes: int = 1
    ends_in_s: float | None = None
    yields: bool = False  # it may be paused for a run of high priority: it loses nothing but its restart
    leaving: bool = False  # it was told to end


@dataclass(frozen=True, slots=True)
class Packed:
    starts: tuple[str, ...] = ()
    pauses: tuple[str, ...] = ()  # make room for `first`
    first: str = ""  # the first that does not fit: what is free is kept for it
    first_in_s: float | None = None  # when there will be room for it; None: unknown
    rooms: Mapping[str, int] = field(
        default_factory=dict
    )  # by id: nodes of those that start with fewer than they prefer


def pack(queue: Sequence[QueuedRun], active: Collection[Active], room: int) -> Packed:
    """`queue` is in its order. Runs behind the first that does not fit start only where they do not delay it: they end
    before its nodes are free, or use nodes that it leaves over. One of unknown length counts as endless."""
    free = room - sum(one.nodes for one in active)
    starts: list[str] = []
    begun: list[Active] = []
    rooms: dict[str, int] = {}
    for number, one in enumerate(queue):
        nodes, there = one.nodes, free + one.has
        if nodes > there and 0 < one.least <= there:
            nodes = rooms[one.id] = there
        if nodes > there:
            return replace(_behind(queue[number:], [*active, *begun], free, starts), rooms=rooms)
        free -= max(nodes - one.has, 0)
        starts.append(one.id)
        begun.append(Active(one.id, nodes, one.seconds))
    return Packed(tuple(starts), rooms=rooms)


def _behind(rest: Sequence[QueuedRun], active: Sequence[Active], free: int, starts: list[str]) -> Packed:
    first = rest[0]
    pauses = _pauses(first, active, free) if first.rank == HIGH else ()
    at_s, over = _reserved(first.nodes, active, free)
    if pauses:
        return Packed(tuple(starts), pauses, first.id, None)
    for one in rest[1:]:
        if free <= 0:
            break
        if one.nodes > free:
            continue
        ends = one.seconds is not None and one.seconds <= at_s and at_s < math.inf
        if not ends and one.nodes > over:
            continue
        if not ends:
            over -= one.nodes
        free -= one.nodes
        starts.append(one.id)
    return Packed(tuple(starts), (), first.id, at_s if at_s < math.inf else None)


def _reserved(nodes: int, active: Sequence[Active], free: int) -> tuple[float, int]:
    """When so many nodes will be free, and how many more are free at that time. Infinite: unknown."""
    known = sorted((one.ends_in_s, one.nodes) for one in active if one.ends_in_s is not None)
    at_s = 0.0
    for ends_in_s, more in known:
        if free >= nodes and ends_in_s > at_s:
            break
        free, at_s = free + more, max(ends_in_s, at_s)
    return (at_s, free - nodes) if free >= nodes else (math.inf, 0)


def _pauses(first: QueuedRun, active: Sequence[Active], free: int) -> tuple[str, ...]:
    """The fewest runs that make room, those that started last first; none if all of them would not."""
    coming = free + sum(one.nodes for one in active if one.leaving)
    if coming >= first.nodes:
        return ()
    chosen: list[Active] = []
    for one in sorted((one for one in active if one.yields and not one.leaving), key=lambda one: one.id, reverse=True):
        if coming >= first.nodes:
            break
        chosen.append(one)
        coming += one.nodes
    if coming < first.nodes:
        return ()
    for one in list(chosen):  # one that came early may not be needed beside a wider one
        if coming - one.nodes >= first.nodes:
            chosen.remove(one)
            coming -= one.nodes
    return tuple(one.id for one in chosen)


def expected(queue: Sequence[QueuedRun], active: Collection[Active], room: int) -> dict[str, float | None]:
    """In how many seconds each run will likely start, if all end as expected and each waits for those before it. None:
    unknown, because it waits for one of unknown length."""
    free = room - sum(one.nodes for one in active)
    ends = [(one.ends_in_s, one.nodes) for one in active if one.ends_in_s is not None]
    heapq.heapify(ends)
    at_s, known = 0.0, True
    found: dict[str, float | None] = {}
    for one in queue:
        while known and free < one.nodes:
            if not ends:
                known = False
                break
            ended_s, more = heapq.heappop(ends)
            at_s, free = max(at_s, ended_s), free + more
        found[one.id] = at_s if known else None
        if known:
            free -= one.nodes
            if one.seconds is not None:
                heapq.heappush(ends, (at_s + one.seconds, one.nodes))
    return found
