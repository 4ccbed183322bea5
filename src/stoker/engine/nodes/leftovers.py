"""Nodes that no run claims: what to release so that nothing is left behind."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from stoker.engine.decision import StopNode
from stoker.engine.nodes.keys import spare_keys
from stoker.engine.nodes.resuming import spared
from stoker.model.node.node import NodeSight, NodeState
from stoker.model.run.run import Run, RunState

GRACE_S = 20.0  # an agent still cleans up after its final report; a machine that costs money is released at once


def claimed(runs: Collection[Run]) -> set[str]:
    """Keys of nodes that a run still needs."""
    busy = (RunState.STARTING, RunState.RUNNING)
    current = {member.key for run in runs if run.attempt and run.state in busy for member in run.attempt.members}
    current |= {member.key for run in runs if run.attempt and run.kept_until for member in run.attempt.members}
    return current | {spare for run in runs for spare in spare_keys(run)}


def needed(runs: Collection[Run], sights: Mapping[str, Collection[NodeSight]]) -> set[str]:
    """Keys of nodes that a run needs, or may still take over. `runs` are all that are tracked: a run that has ended may
    keep its node, too. `sights` are by provider."""
    idle = {key for run in runs for key in run.waiting_nodes}
    return claimed(runs) | idle | spared(runs, [sight for some in sights.values() for sight in some])


def release_unneeded(
    sights: Mapping[str, Collection[NodeSight]],
    needed: Collection[str],
    unclaimed_s: Mapping[str, float],
    leased: Collection[str],
) -> list[StopNode]:
    """What to release after observing these providers. `leased` are those whose nodes cost money: these go at once."""
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
    """`unclaimed_s` is how long each node has been seen without a claim, by the server's monotonic clock. Nodes of
    another server are left to it."""
    unneeded = (sight for sight in sights if sight.key not in needed and not sight.server)
    return [
        StopNode(provider, sight.key)
        for sight in unneeded
        if sight.state is NodeState.GONE or unclaimed_s.get(sight.key, 0.0) >= grace_s
    ]
