"""Why a run has to wait, in words."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.cli import words
from stoker.client.client import Client
from stoker.model.job import Priority
from stoker.model.run import Run, RunState

_MOST = 1000
_ORDER = (Priority.HIGH, Priority.NORMAL, Priority.LOW)


def why(client: Client, run: Run) -> str:
    """Asks the server how things stand where the run wants to go."""
    if run.reason:
        return run.reason
    offer = client.connection.post("/v1/plan", {"job": run.job.plain()})["offer"]
    slots = offer["slots"] if offer else None
    return told(run, client.runs(limit=_MOST, state="active"), slots)


def told(run: Run, active: Sequence[Run], slots: int | None) -> str:
    """`2 of 2 slots are busy, 3 ahead`"""
    there = [other for other in active if other.job.on == run.job.on and other.id != run.id]
    busy = sum(other.job.nodes for other in there if other.state in (RunState.STARTING, RunState.RUNNING))
    ahead = sum(other.state is RunState.QUEUED and _place(other) < _place(run) for other in there)
    taken = f"{busy} of {slots} slots are busy" if slots is not None else f"{words.count(busy, 'node')} busy"
    return f"{taken}, {ahead} ahead"


def _place(run: Run) -> tuple[int, str]:
    return (_ORDER.index(run.job.priority), run.id)
