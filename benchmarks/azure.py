"""On the twin, at the speed of real time: how soon a machine works, and how soon the next one is asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from benchmarks.commands import CommandFailed, clean_environment, workplace
from benchmarks.gangscripts import TRAIN
from benchmarks.measure import Goal, Plan, Result
from stoker.client.api.client import Client
from stoker.client.api.handle import RunHandle
from stoker.client.local import launch, twin
from stoker.client.settings import ClientSettings, from_environment
from stoker.model.job.job import Environment, Job, Packages, Spot

Found = TypeVar("Found")

VMS = "/providers/microsoft.compute/virtualmachines/"
LIMIT_S = 120.0
_BETWEEN_S = 0.02


def run(plan: Plan) -> Result:
    """Not from an installation of its own: the Azure SDKs would be installed for this alone."""
    result = Result("azure", versions={"stoker": commit()})
    with workplace() as place, twin_cloud(place) as cloud:
        samples = plan.interleave(
            {
                "create": cloud.create_to_script,
                "notice": lambda: cloud.evicted(30.0),
                "none": lambda: cloud.evicted(0.0),
            }
        )
    result.add("VM created to its agent at work, the script's start included", "s", samples["create"], Goal(at_most=3))
    result.add("notice to the next machine asked for", "s", samples["notice"], Goal(at_most=2))
    result.add("lost without notice to the next machine asked for", "s", samples["none"], Goal(at_most=15))
    return result


class Cloud:
    def __init__(self, client: Client, folder: Path) -> None:
        self._client = client
        self._folder = folder
        (folder / "train.py").write_text("import time\ntime.sleep(600)\n", encoding="utf-8")

    def create_to_script(self) -> float:
        with self._running() as run:
            return (_started(run) - self._made(run)[0]).total_seconds()

    def evicted(self, notice_s: float) -> float:
        with self._running() as run:
            _started(run)
            begun = time.time()
            twin.evict(self._client.settings, run.facts, notice_s)
            made = until(lambda: [one for one in self._made(run) if one.timestamp() > begun])
            return made[0].timestamp() - begun

    def gang_lost(self, notice_s: float) -> Mapping[str, float]:
        """One of four nodes that train together is evicted: seconds until the next one is requested, and from when all
        nodes were ready again to the next step; and steps that were done twice."""
        (self._folder / "ddp.py").write_text(TRAIN, encoding="utf-8")
        here = Environment(python=sys.executable, packages=Packages.NONE)
        job = Job(name="gang", run=f"{sys.executable} ddp.py 4000 0.2", on="azure-twin", nodes=4, environment=here)
        with self._running(replace(job, spot=Spot(), env={"OMP_NUM_THREADS": "1"})) as run:
            until(lambda: len(run.metrics()) >= 8)
            told, begun = twin.find(self._client.settings), time.time()
            assert told  # a run is on it
            twin.evict_node(told, run.refresh().facts.attempts[-1].members[-1].key, notice_s)
            made = until(lambda: [one for one in self._made(run) if one.timestamp() > begun])
            again = until(lambda: [one for one in run.metrics() if one.attempt > 1])[0]
            last = max(one.step or 0 for one in run.metrics() if one.attempt == 1)
            ready = max(one.at for one in run.events() if one.kind == "gang-ready" and one.at <= again.at)
        return {
            "asked": made[0].timestamp() - begun,
            "step": (again.at - ready).total_seconds(),
            "redone": max(last - (again.step or 0) + 1, 0),
        }

    @contextmanager
    def _running(self, job: Job | None = None) -> Iterator[RunHandle]:
        job = job or Job(name="bench", run="python3 train.py", on="azure-twin", spot=Spot())
        run = self._client.submit(job, self._folder)
        try:
            yield run
        finally:
            run.cancel()
            run.wait(LIMIT_S)
            until(lambda: not self._made(run))

    def _made(self, run: RunHandle) -> list[datetime]:
        """When each machine of the run that is there was made, the first first."""
        cloud = json.loads((self._client.settings.home.twin / "cloud.json").read_bytes())
        vms = [one for id, one in cloud["resources"].items() if VMS in id and f"-{run.facts.id}-" in id]
        told = [one["body"]["properties"].get("timeCreated") for one in vms]  # none yet in the answer to its request
        return sorted(datetime.fromisoformat(one) for one in told if one)


@contextmanager
def twin_cloud(place: Path) -> Iterator[Cloud]:
    mine = settings(place)
    folder = place / "project"
    folder.mkdir()
    try:
        yield Cloud(Client.connect(mine), folder)
    finally:
        launch.stop(mine)
        twin.down(mine)


def settings(place: Path) -> ClientSettings:
    home = place / "stoker"
    home.mkdir()
    mine = {"HOME": str(place), "STOKER_HOME": str(home), "PATH": os.environ["PATH"]}
    return from_environment({**clean_environment(mine), "VIRTUAL_ENV": str(Path(sys.executable).parents[1])})


def commit() -> str:
    said = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    return f"this work tree at {said.stdout.strip() or 'no commit'}"


def _started(run: RunHandle) -> datetime:
    started = until(lambda: run.refresh().facts.started_at)
    assert started  # what was waited for
    return started


def until(done: Callable[[], Found]) -> Found:
    deadline = time.monotonic() + LIMIT_S
    while not (found := done()):
        if time.monotonic() > deadline:
            raise CommandFailed(f"the run did not get there within {LIMIT_S:.0f} s")
        time.sleep(_BETWEEN_S)
    return found
