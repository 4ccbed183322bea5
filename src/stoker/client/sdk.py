"""The shortest way from Python: `stoker.run(job)`."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from stoker.client.client import Client
from stoker.client.handle import Run
from stoker.model.costs import Costs
from stoker.model.job import Job


def run(job: Job, *, folder: Path | str = ".", name: str = "", twin: bool = False) -> Run:
    """Submits a job and returns the run immediately. Relative paths of the job are relative to `folder`. With `twin` it
    runs on the twin of its cloud, for free."""
    return Client.connect().submit(job, folder, name=name, twin=twin)


def cost(by: str = "experiment", since: datetime | timedelta | None = None, experiment: str = "") -> Costs:
    """What runs have cost, summed by `experiment`, `person`, `day`, `cluster` or `run`. `since` may be a duration."""
    return Client.connect().costs(by, since, experiment)
