"""`python -m stoker.testing.world SEED`: replays one world and prints what happens in it."""

from __future__ import annotations

import argparse
import sys

from stoker.testing.world.drawing import away, calm, gangs, stormy
from stoker.testing.world.real.world import RealWorld
from stoker.testing.world.scenario import Scenario
from stoker.testing.world.shrinking import broken, shrunk, story
from stoker.testing.world.world import World


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m stoker.testing.world", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--until", type=int, help="try every seed up to this one, print the first that fails")
    parser.add_argument("--whole", action="store_true", help="do not shrink it first")
    parser.add_argument("--calm", action="store_true", help="without faults")
    parser.add_argument("--away", action="store_true", help="the server is down for hours, and machines are evicted")
    parser.add_argument("--gangs", action="store_true", help="runs have several nodes")
    parser.add_argument("--real", action="store_true", help="with the real server: reconciler, performer, database")
    given = parser.parse_args(arguments)
    world = RealWorld if given.real else World
    for seed in range(given.seed, (given.until or given.seed) + 1):
        scenario = _drawn(given, seed)
        found = broken(scenario, world)
        if found and not given.whole:
            scenario = shrunk(scenario, found.promise, world)
        if found or given.until is None:
            sys.stdout.write("\n".join([f"seed {seed}", *described(scenario), "", *story(scenario, world)]) + "\n")
        if found:
            return 1
    return 0


def _drawn(given: argparse.Namespace, seed: int) -> Scenario:
    if given.gangs:
        return gangs(seed)
    return calm(seed, cloud=True) if given.calm else away(seed) if given.away else stormy(seed)


def described(scenario: Scenario) -> list[str]:
    """Its runs, places and faults."""
    plans = [
        f"run {number}: {plan.work_s:.0f} s of work on {plan.job.on}, saves every {plan.save_every_s:.0f} s; "
        + _wants(plan.job)
        for number, plan in enumerate(scenario.plans)
    ]
    places = [f"place {one.name}: ${one.usd_per_hour} per hour" for one in scenario.places]
    return [*plans, *places, *(str(mishap) for mishap in scenario.mishaps)]


def _wants(job: object) -> str:
    named = {name: getattr(job, name) for name in ("nodes", "spot", "budget", "deadline", "retries")}
    return ", ".join(f"{name} {value}" for name, value in named.items() if value) or "nothing special"


if __name__ == "__main__":
    sys.exit(main())
