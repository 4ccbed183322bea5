"""Nodes that nobody claims: what to release so that nothing is left behind."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from stoker.engine.decision import StopNode
from stoker.engine.nodes.resuming import spared
from stoker.model.node.node import NodeSight, NodeState
from stoker.model.run.run import Run, RunState

GRACE_S = 20.0  # an agent that has given its last report still tidies up; a machine that costs money goes at once


def claimed(runs: Collection[Run]) -> set[str]:
    """Keys of nodes that a run still needs."""
    busy = (RunState.STARTING, RunState.RUNNING)
    current = {run.attempt.key for run in runs if run.attempt and run.state in busy}
    current |= {run.attempt.key for run in runs if run.attempt and run.kept_until}
    return current | {spare for run in runs if (spare := spare_key(run))}


def needed(runs: Collection[Run], sights: Mapping[str, Collection[NodeSight]]) -> set[str]:
    """Keys of nodes that a run needs, or may still take over. `runs` are all that are tended: also one that is over may
    keep its node. `sights` are by provider."""
    return claimed(runs) | spared(runs, [sight for some in sights.values() for sight in some])


def release_unneeded(
    sights: Mapping[str, Collection[NodeSight]],
    needed: Collection[str],
    unclaimed_s: Mapping[str, float],
    leased: Collection[str],
) -> list[StopNode]:
    """What to release after a look at these providers. `leased` are those whose nodes cost money: they go at once."""
    return [
        stop
        for name, some in sights.items()
        for stop in release_leftovers(name, some, needed, unclaimed_s, 0.0 if name in leased else GRACE_S)
    ]


def release_leftovers(
    provider: str,
    sights: Collection[NodeSight],
    needed: Collection[str],
    unclaimed_s: Mapping[str, float],
    grace_s: float = GRACE_S,
) -> list[StopNode]:
    """`unclaimed_s` is how long each node has been seen without a claim, by the server's own steady clock. What belongs
    to another server is its own to release."""
    unneeded = (sight for sight in sights if sight.key not in needed and not sight.server)
    return [
        StopNode(provider, sight.key)
        for sight in unneeded
        if sight.state is NodeState.GONE or unclaimed_s.get(sight.key, 0.0) >= grace_s
    ]


# The keys of a run's nodes: the same key never gives two nodes.


def node_key(run: Run, number: int) -> str:
    """Of the attempt with this number."""
    return f"{run.id}-{number}"


def spare_key(run: Run) -> str:
    """The node that was asked for ahead, until its attempt begins; empty: none."""
    attempt = run.attempt
    if run.state.ended or attempt is None or attempt.spare is None:
        return ""
    return node_key(run, attempt.number + 1)
