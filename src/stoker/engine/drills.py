"""Evictions on request, as a drill: the node gets its notice, and is evicted when it expires."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from stoker.engine.decision import Decision
from stoker.errors import Conflict
from stoker.model.node.orders import Notice
from stoker.model.run.run import Attempt, AttemptState, Run, RunState

# The prior before anything is observed: a tenth of an eviction in one hour.
SUPPOSED_EVICTIONS = 0.1
SUPPOSED_HOURS = 1.0


def rate_per_hour(run: Run) -> float | None:
    """How often the run's nodes were evicted, to decide how often to save. Attempts without a node do not count. None
    if no other attempt has ended."""
    over = [attempt for attempt in run.attempts if attempt.state.over and attempt.started_at]
    spans = [one.ended_at - one.started_at for one in over if one.started_at and one.ended_at]
    hours = sum(max(span.total_seconds(), 0.0) for span in spans) / 3600
    evictions = sum(one.state in (AttemptState.EVICTED, AttemptState.LOST) for one in over)
    return (evictions + SUPPOSED_EVICTIONS) / (hours + SUPPOSED_HOURS) if over else None


def evict(run: Run, notice_s: float, now: datetime) -> Decision:
    """The newest attempt's node will be evicted in so many seconds."""
    attempt = _attempt(run)
    notice = Notice(now, now + timedelta(seconds=notice_s))
    text = f"attempt {attempt.number} got {notice_s:g} s notice of its eviction"
    return Decision(_with(run, replace(attempt, notice=notice))).noting(now, "notice", text)


def withdraw(run: Run, now: datetime) -> Decision:
    """The node stays."""
    attempt = _attempt(run)
    if attempt.notice is None:
        raise Conflict(f"`{run.name}` has no notice to withdraw", hint=f"give one with `stoker evict {run.name}`")
    kept = Decision(_with(run, replace(attempt, notice=None)))
    return kept.noting(now, "notice-withdrawn", f"the eviction notice of attempt {attempt.number} was withdrawn")


def _attempt(run: Run) -> Attempt:
    if run.attempt is None or run.state not in (RunState.STARTING, RunState.RUNNING):
        raise Conflict(f"`{run.name}` has no node to evict: it is {run.state}", hint=f"stoker show {run.name}")
    return run.attempt


def _with(run: Run, attempt: Attempt) -> Run:
    return run.with_newest(attempt)
