"""The keys of a run's nodes: the same key never gives two nodes."""

from __future__ import annotations

from stoker.model.run import Run


def node_key(run: Run, number: int) -> str:
    """Of the attempt with this number."""
    return f"{run.id}-{number}"


def spare_key(run: Run) -> str:
    """The node that was asked for ahead, until its attempt begins; empty: none."""
    attempt = run.attempt
    if run.state.ended or attempt is None or attempt.spare is None:
        return ""
    return node_key(run, attempt.number + 1)
