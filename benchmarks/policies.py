"""What each policy makes of a case: Stoker's by the engine itself in a simulated world, the others step by step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from benchmarks.oracle import least_cost, machines
from benchmarks.spottrace import STEP_S, Trace
from stoker.model.job.job import Fallback, Job, Spot
from stoker.model.run.run import RunState
from stoker.testing.world.cloud import NAME
from stoker.testing.world.scenario import START, MarketPlace, RunPlan, Scenario
from stoker.testing.world.world import World

START_S = 240.0  # from asking for a machine to its first step of work
BOOT_S = 237.0  # of which this is the machine's own; the rest is the server's look and the putting back
RELEASE_S = 30.0
NOTICE_S = 30.0
SAVE_EVERY_S, SAVE_S = 600.0, 5.0
EVER_S = 1e8  # behind its end a trace is open, so that whoever is much too late comes to an end

SPOT, FALLBACK, DEADLINE = "spot", "spot with fallback", "deadline"
SURE, GREEDY, ORACLE = "on-demand", "greedy", "oracle"


@dataclass(frozen=True, slots=True)
class Case:
    trace: Trace
    work_s: float
    deadline_s: float

    @property
    def steps(self) -> int:
        return int(self.deadline_s // STEP_S)


@dataclass(frozen=True, slots=True)
class Score:
    usd: float
    ended_s: float
    attempts: int = 1
    on_demand_s: float = 0.0

    def meets(self, case: Case) -> bool:
        return self.ended_s <= case.deadline_s


def by_engine(case: Case, policy: str) -> Score:
    """The engine decides, against the trace, and knows of it what it sees."""
    job = _job(policy, case.deadline_s if policy == DEADLINE else 0.0)
    plan = RunPlan(job, work_s=case.work_s, save_every_s=SAVE_EVERY_S, save_s=SAVE_S)
    spots = (replace(one, open=(*(one.open or ()), (case.trace.length_s, EVER_S))) for one in case.trace.places)
    places = (*spots, MarketPlace(SURE, case.trace.on_demand, spot=False))
    scenario = Scenario(
        0, (plan,), places=places, boot_s=(BOOT_S,), release_s=RELEASE_S, notice_s=NOTICE_S, lease_s=600.0
    )
    world = World(scenario).live()
    (run,) = world.server.saved.values()
    assert run.state is RunState.SUCCEEDED, run.reason
    ended = run.attempts[-1].ended_at
    assert ended is not None
    sure_s = sum(
        ((one.ended_at or ended) - one.asked_at).total_seconds()
        for one in run.attempts
        if one.offer and not one.offer.spot
    )
    return Score(world.cloud.bill(run.id), (ended - START).total_seconds(), len(run.attempts), sure_s)


def by_oracle(case: Case) -> Score:
    cost = least_cost(case.trace, case.work_s, case.deadline_s, START_S)
    return Score(cost, case.deadline_s if cost < float("inf") else float("inf"))


def greedily(case: Case) -> Score:
    """Spot whenever it is there, waiting when it is not, and on-demand to the end once it is high time. It sees at
    every moment what is there, and loses nothing at an eviction."""
    start, work = round(START_S / STEP_S), round(case.work_s / STEP_S)
    kinds = machines(case.trace, case.steps + 10 * start + work)
    on, ready_in, done, usd, at = -1, 0, 0, 0.0, 0
    while done < work and at < len(kinds[0].there):
        if on > 0 and not kinds[on].there[at]:
            on = -1
        high_time = case.steps - at <= work - done + 2 * start
        if on != 0 and high_time:
            on, ready_in = 0, start
        elif on < 0 and (there := [one for one in range(1, len(kinds)) if kinds[one].there[at]]):
            on, ready_in = min(there, key=lambda one: kinds[one].usd[at]), start
        if on >= 0:
            usd += kinds[on].usd[at]
            done, ready_in = done + (ready_in == 0), max(ready_in - 1, 0)
        at += 1
    return Score(usd, at * STEP_S)


def on_demand(case: Case) -> Score:
    seconds = case.work_s + START_S
    return Score(float(case.trace.on_demand) * seconds / 3600, seconds, 1, seconds)


@cache
def _job(policy: str, deadline_s: float) -> Job:
    spot = {SPOT: Spot(), FALLBACK: Spot(fallback=Fallback.ON_DEMAND)}.get(policy)
    return Job(name="bench", run="true", on=NAME, spot=spot, deadline=deadline_s or None)
