"""The cheapest way to meet a deadline for somebody who knows the future: exact, by dynamic programming over a grid.

A machine that is started costs from its first moment and works after `start` steps. The next one may be started while
the one before still works. Nothing is lost at a change, since whoever knows when it comes saves in time. What giving a
machine back costs is left out. All of this is in the oracle's favour.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchmarks.spottrace import STEP_S, Trace

Costs = np.ndarray[tuple[int], np.dtype[np.float64]]  # by steps of work done: the least that it can have cost


@dataclass(frozen=True, slots=True)
class Machine:
    """One kind of machine, step by step."""

    there: list[bool]
    usd: list[float]  # of one step

    def stays(self, at: int, steps: int) -> int:
        """For how many of the next steps it is there."""
        count = 0
        while count < steps and at + count < len(self.there) and self.there[at + count]:
            count += 1
        return count


def machines(trace: Trace, steps: int) -> list[Machine]:
    """On-demand first."""
    always = Machine([True] * steps, [float(trace.on_demand) * STEP_S / 3600] * steps)
    return [always, *(_spot(trace, number, steps) for number in range(len(trace.places)))]


def least_cost(trace: Trace, work_s: float, deadline_s: float, start_s: float) -> float:
    """In dollars; infinite where not even the oracle meets the deadline."""
    steps, work, start = int(deadline_s // STEP_S), math.ceil(work_s / STEP_S), round(start_s / STEP_S)
    kinds = machines(trace, steps)
    nothing: Costs = np.full(work + 1, np.inf)
    idle = nothing.copy()
    idle[0] = 0.0
    running = [[nothing] * (steps + 1) for _ in kinds]  # by kind and step: with such a machine at work
    for at in range(steps):
        for kind in range(len(kinds)):
            idle = np.minimum(idle, running[kind][at])
        for kind, machine in enumerate(kinds):
            if machine.stays(at, start) == start and at + start <= steps:
                _start(running, kinds, kind, idle, at, start)
            if machine.there[at]:
                after = _worked(running[kind][at], 1, machine.usd[at])
                running[kind][at + 1] = np.minimum(running[kind][at + 1], after)
    return min(float(idle[work]), *(float(one[steps][work]) for one in running))


def _start(running: list[list[Costs]], kinds: list[Machine], kind: int, idle: Costs, at: int, start: int) -> None:
    """From nothing, or beside another one that works on until this one does, or until it is taken away."""
    price = sum(kinds[kind].usd[at : at + start])
    best = idle + price
    for other, machine in enumerate(kinds):
        both = machine.stays(at, start)
        if other != kind and both:
            best = np.minimum(best, _worked(running[other][at], both, sum(machine.usd[at : at + both])) + price)
    running[kind][at + start] = np.minimum(running[kind][at + start], best)


def _worked(costs: Costs, steps: int, usd: float) -> Costs:
    """What is more than all the work is done counts as all of it."""
    after: Costs = np.full(len(costs), np.inf)
    after[steps:] = costs[:-steps] + usd
    after[-1] = min(after[-1], float(costs[-1 - steps :].min()) + usd)
    return after


def _spot(trace: Trace, number: int, steps: int) -> Machine:
    place = trace.places[number]
    there, usd = [False] * steps, [0.0] * steps
    for begin, end in ((0.0, steps * STEP_S),) if place.open is None else place.open:
        for at in range(round(begin / STEP_S), min(round(end / STEP_S), steps)):
            there[at] = True
    prices, price = dict(place.prices), place.usd_per_hour
    for at in range(steps):
        price = prices.get(at * STEP_S, price)
        usd[at] = float(price) * STEP_S / 3600
    return Machine(there, usd)
