"""Which runs a rule removes: never one under way, never the newest, and not the best where that is to be kept."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import nan
from typing import Any

import pytest

from stoker.engine.pruning import prune
from stoker.model.job.job import Job
from stoker.model.run.report import MetricSummary
from stoker.model.run.run import PruneRule, Run, RunState, Start

NOW = datetime(2026, 6, 1, tzinfo=UTC)
DAY_S = 86400.0


def a_run(number: int, days: float, loss: float | None = None, name: str = "ants", **more: Any) -> Run:
    job = Job(name=name, run="true", **{key: more.pop(key) for key in ("retention", "stop_when") if key in more})
    metrics = {} if loss is None else {"loss": MetricSummary(loss, loss, 9.0, 5), "noise": MetricSummary(1, 0, 1, 5)}
    ended = NOW - timedelta(days=days)
    facts = {"state": RunState.SUCCEEDED, "ended_at": ended, "metrics": metrics, **more}
    return Run(f"{number:020x}", f"{name}-{number}", number, job, "0" * 64, "python", ended, **facts)


def gone(ended: list[Run], under_way: list[Run] | None = None, keep_best: bool = True, days: float = 30) -> list[str]:
    removed, _ = prune(ended, under_way or [], PruneRule(days * DAY_S, keep_best), NOW)
    return [run.name for run in removed]


BEST: dict[str, Any] = {"retention": {"best": "-loss"}}


def test_old_runs_go_and_the_newest_and_the_best_stay() -> None:
    runs = [a_run(number, 90 - number, loss, **BEST) for number, loss in enumerate([3.0, 1.0, 2.0, 5.0], 1)]
    assert gone(runs) == ["ants-1", "ants-3"]
    assert gone(runs, keep_best=False) == ["ants-1", "ants-2", "ants-3"]


def test_young_runs_stay() -> None:
    assert gone([a_run(1, 31), a_run(2, 29), a_run(3, 1)]) == ["ants-1"]


def test_each_experiment_keeps_its_own() -> None:
    runs = [a_run(1, 90, 1.0, **BEST), a_run(2, 80, 2.0, name="bees", **BEST), a_run(3, 70, 2.0, **BEST)]
    assert gone(runs, keep_best=False) == ["ants-1"]
    assert gone(runs) == []


def test_the_newest_run_may_be_one_that_is_under_way() -> None:
    running = replace(a_run(9, 0), state=RunState.RUNNING, ended_at=None)
    assert gone([a_run(1, 90), a_run(2, 80)], [running], keep_best=False) == ["ants-1", "ants-2"]


def test_where_more_is_better_the_most_is_the_best() -> None:
    target = {"stop_when": "loss >= 100"}
    runs = [a_run(number, 90 - number, 1.0, **target) for number in (1, 2, 3)]
    high = replace(runs[0], metrics={"loss": MetricSummary(0.1, 0.1, 50.0, 5)})
    assert gone([high, *runs[1:]]) == ["ants-2"]


def test_what_is_not_a_number_is_never_the_best() -> None:
    assert gone([a_run(1, 90, nan, **BEST), a_run(2, 80, 7.0, **BEST), a_run(3, 70, 9.0, **BEST)]) == ["ants-1"]


def test_without_a_metric_the_newest_that_succeeded_counts_as_the_best() -> None:
    failed = a_run(3, 70, state=RunState.FAILED)
    assert gone([a_run(1, 90), a_run(2, 80), failed]) == ["ants-1"]


def test_a_run_that_another_one_is_about_to_start_from_stays() -> None:
    waiting = replace(a_run(9, 0, name="bees"), state=RunState.QUEUED, start=Start(f"{1:020x}", "ants-1", "folder"))
    removed, spared = prune([a_run(1, 90), a_run(2, 80)], [waiting], PruneRule(DAY_S), NOW)
    assert removed == []
    assert [(one.name, one.why) for one in spared] == [
        ("ants-1", "bees-9 starts from its checkpoint"),
        ("ants-2", "the newest run of ants"),
    ]


@pytest.mark.parametrize("facts", [{"kept_until": NOW}, {"land_in": "/x", "output_files": 1}])
def test_a_run_that_is_still_looked_after_stays(facts: dict[str, Any]) -> None:
    assert gone([a_run(1, 90, **facts), a_run(2, 80)], keep_best=False) == []


def test_a_rule_may_be_for_one_experiment() -> None:
    runs = [a_run(1, 90), a_run(2, 89, name="bees"), a_run(3, 88), a_run(4, 87, name="bees")]
    removed, _ = prune(runs, [], PruneRule(DAY_S, experiment="bees"), NOW)
    assert [run.name for run in removed] == ["bees-2"]
