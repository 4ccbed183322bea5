"""What differs between two runs: code, command, job, software, data and results."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.model.run import Run
from stoker.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not the same. None: that run has none."""

    name: str
    first: str | None
    second: str | None


@dataclass(frozen=True, slots=True)
class MetricPair:
    """One metric of both runs. `best` is the least where lower is better, as with a loss, else the most."""

    name: str
    first_last: float | None
    second_last: float | None
    first_best: float | None
    second_best: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """Every tuple but `metrics` is empty where the runs agree; `metrics` has all of both."""

    first: str
    second: str
    code: tuple[Change, ...] = ()  # by path; the values are hashes, None where there is no such file
    arguments: tuple[Change, ...] = ()  # by flag of the command; the whole command where it is another program
    job: tuple[Change, ...] = ()  # by field of the job file, `run` left to `arguments`
    packages: tuple[Change, ...] = ()
    python: tuple[Change, ...] = ()
    data: tuple[Change, ...] = ()
    metrics: tuple[MetricPair, ...] = ()

    @property
    def same(self) -> bool:
        """Nothing that goes into the runs differs; what came out still may."""
        return not (self.code or self.arguments or self.job or self.packages or self.python or self.data)


def compare(first: Run, second: Run, first_code: Snapshot, second_code: Snapshot) -> Difference:
    raise NotImplementedError
