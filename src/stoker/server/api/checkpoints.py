"""Checkpoints: what a run has kept, and could go on from."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from itertools import islice

from fastapi import APIRouter, Request, Response

from stoker.errors import Malformed, Missing
from stoker.model import untrusted
from stoker.model.checkpoint import CheckpointSet
from stoker.model.workspace import layout
from stoker.server.api.shape import OUTSIDE, answer, gives, service_of
from stoker.server.rounds.outside import call
from stoker.stores import Store

router = APIRouter(tags=["checkpoints"])

MOST_SETS = 100_000


_KEPT = {"sets": tuple[Mapping[str, int], ...], "newest": CheckpointSet | None}


@router.get("/runs/{name}/checkpoints", responses=gives(_KEPT, 404, *OUTSIDE))
async def listing(request: Request, name: str) -> Response:
    """The position of every set, oldest first, and the newest of them with its files; null where there is none."""
    service = service_of(request)
    run = await service.ledger.find(name)
    return answer(await call(_kept, service.stores.of(run), run.id, service.clock.now()))


def _kept(store: Store, run_id: str, now: datetime) -> dict[str, object]:
    found = []
    for stored in islice(store.list(layout.checkpoint_sets(run_id).rstrip("/")), MOST_SETS):
        with suppress(ValueError):  # what else may lie there is not ours
            found.append(layout.checkpoint_position(stored.key))
    found.sort()
    newest = None
    if found:
        with suppress(Missing, Malformed):  # replaced meanwhile, or damaged
            key = layout.checkpoint_set(run_id, *found[-1])
            newest = untrusted.fetch(CheckpointSet, store, key, untrusted.MANIFEST_BYTES, now)
    return {"sets": [{"attempt": attempt, "number": number} for attempt, number in found], "newest": newest}
