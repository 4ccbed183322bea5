"""Which runs a rule deletes, and why others stay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from stoker.model.run.run import PruneRule, Run, RunState, Spared

_LESS = ("<", "<=")


def prune(
    ended: Sequence[Run], under_way: Iterable[Run], rule: PruneRule, now: datetime
) -> tuple[list[Run], list[Spared]]:
    """`ended` and `under_way` are all runs, oldest first. An active run is never deleted."""
    going = list(under_way)
    newest = {run.experiment: run.id for run in sorted([*ended, *going], key=lambda run: run.id)}
    sources = {run.start.run_id: run.name for run in going if run.start}
    best = _best(ended) if rule.keep_best else {}
    gone: list[Run] = []
    spared: list[Spared] = []
    for run in ended:
        if not _matches(run, rule, now):
            continue
        if newest[run.experiment] == run.id:
            spared.append(Spared(run.name, f"the newest run of {run.experiment}"))
        elif run.id in best:
            spared.append(Spared(run.name, f"the best run of {run.experiment}: {best[run.id]}"))
        elif run.id in sources:
            spared.append(Spared(run.name, f"{sources[run.id]} starts from its checkpoint"))
        elif run.tended:
            spared.append(Spared(run.name, "its node or its outputs are still in use"))
        else:
            gone.append(run)
    return gone, spared


def _matches(run: Run, rule: PruneRule, now: datetime) -> bool:
    ended_at = run.ended_at or run.submitted_at
    old = ended_at <= now - timedelta(seconds=rule.older_than_s)
    return run.state.ended and old and rule.experiment in ("", run.experiment)


def _best(ended: Sequence[Run]) -> dict[str, str]:
    """The id of the best run of each experiment to its value. The metric is that of the experiment's newest job; if
    that names none, the newest run that succeeded is the best."""
    found: dict[str, str] = {}
    for experiment in {run.experiment for run in ended}:
        runs = [run for run in ended if run.experiment == experiment]
        goal = next((goal for run in reversed(runs) if (goal := goal_of(run))), None)
        measured = [run for run in runs if goal and goal[0] in run.metrics]
        if goal and measured:
            top = max(measured, key=lambda run: (_score(run, goal), run.id))
            found[top.id] = f"{goal[0]} {_reached(top, goal):g}"
        elif succeeded := [run for run in runs if run.state is RunState.SUCCEEDED]:
            found[succeeded[-1].id] = "the newest that succeeded, because its job names no metric that was reported"
    return found


def goal_of(run: Run) -> tuple[str, bool] | None:
    """The metric that the job optimizes, and whether lower is better: `retention.best`, else `stop_when`."""
    if best := run.job.retention.best:
        return best.removeprefix("-"), best.startswith("-")
    target = run.job.stop_when
    return (target.metric, target.test in _LESS) if target else None


def _reached(run: Run, goal: tuple[str, bool]) -> float:
    summary = run.metrics[goal[0]]
    return summary.least if goal[1] else summary.most


def _score(run: Run, goal: tuple[str, bool]) -> float:
    reached = _reached(run, goal)
    if reached != reached:  # not a number: worse than any
        return float("-inf")
    return -reached if goal[1] else reached
