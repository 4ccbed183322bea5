"""How a sweep searches: trials that do worse than others are stopped early, and the rest resume."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from stoker.errors import JobInvalid, Problem
from stoker.model.job import fields
from stoker.model.job.fields import a
from stoker.model.job.values import Choice, Text, Whole

METRIC = r"-?[^\W\d][\w.@/:-]*"


class SearchKind(StrEnum):
    HALVING = "halving"


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
    """Which trials of a sweep are continued."""

    by: SearchKind = a(
        Choice(SearchKind), "`halving`: trials pause at rungs, the best resume there, and the others are stopped"
    )
    metric: str = a(
        Text("a metric's name, with `-` in front where less is better", METRIC),
        "what trials are compared by: `val_acc`, or `-loss` if lower is better",
    )
    most: int = a(Whole(2), "the progress at which a trial is complete")
    least: int = a(Whole(1), "the progress at which trials are compared first", default=1)
    eta: int = a(Whole(2), "one trial in so many resumes, and pauses next at so many times the progress", default=3)
    unit: ProgressUnit = a(
        Choice(ProgressUnit),
        "what progress is: the number that the script reports together with the metric",
        default=ProgressUnit.EPOCH,
    )

    def __post_init__(self) -> None:
        fields.check(self)
        if self.most <= self.least:
            raise JobInvalid([Problem("most", f"`{self.most}`", f"more than `least`, which is {self.least}")])

    @property
    def name(self) -> str:
        """Of the metric."""
        return self.metric.removeprefix("-")

    @property
    def lower_is_better(self) -> bool:
        return self.metric.startswith("-")

    @property
    def rungs(self) -> tuple[int, ...]:
        """The progress at which trials pause; at the last one they are complete."""
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
