"""Scenarios from a seed, and a scenario with a broken promise shrunk."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from functools import cache

from stoker.model.job.job import Fallback, Job, Priority, Spot
from stoker.model.job.values import NodeRange
from stoker.model.node import Cluster
from stoker.testing.world.cloud import NAME
from stoker.testing.world.promises import PromiseBroken
from stoker.testing.world.scenario import MarketPlace, Mishap, MishapKind, RunPlan, Scenario
from stoker.testing.world.world import World

BAD_WEATHER_S = 3600.0
LONGEST_S = 432_000.0  # of a lease
LONG_FAULTS = (
    MishapKind.HANG,
    MishapKind.CUT_OFF,
    MishapKind.UNSEEN,
    MishapKind.FULL_STORE,
    MishapKind.BLIND,
    MishapKind.NO_CAPACITY,
    MishapKind.DEAR,
    MishapKind.LOGGED_OUT,
    MishapKind.STORE_HANGS,
    MishapKind.KEY_ROTATED,
)


FAULTS = tuple(one for one in MishapKind if one is not MishapKind.CLUSTER_PAUSED)  # of every world


def calm(seed: int, *, cloud: bool = False) -> Scenario:
    """One run without any fault."""
    drawn = random.Random(seed)
    plan = RunPlan(_job(NAME if cloud else "local", retries=0), work_s=drawn.uniform(60, 3600), save_every_s=600.0)
    return Scenario(seed, (plan,), places=_places(drawn) if cloud else (), lease_s=LONGEST_S if cloud else 0.0)


def stormy(seed: int) -> Scenario:
    """A few runs, and about as many faults as fit into them."""
    drawn = random.Random(seed)
    cloud = drawn.random() < 0.75
    plans = tuple(_plan(drawn, cloud=cloud) for _ in range(drawn.randint(1, 3)))
    span_s = max(plan.at + 2 * plan.work_s for plan in plans)
    mishaps = [_mishap(drawn, span_s) for _ in range(drawn.randint(0, 8))]
    return Scenario(
        seed,
        plans,
        tuple(sorted(mishaps, key=lambda one: one.at)),
        places=_places(drawn) if cloud else (),
        slots=drawn.randint(1, 3),
        boot_s=tuple(drawn.choice((3.0, 20.0, 60.0, 200.0)) for _ in range(5)) if cloud else (0.2,),
        release_s=drawn.choice((1.0, 5.0, 30.0)) if cloud else 0.1,
        lease_s=LONGEST_S if cloud else 0.0,
    )


def away(seed: int) -> Scenario:
    """Runs of hours on spot machines that are evicted and restored, while the server is down most of the time."""
    drawn = random.Random(seed)
    plans = tuple(
        RunPlan(
            _job(
                NAME,
                drawn.choice((0, 0, 1)),
                drawn.choice(("spot", "spot", "fallback", "deadline")),
                drawn.choice(("", "", "0.20", "1.00", "5.00")),
                drawn.choice((0.0, 0.0, 12 * 3600.0)),
                drawn.choice((0.0, 0.0, 1800.0, 4 * 3600.0)),
            ),
            at=drawn.uniform(0, 300),
            work_s=drawn.choice((600.0, 3600.0, 4 * 3600.0, 20 * 3600.0)),
            save_every_s=drawn.choice((60.0, 300.0, 1200.0)),
            save_s=drawn.choice((1.0, 5.0, 20.0)),
            listens=drawn.random() < 0.6,
            failures=drawn.choice((0, 0, 0, 1)),
        )
        for _ in range(drawn.randint(1, 2))
    )
    mishaps = [_absence(drawn) for _ in range(drawn.randint(1, 3))]
    mishaps += [_eviction(drawn) for _ in range(drawn.randint(1, 6))]
    mishaps += [_mishap(drawn, 3600.0) for _ in range(drawn.randint(0, 3))]
    return Scenario(
        seed,
        plans,
        tuple(sorted(mishaps, key=lambda one: one.at)),
        places=_places(drawn),
        boot_s=tuple(drawn.choice((3.0, 20.0, 60.0, 200.0)) for _ in range(5)),
        release_s=drawn.choice((1.0, 5.0, 30.0)),
        lease_s=LONGEST_S,
        restore_s=drawn.choice((0.0, 5.0, 60.0, 900.0, 7200.0)),
    )


def _absence(drawn: random.Random) -> Mishap:
    seconds = drawn.choice((600.0, 3600.0, 6 * 3600.0, 20 * 3600.0, 40 * 3600.0))
    return Mishap(drawn.uniform(10, 8 * 3600), MishapKind.CRASH, 0, seconds, where=drawn.randint(0, 6))


def _eviction(drawn: random.Random) -> Mishap:
    notice_s = drawn.choice((0.0, 8.0, 30.0))
    return Mishap(drawn.uniform(60, 12 * 3600), MishapKind.EVICTION, drawn.randrange(2), notice_s)


def _plan(drawn: random.Random, *, cloud: bool) -> RunPlan:
    work_s = drawn.choice((5.0, 60.0, 300.0, 1200.0, 3600.0))
    job = _cloud_job(drawn, work_s) if cloud else _job("local", retries=drawn.choice((0, 0, 1, 3)))
    return RunPlan(
        job,
        at=drawn.uniform(0, 300),
        work_s=work_s,
        save_every_s=drawn.choice((20.0, 60.0, 300.0, 5000.0)),
        save_s=drawn.choice((1.0, 5.0, 20.0)),
        listens=drawn.random() < 0.6,
        failures=drawn.choice((0, 0, 0, 1, 2)),
        reports=drawn.random() < 0.8,
        # A machine that gets its budget at its start compares its clock with the server's, once.
        skew_s=0.0 if job.budget else drawn.choice((0.0, 0.0, -3600.0, 30.0, 86400.0)),
    )


def _cloud_job(drawn: random.Random, work_s: float) -> Job:
    kind = drawn.choice(("on-demand", "spot", "fallback", "deadline"))
    budget = drawn.choice(("", "", "0.02", "0.05", "0.20", "1.00"))
    hours = drawn.choice((1.5, 2, 4, 8))
    deadline = max(hours * work_s, 900.0) if kind == "deadline" else 0.0
    lease = drawn.choice((0.0, 0.0, 300.0, 900.0))
    return _job(NAME, drawn.choice((0, 0, 1, 3)), kind, budget, deadline, lease)


@cache
def _job(
    on: str, retries: int, kind: str = "on-demand", budget: str = "", deadline: float = 0.0, lease: float = 0.0
) -> Job:
    """Cached: validating a job takes longer than most lives."""
    spot = {"spot": Spot(), "fallback": Spot(fallback=Fallback.ON_DEMAND)}.get(kind)
    limit = Decimal(budget) if budget else None
    job = Job(name="job", run="true", on=on, retries=retries, spot=spot, budget=limit)
    return replace(job, deadline=deadline or None, lease=lease or None)


def _places(drawn: random.Random) -> tuple[MarketPlace, ...]:
    price = Decimal(drawn.choice(("0.10", "0.40", "3.60")))
    spots = tuple(
        MarketPlace(f"spot-{number}", price * Decimal(drawn.choice(("0.15", "0.3", "0.5"))), spot=True)
        for number in range(drawn.randint(1, 2))
    )
    return (*spots, MarketPlace("sure", price, spot=False))


def _mishap(drawn: random.Random, span_s: float) -> Mishap:
    fault = drawn.choice(FAULTS)
    at, run = drawn.uniform(0, min(span_s, BAD_WEATHER_S)), drawn.randrange(3)
    seconds = drawn.choice((5.0, 20.0, 60.0, 300.0, 900.0, 3000.0)) if fault in LONG_FAULTS else 0.0
    if fault is MishapKind.STOP_REFUSED:
        seconds = drawn.choice((5.0, 60.0, 300.0))
    if fault in (MishapKind.EVICTION, MishapKind.DRILL):
        seconds = drawn.choice((0.0, 8.0, 30.0, 120.0))
    if fault is MishapKind.LOSSES:
        seconds = drawn.choice((30.0, 120.0, 400.0, 1000.0))
    if fault is MishapKind.FALSE_ALARM:
        seconds = drawn.uniform(1, 30)
    if fault is MishapKind.CRASH:
        seconds = drawn.choice((1.0, 1.0, 30.0, 400.0, 2000.0))
    if fault is MishapKind.CLOCK:
        seconds = drawn.choice((3.0, 400.0, 86400.0))
    return Mishap(at, fault, run, seconds, where=drawn.randint(0, 6))


def gangs(seed: int, most: int = 8, *, elastic: bool = False) -> Scenario:
    """Runs of one to so many nodes, and places that have room for some of them."""
    drawn = random.Random(f"{'elastic' if elastic else 'gangs'} {seed}")
    cloud = drawn.random() < 0.85
    places = _places(drawn)
    plans = tuple(_gang_plan(drawn, most, places, cloud=cloud) for _ in range(drawn.randint(1, 3)))
    if elastic:
        plans = tuple(_ranged(drawn, one) for one in plans)
    span_s = max(plan.at + 2 * plan.work_s for plan in plans)
    mishaps = [_gang_mishap(drawn, span_s) for _ in range(drawn.randint(0, 8))]
    return Scenario(
        seed,
        plans,
        tuple(sorted(mishaps, key=lambda one: one.at)),
        places=tuple(_narrow(drawn, one, plans) for one in places) if cloud else (),
        slots=drawn.randint(1, most),
        boot_s=tuple(drawn.choice((3.0, 20.0, 60.0, 200.0)) for _ in range(5)) if cloud else (0.2,),
        release_s=drawn.choice((1.0, 5.0, 30.0)) if cloud else 0.1,
        lease_s=LONGEST_S if cloud else 0.0,
    )


def _gang_plan(drawn: random.Random, most: int, places: tuple[MarketPlace, ...], *, cloud: bool) -> RunPlan:
    nodes = drawn.randint(1, most)
    plan = _plan(drawn, cloud=cloud)
    job = replace(plan.job, nodes=nodes)
    if cloud and nodes > 1 and drawn.random() < 0.4:  # also what pays for three of four
        cost = min(one.usd_per_hour for one in places) * nodes * Decimal(plan.work_s) / 3600
        share = Decimal(drawn.choice(("0.75", "1.5", "4")))
        job = replace(job, budget=max((cost * share).quantize(Decimal("0.01")), Decimal("0.01")))
    skew_s = 0.0 if job.budget else plan.skew_s
    peers_fail = drawn.random() < 0.6
    return replace(plan, job=job, skew_s=skew_s, shards=drawn.random() < 0.5, peers_fail=peers_fail)


def _ranged(drawn: random.Random, plan: RunPlan) -> RunPlan:
    """The same with fewer nodes, if there are no more. Its first node saves: parts are for as many as saved them."""
    most = plan.job.most_nodes
    if most == 1 or drawn.random() < 0.1:
        return plan
    return replace(plan, job=replace(plan.job, nodes=NodeRange(drawn.randint(1, most - 1), most)), shards=False)


def _narrow(drawn: random.Random, place: MarketPlace, plans: tuple[RunPlan, ...]) -> MarketPlace:
    """One of two kinds may be too narrow for the widest run: one that fits nowhere never ends."""
    widest = max(plan.job.least_nodes for plan in plans)
    if drawn.random() < 0.5:
        return place
    room = drawn.randint(widest, 2 * widest)
    if place.name == "spot-1" and drawn.random() < 0.5:
        room = drawn.randint(1, widest)
    return replace(place, capacity=room, tells=drawn.random() < 0.5)


def _gang_mishap(drawn: random.Random, span_s: float) -> Mishap:
    """Nodes are lost more often than anything else, many of them while the others still meet."""
    if drawn.random() < 0.6:
        return _mishap(drawn, span_s)
    fault = drawn.choice((MishapKind.EVICTION, MishapKind.EVICTION, MishapKind.DEATH, MishapKind.NO_CAPACITY))
    at = drawn.uniform(0, drawn.choice((300.0, min(span_s, BAD_WEATHER_S))))
    seconds = drawn.choice((0.0, 8.0, 30.0, 120.0)) if fault is not MishapKind.NO_CAPACITY else 300.0
    return Mishap(at, fault, drawn.randrange(3), seconds, where=drawn.randrange(8))


def shared(seed: int, *, elastic: bool = False) -> Scenario:
    """Clusters that are too small for all their runs, with priorities, idle nodes and pauses."""
    drawn = random.Random(f"shared {'elastic ' if elastic else ''}{seed}")
    cloud = drawn.random() < 0.8
    places, on = _places(drawn), NAME if cloud else "local"
    clusters = tuple(_cluster(drawn, f"pool-{number}", on) for number in range(drawn.randint(1, 2)))
    plans = tuple(_shared_plan(drawn, clusters, places, cloud=cloud) for _ in range(drawn.randint(2, 5)))
    if elastic:
        plans = tuple(_ranged(drawn, one) for one in plans)
    span_s = max(plan.at + 2 * plan.work_s for plan in plans)
    mishaps = [_shared_mishap(drawn, span_s) for _ in range(drawn.randint(0, 6))]
    return Scenario(
        seed,
        plans,
        tuple(sorted(mishaps, key=lambda one: one.at)),
        places=places if cloud else (),
        slots=drawn.randint(1, 4),
        boot_s=tuple(drawn.choice((3.0, 20.0, 60.0, 200.0)) for _ in range(5)) if cloud else (0.2,),
        release_s=drawn.choice((1.0, 5.0, 30.0)) if cloud else 0.1,
        lease_s=LONGEST_S if cloud else 0.0,
        clusters=clusters,
    )


def _cluster(drawn: random.Random, name: str, provider: str) -> Cluster:
    idle_s = drawn.choice((30.0, 120.0, 600.0, 1800.0))
    return Cluster(name, provider, drawn.randint(1, 4), min_nodes=drawn.choice((0, 0, 0, 1)), idle_s=idle_s)


def _shared_plan(
    drawn: random.Random, clusters: tuple[Cluster, ...], places: tuple[MarketPlace, ...], *, cloud: bool
) -> RunPlan:
    cluster = drawn.choice((*clusters, *clusters, None))
    most = cluster.max_nodes if cluster else 4
    plan = _gang_plan(drawn, drawn.choice((1, 1, most)), places, cloud=cloud)
    priority = drawn.choice((Priority.LOW, Priority.LOW, Priority.NORMAL, Priority.HIGH))
    person, name = drawn.choice(("ada", "bob")), cluster.name if cluster else ""
    at = drawn.choice((plan.at, plan.at * 12))
    return replace(plan, job=replace(plan.job, priority=priority), at=at, cluster=name, person=person)


def _shared_mishap(drawn: random.Random, span_s: float) -> Mishap:
    if drawn.random() < 0.75:
        return _gang_mishap(drawn, span_s)
    seconds = drawn.choice((5.0, 60.0, 900.0))
    return Mishap(drawn.uniform(0, span_s), MishapKind.CLUSTER_PAUSED, drawn.randrange(2), seconds)


def broken(scenario: Scenario, world: type[World] = World) -> PromiseBroken | None:
    """The broken promise; None: every promise is kept. An engine that raises breaks one, too."""
    try:
        world(scenario).live()
    except PromiseBroken as found:
        return found
    except Exception as error:
        return PromiseBroken("the engine does not fail", f"{type(error).__name__}: {error}")
    return None


def shrunk(scenario: Scenario, promise: str, world: type[World] = World) -> Scenario:
    """Fewer faults, fewer runs, simpler ones: repeated while the promise is still broken."""
    while smaller := next((one for one in _smaller(scenario) if _breaks(one, promise, world)), None):
        scenario = smaller
    return scenario


def story(scenario: Scenario, kind: type[World] = World) -> list[str]:
    """The events of a scenario, line by line, up to the broken promise."""
    world = kind(scenario, trace=True)
    try:
        world.live()
        end = "every promise was kept"
    except PromiseBroken as found:
        end = f"broken: {found}"
    except Exception as error:
        end = f"broken: {type(error).__name__}: {error}"
    return [*(world.trace or []), end]


def _breaks(scenario: Scenario, promise: str, world: type[World]) -> bool:
    found = broken(scenario, world)
    return found is not None and found.promise == promise


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    mishaps, plans = scenario.mishaps, scenario.plans
    half = len(mishaps) // 2
    if half > 1:
        yield replace(scenario, mishaps=mishaps[:half])
        yield replace(scenario, mishaps=mishaps[half:])
    for number in range(len(mishaps)):
        yield replace(scenario, mishaps=mishaps[:number] + mishaps[number + 1 :])
    if len(plans) > 1:
        for number in range(len(plans)):
            yield replace(scenario, plans=plans[:number] + plans[number + 1 :])
    for number, plan in enumerate(plans):
        for simpler in (replace(plan, at=0.0), replace(plan, failures=0), replace(plan, skew_s=0.0)):
            if simpler != plan:
                yield replace(scenario, plans=(*plans[:number], simpler, *plans[number + 1 :]))
