"""What is shown of an active run: what it waits for, and its agent's last report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import pytest

from stoker.engine.looking import Heard
from stoker.engine.showing import Beside, is_silent, shown
from stoker.errors import ProviderUnavailable
from stoker.model.cause import Cause
from stoker.model.run.report import DataFigures, MetricSummary, Phase, Report
from stoker.model.run.run import Attempt, AttemptState, Run, RunState

Make = Callable[..., Run]


@pytest.fixture
def running(make_run: Make, now: datetime) -> Run:
    run = make_run(1)
    return replace(run, state=RunState.RUNNING, attempts=(Attempt(1, f"{run.id}-1", AttemptState.RUNNING, now),))


def test_a_queued_run_says_what_it_waits_for(make_run: Make) -> None:
    run, away = make_run(1), ProviderUnavailable("it is away", hint="wait")
    busy = Beside(waits="2 of 2 slots are busy", waits_cause=Cause.NO_ROOM)
    assert (shown(run, busy).reason, shown(run, busy).cause) == (busy.waits, Cause.NO_ROOM)
    assert shown(run, replace(busy, offers=away)).reason == away.message
    assert shown(run, replace(busy, offers=away)).cause == away.code
    assert shown(replace(run, reason="sold out"), Beside(waits="busy")).reason == "sold out; busy"


def test_a_store_that_cannot_be_used_is_reported_before_anything_else(running: Run) -> None:
    full = shown(running, Beside(store="it is full"))
    assert full.cause == "store-failed" and "it is full" in full.reason
    assert "it hangs" in shown(running, Beside(heard=Heard(trouble="it hangs"))).reason
    away = ProviderUnavailable("no network")
    assert shown(running, Beside(store="it is full", offers=away)).reason == "no network"


def test_metrics_and_progress_come_from_the_last_report(running: Run, now: datetime) -> None:
    loss = MetricSummary(last=0.1, least=0.1, most=2.0, count=3, step=3.0)
    report = Report(1, 0, Phase.RUNNING, now, 1, metrics={"loss": loss})
    assert shown(running, Beside(heard=Heard(report))).metrics == {"loss": loss}
    before = replace(running, metrics={"loss": MetricSummary(1.0, 1.0, 4.0, 2, 2.0)})
    assert shown(before, Beside(heard=Heard(report))).metrics == {"loss": MetricSummary(0.1, 0.1, 4.0, 5, 3.0)}
    over = before.with_newest(replace(before.attempts[0], state=AttemptState.EVICTED))
    assert shown(over, Beside(heard=Heard(report))).metrics == before.metrics, "its points are counted already"
    data = {"images": DataFigures("download", size_bytes=100, read_bytes=42)}
    staging = replace(report, phase=Phase.STAGING, data=data)
    assert "40 %" in shown(running, Beside(heard=Heard(staging))).reason


@pytest.mark.parametrize(("silent_s", "beat_s", "silent"), [(9.0, 2.0, False), (11.0, 2.0, True), (49.0, 10.0, False)])
def test_an_agent_is_silent_after_ten_seconds_and_five_beats(
    running: Run, now: datetime, silent_s: float, beat_s: float, silent: bool
) -> None:
    heard = Heard(Report(1, 0, Phase.RUNNING, now, 1), silent_s=silent_s)
    assert is_silent(heard, beat_s) is silent
    reason = shown(running, Beside(heard=heard, beat_s=beat_s, silence=": the disk is full")).reason
    assert ("no heartbeat" in reason and "the disk is full" in reason) is silent


def test_a_run_that_has_ended_is_shown_as_it_was_saved(running: Run) -> None:
    over = replace(running, state=RunState.FAILED, reason="exit code 1")
    assert shown(over, Beside(store="it is full", looks=ProviderUnavailable("away"))) == over
