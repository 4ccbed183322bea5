"""How many whole lives of runs the simulation goes through in a second of one processor."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from benchmarks.measure import Goal, Plan, Result
from stoker.testing.world.drawing import calm, stormy
from stoker.testing.world.scenario import Scenario
from stoker.testing.world.world import World

CALM, CLOUD, STORMY = "plain", "plain, on a cloud with leases and prices", "stormy"


def run(plan: Plan) -> Result:
    result = Result("simulation")
    lives = plan.size(1_000, 200)
    scenarios = {
        CALM: [calm(seed) for seed in range(lives)],
        CLOUD: [calm(seed, cloud=True) for seed in range(lives)],
        STORMY: [stormy(seed) for seed in range(lives)],
    }
    contestants = {name: partial(_lives_per_s, some) for name, some in scenarios.items()}
    for name, samples in plan.interleave(contestants).items():
        goal = Goal(at_least=1_000) if name == CALM else None
        result.add(f"{name}: lives", "per s", samples, goal)
    return result


def _lives_per_s(scenarios: Sequence[Scenario]) -> float:
    """By processor time: what else the machine does matters little then."""
    begun = time.process_time()
    for scenario in scenarios:
        World(scenario).live()
    return sum(len(one.plans) for one in scenarios) / (time.process_time() - begun)
