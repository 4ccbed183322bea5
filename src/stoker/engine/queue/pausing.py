"""Runs that give their nodes back although they have not ended: for a run of higher priority, or with their cluster."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from stoker.engine.decision import Decision
from stoker.engine.nodes import nodes
from stoker.engine.queue.clusters import ClusterFacts
from stoker.model.orders import Notice, Wish
from stoker.model.run.run import Attempt, Run, RunState

PAUSE_S = 60.0  # notice for a run that gives its nodes back


def yielding(run: Run, other: Run, now: datetime) -> Decision:
    """It saves, ends, and waits for its turn: the other one has a higher priority."""
    attempt = run.attempts[-1]
    after = run.with_newest(replace(attempt, notice=_notice(attempt, now), yielded=other.name))
    text = f"attempt {attempt.number} saves and makes room for {other.name}, which has a higher priority"
    return Decision(after).noting(now, "paused-for", text)


def vacated(run: Run, facts: ClusterFacts, now: datetime) -> Decision | None:
    """A run of a paused cluster saves and gives its nodes back, also those that it would use again; None: there is
    nothing more to do. It resumes when its cluster does."""
    cluster, attempt = facts.known.get(run.cluster), run.attempt
    if cluster is None or not cluster.paused or attempt is None:
        return None
    if run.kept_until:
        return nodes.released(run, now, f"released the node that was kept: cluster `{cluster.name}` is paused")
    if run.state.ended or run.wish is not Wish.GO_ON or attempt.fused:
        return None
    if run.state in (RunState.QUEUED, RunState.PAUSED):
        return None if attempt.paused else Decision(run.with_newest(_without_spares(attempt, cluster.name)))
    if attempt.paused and attempt.notice:
        return None
    saving = replace(_without_spares(attempt, cluster.name), notice=attempt.notice or _notice(attempt, now))
    if attempt.started_at is None:  # nothing is lost with any of its nodes
        saving = replace(saving, peers=tuple(replace(one, notice=saving.notice) for one in saving.peers))
    text = f"attempt {attempt.number} saves and gives its nodes back: cluster `{cluster.name}` is paused"
    return Decision(run.with_newest(saving)).noting(now, "cluster-paused", text)


def _without_spares(attempt: Attempt, cluster: str) -> Attempt:
    peers = tuple(replace(one, spare=None) for one in attempt.peers)
    return replace(attempt, paused=cluster, spare=None, growth=(), peers=peers)


def _notice(attempt: Attempt, now: datetime) -> Notice:
    """None of its time is needed where no script has begun."""
    return Notice(now, now + timedelta(seconds=PAUSE_S if attempt.started_at else 0.0))
