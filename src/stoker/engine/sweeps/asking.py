"""A search that draws its trials: how many more it gets now, and when it gets no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stoker.model.cause import Cause
from stoker.model.job.search import Trial
from stoker.model.run.run import RunState
from stoker.model.run.sweep import Sweep

_FAILED_FIRST = 5


@dataclass(frozen=True, slots=True)
class TriedTrial:
    """A trial as its last run left it."""

    name: str
    trial: Trial
    state: RunState
    cause: str = ""
    reason: str = ""

    @property
    def score(self) -> float | None:
        """None: it has not ended well, or what it reported is not a number."""
        return self.trial.scores[-1] if self.state is RunState.SUCCEEDED and self.trial.scores else None


def wanted(sweep: Sweep, tried: Sequence[TriedTrial]) -> int:
    """How many trials it gets now: few at a time, because each one that has ended improves the choice."""
    open_ = sum(not one.state.ended for one in tried)
    return max(min(sweep.due, (sweep.max_parallel or sweep.due) - open_), 0)


def hopeless(tried: Sequence[TriedTrial]) -> str:
    """Why more trials would be in vain; empty: they would not."""
    if blind := next((one for one in tried if one.cause == Cause.METRIC_MISSING), None):
        return f"{blind.name}: {blind.reason}"
    ended = [one for one in tried if one.state.ended]
    if len(ended) >= _FAILED_FIRST and all(one.state is RunState.FAILED for one in ended):
        return f"the first {len(ended)} trials have failed, {ended[-1].name} with: {ended[-1].reason}"
    return ""
