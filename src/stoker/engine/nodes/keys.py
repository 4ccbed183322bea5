"""The keys of a run's nodes: one key never gives two nodes."""

from __future__ import annotations

from stoker.model.run.run import Member, Run


def node_key(run: Run, number: int, node: int = 0) -> str:
    """Of a node of the attempt with this number."""
    return f"{run.id}-{number}-{node}" if node else f"{run.id}-{number}"


def node_of(key: str) -> tuple[str, int, int]:
    """The id of the run, the number of the attempt and the node that a key consists of."""
    run_id, number, *node = key.split("-")
    return run_id, int(number), int(node[0]) if node else 0


def spare_keys(run: Run) -> tuple[str, ...]:
    """The nodes that were requested in advance, until their attempt starts."""
    attempt = run.attempt
    if run.state.ended or attempt is None:
        return ()
    return tuple(spare_key(run, member) for member in attempt.members if member.spare)


def spare_key(run: Run, member: Member) -> str:
    """The replacement of this node is requested with this key."""
    return node_key(run, member.number + 1, member.node)
