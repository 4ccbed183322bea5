"""Many short runs queued at once on two slots: none lost, little memory, little time between them."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import peers
from benchmarks.commands import Command, clean_environment, on_pipe, workplace
from benchmarks.measure import Goal, Plan, Result, over
from benchmarks.subject import Stoker, Usage, installed
from stoker.model.job.job import Job
from stoker.model.run.run import RunState

SLOTS = 2
LONGEST_S = 900.0
BARE, STOKER, RAY = "bare python, 2 at a time", "stoker", "ray"

# Ray's own client library, since its command takes a second to start. One CPU per job makes two slots of two CPUs.
RAY_CALL = """\
import sys
import time

from ray.job_submission import JobStatus, JobSubmissionClient

client = JobSubmissionClient()
here = {"working_dir": "."}
jobs = [
    client.submit_job(entrypoint="python script.py", entrypoint_num_cpus=1, runtime_env=here)
    for _ in range(int(sys.argv[1]))
]
deadline = time.monotonic() + 300
while any(not client.get_job_status(job).is_terminal() for job in jobs):
    if time.monotonic() > deadline:
        sys.exit("the jobs do not end")
    time.sleep(0.05)
sys.exit(0 if all(client.get_job_status(job) == JobStatus.SUCCEEDED for job in jobs) else "a job failed")
"""


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of runs, from the first submission to the last end."""

    runs: int
    wall_s: float
    succeeded: int
    submit_s: float = 0.0
    usage: Usage = Usage()

    @property
    def each_ms(self) -> float:
        """For how long one run holds its slot, waiting included."""
        return self.wall_s * SLOTS / self.runs * 1000


def run(plan: Plan) -> Result:
    result = Result("queue", versions={"stoker": installed()})
    runs = plan.size(1_000, 100)
    with workplace() as place, ExitStack() as services:
        folder = place / "project"
        folder.mkdir()
        (folder / peers.SCRIPT).write_text('print("hello")\n', encoding="utf-8")
        contestants = _own(place, folder, runs)
        if not plan.alone:
            result.versions[RAY] = peers.install(peers.RAY)
            contestants |= _ray(place, services, folder, plan.size(8, 4))
        batches = plan.interleave(contestants, warm_up=0)
    for name, each in batches.items():
        result.add(f"{name}, {each[0].runs:,} runs: time per run", "ms", [batch.each_ms for batch in each])
    ours, bare = batches[STOKER], batches[BARE]
    what = f"{STOKER}, {runs:,} runs"
    overhead = over([batch.each_ms for batch in ours], [batch.each_ms for batch in bare])
    result.add(f"{what}: overhead per run", "ms", overhead, Goal(at_most=100))
    result.add(f"{what}: lost", "runs", [batch.runs - batch.succeeded for batch in ours], Goal(at_most=0))
    result.add(f"{what}: server's peak memory", "MB", [batch.usage.peak_memory_mb for batch in ours], Goal(at_most=300))
    # Processor time hardly depends on what else the machine does.
    result.add(f"{what}: server's processor time per run", "ms", [b.usage.processor_s / b.runs * 1000 for b in ours])
    result.add(f"{what}: submitting one", "ms", [batch.submit_s / batch.runs * 1000 for batch in ours])
    return result


def _own(place: Path, folder: Path, runs: int) -> dict[str, Callable[[], Batch]]:
    homes = itertools.count()
    return {
        BARE: lambda: _bare(folder, runs),
        STOKER: lambda: _stoker(place / f"stoker-{next(homes)}", folder, runs),
    }


def _bare(folder: Path, runs: int) -> Batch:
    argv = [str(Stoker(folder.parent / "unused").python), peers.SCRIPT]
    environment = clean_environment({})

    def one(_: int) -> bool:
        done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, timeout=60, check=False)
        return done.returncode == 0

    begun = time.perf_counter()
    with ThreadPoolExecutor(SLOTS) as pool:
        succeeded = sum(pool.map(one, range(runs)))
    return Batch(runs, time.perf_counter() - begun, succeeded)


def _stoker(home: Path, folder: Path, runs: int) -> Batch:
    job = Job(name="short", run=f"python {peers.SCRIPT}")
    with Stoker(home, {"STOKER_SLOTS": str(SLOTS)}) as stoker:
        client = stoker.client()
        begun = time.perf_counter()
        submitted = [client.submit(job, folder) for _ in range(runs)]
        submit_s = time.perf_counter() - begun
        for each in submitted:
            each.wait(timeout_s=max(1.0, begun + LONGEST_S - time.perf_counter()))
        wall_s = time.perf_counter() - begun
        succeeded = sum(each.state is RunState.SUCCEEDED for each in submitted)
        return Batch(runs, wall_s, succeeded, submit_s, stoker.usage())


def _ray(place: Path, services: ExitStack, folder: Path, runs: int) -> dict[str, Callable[[], Batch]]:
    environment = {**peers.RAY.surroundings(place / "home"), **services.enter_context(peers.ray_head(place))}
    (place / "submit.py").write_text(RAY_CALL, encoding="utf-8")
    command = Command(RAY, (str(peers.RAY.bin / "python"), str(place / "submit.py"), str(runs)), folder, environment)
    return {RAY: lambda: Batch(runs, on_pipe(command).total_s, runs)}
