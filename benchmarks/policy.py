"""What a deadline costs: the engine's policies on spot markets, beside on-demand, a greedy policy and an oracle."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from benchmarks import policies, policyplot, spottrace
from benchmarks.measure import Goal, Plan, Result
from benchmarks.peers import PEERS
from benchmarks.policies import DEADLINE, FALLBACK, GREEDY, ORACLE, SPOT, SURE, Case, Score
from benchmarks.spottrace import STEP_S

RECORDED = PEERS / "traces"  # CSV files that somebody has put there
PLOT = Path(__file__).parent / "results" / "policy.svg"
SLACK = 0.9  # of the deadline: what the oracle meets with this, the policy has to meet
LONGER = 3.0  # a trace goes on beyond the deadline for so many times its length, for those who are late

Scores = dict[str, Score]


def run(plan: Plan) -> Result:
    result = Result("policy")
    groups = {"generated": [*_generated(plan.size(120, 30))]}
    if recorded := [*_recorded(plan.size(30, 20))]:
        groups["recorded"] = recorded
    else:
        result.notes.append(f"no recorded traces in {RECORDED}: see `python -m benchmarks.spottrace --help`")
    for name, cases in groups.items():
        scores = [score(case) for case in cases]
        _judge(result, name, cases, scores, judged=name == "generated")
        if not plan.alone and not plan.quick:
            policyplot.draw(PLOT if name == "generated" else PLOT.with_stem(f"policy-{name}"), name, cases, scores)
    return result


def score(case: Case) -> Scores:
    scores = {name: policies.by_engine(case, name) for name in (DEADLINE, FALLBACK, SPOT)}
    return {
        ORACLE: policies.by_oracle(case),
        **scores,
        GREEDY: policies.greedily(case),
        SURE: policies.on_demand(case),
    }


def _judge(result: Result, group: str, cases: list[Case], scores: list[Scores], *, judged: bool) -> None:
    mean = {name: fmean(one[name].usd for one in scores) for name in scores[0]}
    for name in (DEADLINE, FALLBACK, SPOT, GREEDY, SURE):
        above = 100 * (mean[name] / mean[ORACLE] - 1)
        met = 100 * fmean(one[name].meets(case) for one, case in zip(scores, cases, strict=True))
        goal = Goal(at_most=15) if name == DEADLINE and judged else None
        result.add(f"{group}, {name}: mean cost above the oracle's", "%", [above], goal)
        result.add(f"{group}, {name}: deadlines met", "%", [met])
    feasible = [(case, one) for case, one in zip(cases, scores, strict=True) if _oracle_has_time(case)]
    missed = sum(not one[DEADLINE].meets(case) for case, one in feasible)
    result.add(f"{group}, {DEADLINE}: missed of {len(feasible)}", "runs", [missed], Goal(at_most=0) if judged else None)
    for other in (GREEDY, SURE):
        share = 100 * mean[DEADLINE] / mean[other]
        result.add(f"{group}, {DEADLINE}: cost beside {other}", "%", [share], Goal(at_most=99.999) if judged else None)
    each = [100 * (one[DEADLINE].usd / one[ORACLE].usd - 1) for one in scores]
    result.add(f"{group}, {DEADLINE}: cost above the oracle's, run by run", "%", each)


def _oracle_has_time(case: Case) -> bool:
    tight = Case(case.trace, case.work_s, SLACK * case.deadline_s)
    return policies.by_oracle(tight).usd < float("inf")


def _generated(count: int) -> Iterator[Case]:
    """Trainings of 4 to 24 hours with 12 to 100 % more time than they need."""
    for seed in range(count):
        dice = random.Random(f"case {seed}")
        work_s = round(dice.uniform(4, 24) * 3600 / STEP_S) * STEP_S
        deadline_s = _grid(work_s * dice.choice((1.12, 1.2, 1.3, 1.5, 1.75, 2.0)) + policies.START_S)
        yield Case(spottrace.drawn(seed, LONGER * deadline_s), work_s, deadline_s)


def _recorded(count: int) -> Iterator[Case]:
    """Pieces of recorded traces, from moments drawn at random."""
    traces = [spottrace.read(path) for path in sorted(RECORDED.glob("*.csv"))]
    for seed in range(count if traces else 0):
        dice = random.Random(f"piece {seed}")
        trace = traces[seed % len(traces)]
        work_s = round(dice.uniform(4, 24) * 3600 / STEP_S) * STEP_S
        deadline_s = _grid(work_s * dice.choice((1.12, 1.2, 1.3, 1.5, 1.75, 2.0)) + policies.START_S)
        length_s = min(LONGER * deadline_s, trace.length_s)
        piece = trace.window(dice.uniform(0, trace.length_s - length_s), length_s, f"{trace.name} {seed}")
        yield Case(piece, work_s, deadline_s)


def _grid(seconds: float) -> float:
    return round(seconds / STEP_S) * STEP_S
