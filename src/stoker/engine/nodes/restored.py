"""Runs that were restored from their records: active ones are followed to their end, and nothing is started.

A record is a copy in a store, where others may write. So only the user starts such a run again.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from stoker.engine.decision import Decision, Land, StartNode, StartSpare, StopNode
from stoker.model.node.orders import Wish
from stoker.model.run.run import AttemptState, Run, RunState

GRACE_S = 30.0  # for a node, or what it last said, to be seen after the server has lost its database


def restored(run: Run, now: datetime) -> Run:
    """The run for the new database. A paused one waits for the user anyway."""
    if run.state.ended or run.state is RunState.PAUSED:
        return run
    if not run.attempts or run.attempts[-1].state.over:
        return run if run.wish is Wish.CANCEL else interrupted(run, now).run
    newest = replace(
        run.attempts[-1], spare=None
    )  # it may be there: then it is released as any other that nobody needs
    return replace(run.with_newest(newest), restored_at=now)


def without_starts(decision: Decision, now: datetime) -> Decision:
    """The decision about a run, without a new node if the run was restored."""
    run = decision.run
    if run.restored_at is None or run.state.ended or run.wish is Wish.CANCEL:
        return decision
    rest = tuple(one for one in decision.actions if not isinstance(one, StartNode | StartSpare))
    starts = len(rest) < len(decision.actions)
    if starts and (now - run.restored_at).total_seconds() < GRACE_S:
        return replace(decision, actions=rest)
    if not starts and run.state is not RunState.QUEUED:
        return decision
    ended = interrupted(run, now)
    stops = tuple(StopNode(run.job.on, one.key) for one in run.attempts[-1:] if not one.state.over)
    return Decision(ended.run, (*rest, *stops, *ended.actions), (*decision.events, *ended.events))


def interrupted(run: Run, now: datetime) -> Decision:
    attempts = tuple(
        one if one.state.over else replace(one, state=AttemptState.LOST, ended_at=now) for one in run.attempts
    )
    reason = "interrupted: it was restored from its record, and has no active node"
    saved = run.start is not None or any(one.saved for one in run.attempts)
    hint = f"continue with `stoker {'resume' if saved else 'rerun'} {run.name}`"
    ended = replace(
        run, state=RunState.FAILED, reason=reason, hint=hint, ended_at=now, exit_code=125, attempts=attempts
    )
    return Decision(ended, (Land(ended),) if ended.landing else ()).noting(now, "failed", f"failed: {reason}")
