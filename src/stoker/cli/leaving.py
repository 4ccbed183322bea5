"""What a run leaves behind, as the cloud says it: asked until nothing is there, or patience ends."""

from __future__ import annotations

import time

from stoker.cli.cleanup import summary
from stoker.cli.receipttext import short
from stoker.client.client import Client
from stoker.client.handle import Run as Handle
from stoker.client.nodes import Look, Nodes
from stoker.errors import StokerError
from stoker.model.run import Run

_PATIENCE_S = 60.0
_EVERY_S = 0.5


def left(client: Client, run: Run) -> str:
    """A line for the end of `stoker run`; empty where the run had no machine that costs anything."""
    if run.attempt is None or run.attempt.offer is None:
        return ""
    try:
        look = _until_gone(client, run)
    except StokerError as error:
        return f"what is left could not be asked: {error.message}; look with `stoker cleanup`"
    remains = look.nodes
    stuck = next((one.stuck for one in remains if one.stuck), "")
    going = f": they cannot be removed: {stuck}" if stuck else ": they are being removed; look with `stoker cleanup`"
    return summary(remains, look) + (going if remains else "")


def cost(run: Handle) -> str:
    """What it came to, in a line, once its machines are gone."""
    try:
        return f"{short(run.receipt())}; more: stoker receipt {run.name}"
    except StokerError as error:
        return f"what it cost could not be asked: {error.message}; see it with `stoker receipt {run.name}`"


def _until_gone(client: Client, run: Run) -> Look:
    """What is there of this run, as far as its provider could be asked."""
    nodes, deadline = Nodes(client.connection), time.monotonic() + _PATIENCE_S
    while True:
        seen = nodes.look(run.job.on)  # others have nothing of it, and may want a login that nobody has
        look = Look(
            tuple(one for one in seen.nodes if one.run == run.id),
            seen.unseen,
            tuple(one for one in seen.troubled if one.id == run.id),
        )
        if not look.nodes or time.monotonic() >= deadline or all(one.stuck for one in look.nodes):
            return look
        time.sleep(_EVERY_S)
