"""Optuna asked for the values of trials: they come near the best, are always the same, and fit their bounds."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from stoker.engine.sweeps.asking import TriedTrial, hopeless, wanted
from stoker.errors import BadInput
from stoker.model.cause import Cause
from stoker.model.job.job import Job
from stoker.model.job.search import Trial
from stoker.model.run.run import RunState, Submission
from stoker.model.run.sweep import Sweep
from stoker.server.sweeps import study

MATRIX: dict[str, Any] = {
    "lr": {"log_uniform": [1e-5, 1e-1]},
    "width": {"integer": [16, 256]},
    "depth": "2..8..2",
    "model": ["a", "b"],
    "draws": 40,
}
SEARCH = {"by": "optuna", "metric": "-loss"}
JOB = Job.read({"name": "ants", "run": "true ${matrix.lr}", "matrix": MATRIX, "search": SEARCH})


def loss(values: Any) -> float:
    """Least at a learning rate of 1e-3, a width of 100 and model b."""
    lr, width = math.log10(float(values["lr"])), int(values["width"])
    return (lr + 3) ** 2 + abs(width - 100) / 100 + float(values["model"] == "a")


def tried(number: int, values: Any, state: RunState = RunState.SUCCEEDED, score: float | None = None) -> TriedTrial:
    scores = () if score is None else (score,)
    return TriedTrial(f"ants-{number}", Trial("s", number, values, scores=scores), state)


def searched(job: Job, trials: int) -> list[TriedTrial]:
    found: list[TriedTrial] = []
    for number in range(1, trials + 1):
        (values,) = study.ask(job, found, number, 1)
        found.append(tried(number, values, score=loss(values)))
    return found


def best(trials: Sequence[TriedTrial]) -> float:
    return min(one.score for one in trials if one.score is not None)


def test_it_comes_nearer_to_the_best_than_drawing_at_random() -> None:
    random = Job.read({**JOB.plain(), "search": {**SEARCH, "sampler": "random"}})
    guided, drawn = searched(JOB, 40), searched(random, 40)
    assert best(guided) < 0.3
    mean = [sum(one.score or 0 for one in some[20:]) for some in (guided, drawn)]
    assert mean[0] < mean[1] / 2


def test_the_same_trials_give_the_same_values_within_their_bounds() -> None:
    found = searched(JOB, 12)
    assert study.ask(JOB, found, 13, 2) == study.ask(JOB, list(found), 13, 2)
    for one in found:
        assert 1e-5 <= float(one.trial.values["lr"]) <= 1e-1 and one.trial.values["depth"] in ("2", "4", "6", "8")
        assert list(one.trial.values) == ["lr", "width", "depth", "model"]
    other = Job.read({**JOB.plain(), "matrix": {**MATRIX, "draws_seed": 1}})
    assert study.ask(JOB, (), 1, 1) != study.ask(other, (), 1, 1)


def test_a_number_is_short_and_not_outside_of_its_bounds() -> None:
    job = Job.read({**JOB.plain(), "run": "true", "matrix": {"x": {"uniform": [1 / 3, 1 / 3 + 1e-9]}}})
    for one in study.ask(job, (), 1, 5):
        assert 1 / 3 <= float(one["x"]) <= 1 / 3 + 1e-9
        assert study.ask(job, [tried(1, one, score=1.0)], 2, 1)


def test_trials_that_failed_run_or_reported_no_number_are_no_hindrance() -> None:
    found = searched(JOB, 3)
    values = found[0].trial.values
    odd = [tried(4, values, RunState.FAILED), tried(5, values, RunState.RUNNING), tried(6, values)]
    assert study.ask(JOB, [*found, *odd], 7, 1)


def test_without_optuna_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(BadInput) as caught:
        study.ask(JOB, (), 1, 1)
    assert caught.value.cause == Cause.PACKAGE_MISSING and "stoker[optuna]" in caught.value.hint


def of_sweep(now: datetime, trials: int, **facts: Any) -> Sweep:
    return Sweep("s", "ants-s1", 1, Submission("k", JOB, "code", "python3"), "here", now, trials, 3, **facts)


def test_few_are_drawn_at_a_time_and_none_of_a_cancelled_sweep(now: datetime) -> None:
    running = [tried(at, {}, RunState.RUNNING) for at in range(2)]
    assert wanted(of_sweep(now, 2), running) == 1 and wanted(of_sweep(now, 3), running * 2) == 0
    assert wanted(of_sweep(now, 39), []) == 1 and wanted(of_sweep(now, 40), []) == 0
    assert of_sweep(now, 3, cancelled=True).due == of_sweep(now, 3, stopped="why").due == 0
    assert of_sweep(now, 3).due == 37


def test_no_more_are_drawn_where_all_fail_or_none_reports_the_metric() -> None:
    failed = [tried(at, {}, RunState.FAILED) for at in range(1, 6)]
    assert hopeless(failed) and not hopeless(failed[:4]) and not hopeless([*failed, tried(6, {}, score=1.0)])
    assert hopeless([replace(tried(1, {}, RunState.FAILED), cause=Cause.METRIC_MISSING)])
