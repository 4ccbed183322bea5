"""The queue alone: one round over many runs, and a simulated week of a cluster with what it comes to."""

from __future__ import annotations

import heapq
import random
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from benchmarks.measure import Goal, Plan, Result
from stoker.engine.lifecycle import begin
from stoker.engine.offers.market import needs
from stoker.engine.queue.clusters import ClusterFacts
from stoker.engine.queue.order import HIGH, LOW, NORMAL, STEP_S, Active, QueuedRun, QueueFacts, decayed, ordered, pack
from stoker.engine.rounds import Scene, decide
from stoker.model.job.job import Job, Priority
from stoker.model.node import Cluster, Offer
from stoker.model.run.run import Run

WEEK_S = 7 * 86_400.0
ROUND_S = 30.0  # between rounds while something may change
_DEV = Cluster("dev", "cloud", max_nodes=1000)


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float
    run: QueuedRun
    seconds: float  # that it really takes


@dataclass(frozen=True, slots=True)
class Lived:
    """`utilisation` is of what could have been worked in the time: all that had arrived, on all nodes."""

    utilisation: float
    longest_wait_s: float
    waits_s: dict[int, float]  # by rank, on average
    unstarted: int
    took_s: float


def run(plan: Plan) -> Result:
    result = Result("scheduling")
    waiting = plan.size(10_000, 1_000)
    rounds = plan.interleave({"busy": lambda: _round_s(245, waiting), "idle": lambda: _round_s(0, waiting)})
    what = f"a round of the engine over {waiting:,} queued runs and 1,000 nodes"
    result.add(f"{what}, 20 of them free", "s", rounds["busy"], Goal(at_most=1.0))
    result.add(f"{what}, all of them free", "s", rounds["idle"])
    week = lived(*((1000, 100_000) if plan.size(1, 0) else (100, 10_000)))
    result.add("a simulated week", "s", [week.took_s], Goal(at_most=120.0))
    result.add("utilisation, of the best packing", "", [week.utilisation], Goal(at_least=0.95))
    result.add("the longest wait", "h", [week.longest_wait_s / 3600])
    return result


def _round_s(busy: int, waiting: int) -> float:
    """All that the engine decides in one round, for a cluster whose runs have four nodes each."""
    drawn, now = random.Random(1), datetime(2026, 3, 1, tzinfo=UTC)
    offer = Offer("cloud", "small", "here", Decimal("3.60"))
    running = [begin(_submitted(number, drawn, now, 4), now, [offer] * 4).run for number in range(busy)]
    sizes = [drawn.choice((1, 1, 1, 2, 2, 4, 8, 16, 32)) for _ in range(waiting)]
    runs = [*running, *(_submitted(busy + number, drawn, now, size) for number, size in enumerate(sizes))]
    market = {("cloud", need): [offer] for run in runs for need in needs(run.job, run.pool)}
    facts = QueueFacts(seconds={f"ants-{number}": drawn.uniform(60, 7200) for number in range(45)})
    scene = Scene({"cloud": None}, now, market, clusters=ClusterFacts({"dev": _DEV}, {"cloud"}), facts=facts)
    began = time.process_time()
    decide(runs, {}, scene)
    return time.process_time() - began


def _submitted(number: int, drawn: random.Random, now: datetime, nodes: int) -> Run:
    priority = drawn.choice((Priority.HIGH, Priority.NORMAL, Priority.NORMAL, Priority.LOW))
    job = Job(name=f"ants-{number % 50}", run="python train.py", on="cloud", nodes=nodes, priority=priority)
    at, person = now - timedelta(seconds=drawn.uniform(0, 4 * 86_400)), f"person {number % 40}"
    name = f"ants-{number % 50}-{number}"
    return Run(f"{number:012x}", name, number, job, "s", "python3", at, pool=_DEV.pool, person=person)


def arrivals(drawn: random.Random, nodes: int, runs: int) -> list[Arrival]:
    """A week of them, most of them small, together as much as all nodes can do. Nine of ten have a known length, which
    is wrong by up to a third."""
    sizes = [drawn.choice((1, 1, 1, 2, 2, 4, 8, 16, 32)) for _ in range(runs)]
    lengths = [drawn.lognormvariate(0.0, 1.0) for _ in range(runs)]
    scale = nodes * WEEK_S / sum(size * length for size, length in zip(sizes, lengths, strict=True))
    made = []
    for number, at in enumerate(sorted(drawn.uniform(0, WEEK_S * 0.95) for _ in range(runs))):
        seconds = lengths[number] * scale
        told = seconds * drawn.uniform(1.0, 1.33) if drawn.random() < 0.9 else None
        rank = drawn.choice((HIGH, NORMAL, NORMAL, NORMAL, LOW))
        person = f"person {int(drawn.expovariate(0.1))}"
        made.append(Arrival(at, QueuedRun(f"{number:07}", sizes[number], rank, person, 0.0, told), seconds))
    return made


def lived(nodes: int, runs: int, seed: int = 1) -> Lived:
    """Rounds of the queue, as a server has them, until the week is over and every run has started."""
    began = time.process_time()
    coming = arrivals(random.Random(seed), nodes, runs)
    lengths = {one.run.id: one.seconds for one in coming}
    waiting: dict[str, tuple[float, QueuedRun]] = {}
    busy: dict[str, tuple[float, Active]] = {}  # by id: when it was expected to end
    ends: list[tuple[float, str]] = []
    used: dict[str, float] = defaultdict(float)
    waits: dict[int, list[float]] = defaultdict(list)
    now, following, worked, offered = 0.0, 0, 0.0, 0.0
    while following < len(coming) or waiting:
        now += ROUND_S
        while ends and ends[0][0] <= now:
            busy.pop(heapq.heappop(ends)[1])
        while following < len(coming) and coming[following].at <= now:
            arrival = coming[following]
            waiting[arrival.run.id] = arrival.at, arrival.run
            offered += arrival.run.nodes * arrival.seconds
            following += 1
        free = nodes - sum(active.nodes for _, active in busy.values())
        if free <= 0 or not waiting:
            continue
        for run_id, (at, one) in waiting.items():
            if now - at - one.waited_s >= STEP_S:
                waiting[run_id] = at, replace(one, waited_s=(now - at) // STEP_S * STEP_S)
        queue = ordered([one for _, one in waiting.values()], used)
        active = [Active(one.id, one.nodes, _left(until, now)) for until, one in busy.values()]
        for run_id in pack(queue, active, nodes).starts:
            at, one = waiting.pop(run_id)
            waits[one.rank].append(now - at)
            used[one.person] += one.nodes * lengths[run_id]
            busy[run_id] = (now + one.seconds if one.seconds else float("inf")), Active(run_id, one.nodes)
            heapq.heappush(ends, (now + lengths[run_id], run_id))
            worked += one.nodes * max(min(WEEK_S - now, lengths[run_id]), 0.0)
        if int(now) % 3600 < ROUND_S:
            used = defaultdict(float, {person: decayed(use, 3600.0) for person, use in used.items()})
    longest = max(max(some) for some in waits.values())
    means = {rank: sum(some) / len(some) for rank, some in waits.items()}
    best = min(offered, nodes * WEEK_S)
    return Lived(worked / best, longest, means, len(waiting), time.process_time() - began)


def _left(until: float, now: float) -> float | None:
    return None if until == float("inf") or until < now else until - now
