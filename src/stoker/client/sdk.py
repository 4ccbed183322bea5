"""The shortest way from Python: `stoker.run(job)`."""

from __future__ import annotations

from pathlib import Path

from stoker.client.client import Client
from stoker.client.handle import Run
from stoker.model.job import Job


def run(job: Job, *, folder: Path | str = ".", name: str = "", twin: bool = False) -> Run:
    """Submits a job whose relative paths start from `folder`, and returns at once with the run's handle. With `twin` it
    runs on the twin of its cloud: the same, for nothing."""
    return Client.connect().submit(job, folder, name=name, twin=twin)
