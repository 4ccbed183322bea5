"""`python -m stoker.testing.world SEED`: replays one world and prints what happens in it."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from stoker.testing.world.drawing import away, broken, calm, gangs, shared, shrunk, stormy, story
from stoker.testing.world.real.world import RealWorld
from stoker.testing.world.scenario import Scenario
from stoker.testing.world.world import World

AT_ONCE = 200  # seeds of a long proof between two lines of its progress


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m stoker.testing.world", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--until", type=int, help="try every seed up to this one, print the first that fails")
    parser.add_argument("--whole", action="store_true", help="do not shrink it first")
    parser.add_argument("--calm", action="store_true", help="without faults")
    parser.add_argument("--away", action="store_true", help="the server is down for hours, and machines are evicted")
    parser.add_argument("--gangs", action="store_true", help="runs have several nodes")
    parser.add_argument("--shared", action="store_true", help="runs share clusters")
    parser.add_argument("--elastic", action="store_true", help="with --gangs or --shared: ranges of nodes")
    parser.add_argument("--real", action="store_true", help="with the real server: reconciler, performer, database")
    parser.add_argument("--lives", type=int, help="try seeds until so many runs have lived, with all processors")
    given = parser.parse_args(arguments)
    world = RealWorld if given.real else World
    if given.lives:
        return _long_proof(given)
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


def _long_proof(given: argparse.Namespace) -> int:
    """Counts runs, and prints every seed that breaks a promise."""
    lives, found, seed = 0, 0, given.seed
    with ProcessPoolExecutor() as processes:
        while lives < given.lives:
            for number, (lived, why) in enumerate(processes.map(partial(_outcome, given), range(seed, seed + AT_ONCE))):
                lives += lived
                if why:
                    found += 1
                    sys.stdout.write(f"seed {seed + number}: {why}\n")
            seed += AT_ONCE
            sys.stdout.write(f"{lives} lives, {found} broken promises, next seed {seed}\n")
            sys.stdout.flush()
    return 1 if found else 0


def _outcome(given: argparse.Namespace, seed: int) -> tuple[int, str]:
    scenario = _drawn(given, seed)
    return len(scenario.plans), str(broken(scenario, RealWorld if given.real else World) or "")


def _drawn(given: argparse.Namespace, seed: int) -> Scenario:
    if given.gangs:
        return gangs(seed, elastic=given.elastic)
    if given.shared:
        return shared(seed, elastic=given.elastic)
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
