"""When to evict: times drawn from the undisturbed run's duration. Pure: randomness is an argument."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from stoker.client.certify.code import CodeLine, Trait

MOST_PER_RUN = 3
LONGEST_NOTICE_S = 5.0
SHORTEST_NOTICE_S = 1.0  # less is too little for a last commit on a busy computer
NOTICE_SHARE = 0.1  # of the undisturbed run
EDGE = 0.05  # share of the training without evictions at both ends


@dataclass(frozen=True, slots=True)
class Moment:
    """One eviction. Its notice, or the eviction itself without notice, comes when the attempt has done its `share` of
    the training; if that cannot be observed, or is None, `after_s` seconds after its script has started."""

    after_s: float
    notice_s: float
    share: float | None = None


def plan(chance: random.Random, ran_s: float, first_s: float, evictions: int) -> list[tuple[Moment, ...]]:
    """The evictions of each disturbed run, in order.

    `ran_s` is how long the undisturbed script ran, `first_s` when it reported its first step: before that it starts up,
    which every attempt has to repeat. At least every second eviction has a notice. One of three or more comes while the
    script starts up, when there is no checkpoint to resume from.
    """
    counts = [MOST_PER_RUN] * (evictions // MOST_PER_RUN) + [evictions % MOST_PER_RUN] * bool(evictions % MOST_PER_RUN)
    work_s, notice_s = max(ran_s - first_s, 0.0), notice(ran_s)
    runs, number = [], 0
    for index, count in enumerate(counts):
        cuts = sorted(chance.uniform(EDGE, 1 - EDGE) * work_s for _ in range(count))
        moments = []
        for before, cut in zip([0.0, *cuts], cuts, strict=False):
            warned = notice_s if number % 2 == 0 else 0.0
            begin_s = max(cut - before - warned, 0.0)
            moments.append(Moment(first_s + begin_s, warned, begin_s / work_s if work_s else None))
            number += 1
        if evictions >= MOST_PER_RUN and index == len(counts) - 1:
            moments[-1 if count == 1 else 0] = Moment(chance.uniform(0.0, first_s + EDGE * work_s), 0.0)
        runs.append(tuple(moments))
    return runs


def sooner(planned: tuple[Moment, ...], late: int) -> tuple[Moment, ...]:
    """The same evictions, after so many more that took effect when the work was done than before the first checkpoint:
    earlier, then without notice, since a busy computer may need longer for a notice than the script for its work."""
    if late <= 0:
        return planned
    if late > 1:
        return tuple(replace(one, notice_s=0.0) for one in planned)
    return tuple(replace(one, after_s=one.after_s / 2, share=one.share and one.share / 2) for one in planned)


def notice(ran_s: float) -> float:
    """Long enough to be useful, short enough to end within the training."""
    return round(min(max(NOTICE_SHARE * ran_s, SHORTEST_NOTICE_S), LONGEST_NOTICE_S), 1)


def patience_s(ran_s: float, evictions: int) -> float:
    """How long a run with evictions may take: a script that starts over needs its full time at each attempt."""
    return 30.0 + 3.0 * (ran_s + 2.0) * (evictions + 1)


# What a certification cannot decide, checked before it spends time. Pure.

_LEAST_S = 1.0  # a shorter script ends before it can be evicted


def unseeded(code: Iterable[CodeLine]) -> str:
    """Why two undisturbed runs will probably differ; empty if nothing indicates that."""
    first = {line.trait: line for line in reversed(list(code))}
    drawn = first.get(Trait.SHUFFLES) or first.get(Trait.DRAWS)
    if drawn is None or Trait.SEEDS in first:
        return ""
    return f"no line of the script sets a seed, and {drawn.file}:{drawn.line} draws random numbers: `{drawn.text}`"


def too_short(ran_s: float) -> bool:
    return ran_s < _LEAST_S


def expected_s(ran_s: float, took_s: float, evictions: int) -> float:
    """How long the runs with evictions take, roughly: each eviction costs a start and, without notice, half an
    interval."""
    start_s = max(took_s - ran_s, 0.5)
    runs = 1 + (evictions + 1) // 3
    return runs * took_s + evictions * (start_s + 0.25 * ran_s)
