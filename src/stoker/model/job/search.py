"""How a sweep searches: which trials are stopped early, or which values its next trials get; and what a run is of its
sweep."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from stoker.errors import JobInvalid, Problem
from stoker.model.job import fields
from stoker.model.job.fields import Maybe, a
from stoker.model.job.matrix import MOST_TRIALS, Matrix, size_problems
from stoker.model.job.values import Choice, Text, Whole

METRIC = r"-?[^\W\d][\w.@/:-]*"


AT_ONCE = 4  # trials of a search that draws, if `max_parallel` does not say


class SearchKind(StrEnum):
    HALVING = "halving"
    OPTUNA = "optuna"


class SamplerKind(StrEnum):
    TPE = "tpe"
    GP = "gp"
    RANDOM = "random"


class ProgressUnit(StrEnum):
    EPOCH = "epoch"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class Rung:
    """Where a trial pauses: at the first point that has the metric, and at least this progress."""

    metric: str
    unit: ProgressUnit
    at: int

    def measured(self, values: Mapping[str, float | None], step: float | None) -> float | None:
        """The progress at a point; None: the point says nothing about it."""
        if self.metric not in values:
            return None
        return values.get("epoch", step) if self.unit is ProgressUnit.EPOCH else step

    def reached_by(self, value: float) -> bool:
        return value >= self.at

    def words(self, value: float) -> str:
        return f"paused at {self.unit} {value:g}"


@dataclass(frozen=True, kw_only=True)
class Search:
    """Which trials of a sweep are continued, or which ones it gets."""

    by: SearchKind = a(
        Choice(SearchKind),
        "`halving`: trials pause at rungs, the best resume there, and the others are stopped; `optuna`: the results of "
        "earlier trials say what values the next ones get",
    )
    metric: str = a(
        Text("a metric's name, with `-` in front where less is better", METRIC),
        "what trials are compared by: `val_acc`, or `-loss` if lower is better",
    )
    most: int | None = a(Maybe(Whole(2)), "halving: the progress at which a trial is complete", default=None)
    least: int = a(Whole(1), "halving: the progress at which trials are compared first", default=1)
    eta: int = a(
        Whole(2), "halving: one trial in so many resumes, and pauses next at so many times the progress", default=3
    )
    unit: ProgressUnit = a(
        Choice(ProgressUnit),
        "halving: what progress is: the number that the script reports together with the metric",
        default=ProgressUnit.EPOCH,
    )
    sampler: SamplerKind = a(
        Choice(SamplerKind),
        "optuna: `tpe`, `gp` (Gaussian processes; needs scipy and torch on the server), or `random`",
        default=SamplerKind.TPE,
    )

    def __post_init__(self) -> None:
        fields.check(self)
        others = ("most", "least", "eta", "unit") if self.draws else ("sampler",)
        given = {name: value for name in others if (value := getattr(self, name)) != _DEFAULTS[name]}
        found = [
            Problem(name, f"`{value}`", f"nothing: `{self.by}` has no such field") for name, value in given.items()
        ]
        if not self.draws and self.most is None:
            found.append(Problem("most", "nothing", "the progress at which a trial is complete, such as 27"))
        if self.most is not None and self.most <= self.least:
            found.append(Problem("most", f"`{self.most}`", f"more than `least`, which is {self.least}"))
        if found:
            raise JobInvalid(found)

    @property
    def draws(self) -> bool:
        """It chooses the values of the next trials, and stops none."""
        return self.by is SearchKind.OPTUNA

    @property
    def name(self) -> str:
        """Of the metric."""
        return self.metric.removeprefix("-")

    @property
    def lower_is_better(self) -> bool:
        return self.metric.startswith("-")

    @property
    def rungs(self) -> tuple[int, ...]:
        """The progress at which trials pause; at the last one they are complete. Empty: they never do."""
        if self.most is None:
            return ()
        found, at = list[int](), self.least
        while at < self.most:
            found.append(at)
            at *= self.eta
        return (*found, self.most)

    def rung(self, number: int) -> Rung:
        return Rung(self.name, self.unit, self.rungs[min(number, len(self.rungs) - 1)])

    def kept(self, trials: int, number: int) -> int:
        """How many of so many trials resume from this rung: one in `eta`, and at least one."""
        return max(trials // int(self.eta ** (number + 1)), 1)


def unfit(matrix: Matrix, search: Search | None) -> Iterator[Problem]:
    """What is wrong with a matrix, with or without a search."""
    if search is None or not search.draws:
        yield from size_problems(matrix, "matrix")
        return
    for name in ("zip", "exclude"):
        if getattr(matrix, name):
            yield Problem(f"matrix.{name}", f"`{name}`", "no rules about combinations: the search draws each parameter")
    if matrix.draws > MOST_TRIALS:
        yield Problem("matrix.draws", f"{matrix.draws:,} trials", f"at most {MOST_TRIALS:,}")


def trials_of(matrix: Matrix, search: Search | None) -> int:
    """How many trials there will be at most. Nothing is expanded for it."""
    return matrix.draws if search and search.draws else matrix.size


_DEFAULTS = {one.name: one.default for one in dataclasses.fields(Search)}


@dataclass(frozen=True, slots=True)
class Trial:
    sweep: str  # the sweep's id
    number: int  # in the sweep, from 1; a retry has the number of the failed one
    values: Mapping[str, str] = field(default_factory=dict)
    rung: int = 0  # of a search: the one that it heads for, or is paused at
    scores: tuple[float | None, ...] = ()  # its metric at each rung that it has reached; None: not a number

    @property
    def paused(self) -> bool:
        """At its rung, until the search decides."""
        return len(self.scores) > self.rung
