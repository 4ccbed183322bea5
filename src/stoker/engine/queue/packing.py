"""What starts now: the queue in its order, a reservation for the first that does not fit, and what runs meanwhile."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from stoker.engine.queue.order import HIGH, QueuedRun


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


def pack(queue: Sequence[QueuedRun], active: Collection[Active], room: int) -> Packed:
    """`queue` is in its order. Runs behind the first that does not fit start only where they do not delay it: they end
    before its nodes are free, or use nodes that it leaves over. One of unknown length counts as endless."""
    free = room - sum(one.nodes for one in active)
    starts: list[str] = []
    begun: list[Active] = []
    for number, one in enumerate(queue):
        if one.nodes > free:
            return _behind(queue[number:], [*active, *begun], free, starts)
        free -= one.nodes
        starts.append(one.id)
        begun.append(Active(one.id, one.nodes, one.seconds))
    return Packed(tuple(starts))


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
    """When so many nodes will be free, and how many more are free at that time. Infinite: nobody knows."""
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
