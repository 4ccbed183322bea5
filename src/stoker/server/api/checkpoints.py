"""Checkpoints: what a run has kept, and could go on from."""

from __future__ import annotations

from contextlib import suppress

from fastapi import APIRouter, Request, Response

from stoker.errors import Missing
from stoker.model import layout, wire
from stoker.model.checkpoint import CheckpointSet
from stoker.server.api.shape import answer, service_of
from stoker.server.outside import call
from stoker.stores import Store

router = APIRouter(tags=["checkpoints"])


@router.get("/runs/{name}/checkpoints")
async def listing(request: Request, name: str) -> Response:
    """The position of every set, oldest first, and the newest of them with its files; null where there is none."""
    service = service_of(request)
    run = await service.ledger.find(name)
    return answer(await call(_kept, service.stores.of(run), run.id))


def _kept(store: Store, run_id: str) -> dict[str, object]:
    found = []
    for stored in store.list(layout.checkpoint_sets(run_id).rstrip("/")):
        with suppress(ValueError):  # what else may lie there is not ours
            found.append(layout.checkpoint_position(stored.key))
    found.sort()
    newest = None
    if found:
        with suppress(Missing, ValueError, KeyError, TypeError):  # replaced meanwhile, or damaged
            newest = wire.load(CheckpointSet, store.get(layout.checkpoint_set(run_id, *found[-1])))
    return {"sets": [{"attempt": attempt, "number": number} for attempt, number in found], "newest": newest}
