"""The order of waiting runs: by priority, then in turns between people, by what each has used of late."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

HIGH, NORMAL, LOW = 0, 1, 2  # ranks: the lowest number goes first
HALF_LIFE_S = 86_400.0  # after which what somebody has used counts half
STEP_S = 86_400.0  # of waiting that raises a run by one rank
STARVED_S = 3 * 86_400.0  # of waiting after which a run goes before all that are not as old
CHARGE_S = 3600.0  # of use that every node counts for at its start, whatever it comes to


@dataclass(frozen=True, slots=True)
class QueuedRun:
    """A run that waits. `seconds` is how long it will likely take; None: unknown."""

    id: str  # ids sort by the time of submission
    nodes: int = 1
    rank: int = NORMAL
    person: str = ""
    waited_s: float = 0.0
    seconds: float | None = None


def ordered(waiting: Collection[QueuedRun], used: Mapping[str, float]) -> list[QueuedRun]:
    """`used` is the decayed node-seconds of each person. Whoever has used least is next, and each start counts at once,
    so that people take turns. A run that has waited for very long goes first: nothing waits forever."""
    oldest_first = sorted(waiting, key=lambda one: one.id)
    starved = [one for one in oldest_first if one.waited_s >= STARVED_S]
    levels: dict[int, list[QueuedRun]] = {}
    for one in oldest_first:
        if one.waited_s < STARVED_S:
            levels.setdefault(max(one.rank - int(one.waited_s // STEP_S), HIGH), []).append(one)
    counted = dict(used)
    for one in starved:
        counted[one.person] = counted.get(one.person, 0.0) + one.nodes * CHARGE_S
    return [*starved, *(one for level in sorted(levels) for one in _in_turns(levels[level], counted))]


def _in_turns(runs: Iterable[QueuedRun], counted: dict[str, float]) -> Iterable[QueuedRun]:
    mine: dict[str, deque[QueuedRun]] = {}
    for one in runs:
        mine.setdefault(one.person, deque()).append(one)
    people = [(counted.get(person, 0.0), person) for person in mine]
    heapq.heapify(people)
    while people:
        use, person = heapq.heappop(people)
        one = mine[person].popleft()
        counted[person] = use + one.nodes * CHARGE_S
        if mine[person]:
            heapq.heappush(people, (counted[person], person))
        yield one


def decayed(used: float, seconds: float) -> float:
    """What is left of it after so long."""
    return used * math.exp2(-max(seconds, 0.0) / HALF_LIFE_S)
