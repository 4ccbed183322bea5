"""A sweep: many runs of one job with different values, submitted together. Its results, as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from stoker.model.job.job import Job
from stoker.model.run.report import MetricSummary
from stoker.model.run.run import RunState, Submission


@dataclass(frozen=True, slots=True)
class Sweep:
    id: str  # sorts by time
    name: str  # `<job name>-s<n>`, or as its submission named it
    number: int  # of the experiment's sweeps
    submission: Submission  # of all its trials; its job has the matrix. Without secrets
    store: str
    submitted_at: datetime
    trials: int = 0  # how many numbers were given so far
    max_parallel: int | None = None
    budget: Decimal | None = None  # of all trials together
    cancelled: bool = False
    stopped: str = ""  # why a search that draws its trials gets no more

    @property
    def job(self) -> Job:
        return self.submission.job

    @property
    def experiment(self) -> str:
        return self.job.name

    @property
    def due(self) -> int:
        """How many trials it is still to get, because the earlier ones say which."""
        job = self.job
        draws = job.matrix is not None and job.search is not None and job.search.draws
        if not draws or not job.matrix or self.cancelled or self.stopped:
            return 0
        return max(job.matrix.draws - self.trials, 0)


@dataclass(frozen=True, slots=True)
class RungState:
    """A rung of a search, and how many trials are how far."""

    at: int  # the progress
    heading: int = 0  # that have not reached it; also those that have failed or were cancelled on the way
    reached: int = 0
    resumed: int = 0  # of those that reached it
    failed: int = 0
    best: str = ""  # the name of the best run there; empty: none has reached it
    score: float | None = None  # of that


@dataclass(frozen=True, slots=True)
class SweepState:
    """A sweep and how far it is. A trial that was retried counts once, with its newest run."""

    sweep: Sweep
    states: Mapping[RunState, int] = field(default_factory=dict)
    first: str = ""  # the names of its first and last run
    last: str = ""
    usd: Decimal = Decimal(0)
    runs: int = 0  # also those that were retried
    rungs: tuple[RungState, ...] = ()  # of a search; empty: it is none
    paused: int = 0  # trials that wait at a rung
    trouble: str = ""  # why the next trials could not be drawn; it is tried again

    @property
    def open(self) -> int:
        """How many trials have not ended."""
        return sum(count for state, count in self.states.items() if not RunState(state).ended)


@dataclass(frozen=True, slots=True)
class ResultRow:
    """A run in a table of results."""

    name: str
    number: int
    state: RunState
    values: Mapping[str, str] = field(default_factory=dict)  # of the trial; of another run, the flags of its command
    metrics: Mapping[str, MetricSummary] = field(default_factory=dict)
    usd: Decimal = Decimal(0)
    seconds: float = 0.0  # that its script ran
    nodes: int = 1
    sweep: str = ""  # the name; empty: it is in none
    trial: int = 0  # the number there
    cause: str = ""
    submitted_at: datetime | None = None
