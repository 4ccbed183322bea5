"""Nodes of failed runs that are kept for inspection: for how long, and when they are released."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from stoker.engine.decision import Decision, Land, StopNode, TellAgent
from stoker.engine.sighting import Sighting
from stoker.errors import Conflict
from stoker.model.node.node import NodeState
from stoker.model.node.orders import Wish
from stoker.model.run.run import Run


def keep(run: Run, now: datetime) -> Run:
    """A run that is about to fail, with its node kept if its job requests it."""
    if not run.job.keep_failed or run.wish is not Wish.GO_ON:
        return run
    return replace(run, kept_until=now + timedelta(seconds=run.job.keep_failed))


def noted(failed: Decision, now: datetime) -> Decision:
    """The end of such a run, with a line in its timeline."""
    until = failed.run.kept_until
    if until is None:
        return failed
    return failed.noting(now, "kept", f"its node is kept until {until:%Y-%m-%d %H:%M} UTC")


def tend(run: Run, seen: Sighting, now: datetime) -> Decision:
    """What is left to do for a run that has ended. The server keeps renewing its kept node until it is released."""
    landing = (Land(run),) if run.landing else ()
    if run.kept_until is None:
        return Decision(run, landing)
    if seen.node is None or seen.node.state is NodeState.GONE:
        return _released(run, now, "the node that was kept is gone").doing(*landing)
    if now >= run.kept_until:
        return _released(run, now, "released the node that was kept: its time is up").doing(*landing)
    return Decision(run, (*landing, TellAgent(run)))


def release(run: Run, now: datetime) -> Decision:
    """The user releases it."""
    if run.kept_until is None:
        hint = f"stoker cancel {run.name}" if not run.state.ended else f"stoker show {run.name}"
        raise Conflict(f"no node of `{run.name}` is kept: it is {run.state}", hint=hint)
    return _released(run, now, "the node that was kept was released on request")


def _released(run: Run, now: datetime, text: str) -> Decision:
    """Stopping is repeated for a leftover as long as the node is seen: no run claims it any more."""
    after = Decision(replace(run, kept_until=None))
    stop = (StopNode(run.job.on, run.attempt.key),) if run.attempt else ()
    return after.doing(*stop).noting(now, "released", text)
