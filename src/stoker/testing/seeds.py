"""A home with thousands of ended runs, to measure how Stoker behaves after years of use."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from stoker.model.job.job import Job
from stoker.model.run.report import MetricSummary, Outcome
from stoker.model.run.run import Attempt, AttemptState, Run, RunState
from stoker.model.workspace.home import Home
from stoker.server.records.database import Database


def fill(home: Path, runs: int) -> None:
    """Adds ended runs of a few experiments to the home's database. No server may be running on it."""
    home.mkdir(parents=True, exist_ok=True)
    database = Database.open(Home(home).database)
    start = datetime(2025, 1, 1, tzinfo=UTC)
    database.restore(_past_run(index, start + timedelta(minutes=index)) for index in range(runs))
    database.close()


def _past_run(index: int, at: datetime) -> Run:
    job = Job(name=f"experiment-{index % 25}", run=f"python train.py --seed {index}")
    number = index // 25 + 1
    failed = index % 7 == 0
    id = f"{int(at.timestamp() * 1000):012x}{index:08x}"
    attempt = Attempt(
        number=1,
        key=f"{id}-1",
        state=AttemptState.ENDED,
        asked_at=at,
        started_at=at,
        ended_at=at + timedelta(seconds=50),
        outcome=Outcome.FAILED if failed else Outcome.SUCCEEDED,
        exit_code=int(failed),
    )
    return Run(
        id=id,
        name=f"{job.name}-{number}",
        number=number,
        job=job,
        snapshot="0" * 64,
        python="python3",
        submitted_at=at,
        packages={f"package-{n}": "1.0" for n in range(100)},
        state=RunState.FAILED if failed else RunState.SUCCEEDED,
        attempts=(attempt,),
        started_at=at,
        ended_at=at + timedelta(seconds=50),
        exit_code=int(failed),
        metrics={"loss": MetricSummary(last=0.1, least=0.1, most=2.0, count=100, step=100.0)},
    )
