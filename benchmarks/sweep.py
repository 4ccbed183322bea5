"""A sweep of short trials against a shell loop of two at a time, ten thousand submitted at once, and their results."""

from __future__ import annotations

import itertools
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.commands import clean_environment, workplace
from benchmarks.measure import Goal, Plan, Result
from benchmarks.subject import Stoker, installed
from stoker.model.job.job import Job
from stoker.model.run.run import RunState

SLOTS = 2
LONGEST_S = 1800.0
LOOP, STOKER = "shell loop, 2 at a time", "stoker"
SCRIPT = "import sys, time\ntime.sleep(2)\nprint(f'accuracy: 0.{sys.argv[1]}')\n"


@dataclass(frozen=True, slots=True)
class Batch:
    """All trials, from the submission to the last end."""

    wall_s: float
    succeeded: int


def run(plan: Plan) -> Result:
    result = Result("sweep", versions={"stoker": installed()})
    trials, many = plan.size(200, 20), plan.size(10_000, 1_000)
    homes = itertools.count()
    with workplace() as place:
        folder = place / "project"
        folder.mkdir()
        (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
        batches = plan.interleave(
            {
                LOOP: lambda: _loop(folder, trials),
                STOKER: lambda: _sweep(place / f"stoker-{next(homes)}", folder, trials),
            },
            warm_up=0,
        )
        large = [_large(place / f"stoker-{next(homes)}", folder, many) for _ in range(3)]
    for name, each in batches.items():
        result.add(f"{name}, {trials} trials of 2 s", "s", [one.wall_s for one in each])
    pairs = zip(batches[STOKER], batches[LOOP], strict=True)
    longer = [(ours.wall_s / loop.wall_s - 1) * 100 for ours, loop in pairs]
    result.add(f"{STOKER}: longer than the loop", "%", longer, Goal(at_most=10))
    lost = [trials - one.succeeded for one in batches[STOKER]]
    result.add(f"{STOKER}: lost", "trials", lost, Goal(at_most=0))
    result.add(f"{STOKER}: {many:,} trials submitted", "s", [one[0] for one in large], Goal(at_most=10))
    result.add(f"{STOKER}: results over them, the first time", "s", [one[1] for one in large])
    result.add(f"{STOKER}: results over them, again", "s", [one[2] for one in large], Goal(at_most=1))
    return result


def _loop(folder: Path, trials: int) -> Batch:
    python, environment = str(Stoker(folder.parent / "unused").python), clean_environment({})

    def one(seed: int) -> bool:
        argv = [python, "train.py", str(seed)]
        return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, check=False).returncode == 0

    begun = time.perf_counter()
    with ThreadPoolExecutor(SLOTS) as pool:
        succeeded = sum(pool.map(one, range(trials)))
    return Batch(time.perf_counter() - begun, succeeded)


def _sweep(home: Path, folder: Path, trials: int) -> Batch:
    with Stoker(home, {"STOKER_SLOTS": str(SLOTS)}) as stoker:
        client = stoker.client()
        begun = time.perf_counter()
        sweep = client.sweep(_job(trials), folder).wait(LONGEST_S)
        return Batch(time.perf_counter() - begun, sweep.state.states.get(RunState.SUCCEEDED, 0))


def _large(home: Path, folder: Path, trials: int) -> tuple[float, float, float]:
    """Submitted, and cancelled, and shown twice: what has ended is remembered."""
    with Stoker(home, {"STOKER_SLOTS": "1"}) as stoker:
        client = stoker.client()
        begun = time.perf_counter()
        sweep = client.sweep(_job(trials), folder)
        submitted_s = time.perf_counter() - begun
        sweep.cancel()
        sweep.wait(LONGEST_S)
        shown = []
        for _ in range(2):
            begun = time.perf_counter()
            assert len(client.results(sweep.name).groups) == trials
            shown.append(time.perf_counter() - begun)
        return submitted_s, shown[0], shown[1]


def _job(trials: int) -> Job:
    matrix = {"seed": f"1..{trials}"}
    return Job(name="swept", run="python train.py ${matrix.seed}", matrix=matrix)  # type: ignore[arg-type]  # is read
