"""What nodes are there, as the providers see them, and which of them no run claims."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from fastapi import APIRouter, Request, Response

from stoker.engine.resuming import spared
from stoker.engine.sweeping import claimed
from stoker.model.node import NodeSight
from stoker.server.api.shape import answer, service_of
from stoker.server.outside import call
from stoker.server.service import Service

router = APIRouter(tags=["nodes"])


@dataclass(frozen=True, slots=True)
class Left:
    """One node that is there. `run` is the id of the one it was for; `server` that of another server, whose it is."""

    provider: str
    key: str
    run: str
    state: str
    reason: str
    claimed: bool
    resources: tuple[str, ...]
    usd_per_hour: Decimal
    server: str = ""
    lease_until: datetime | None = None
    expired: bool = False
    stuck: str = ""  # why it could not be released, with what to do


@router.get("/nodes")
async def nodes(request: Request) -> Response:
    """Asked of every provider now, as it sees them."""
    return answer({"nodes": await _look(service_of(request))})


@router.delete("/nodes/{key}")
async def release(request: Request, key: str, others: bool = False) -> Response:
    """Releases a node that no run claims; of another server only where that is asked for, and its lease is over. Twice
    is fine."""
    service = service_of(request)
    for one in await _look(service):
        mine = not one.claimed and not one.server
        if one.key == key and (mine or (others and one.server and one.expired)):
            await call(service.providers[one.provider].stop, key)
    return answer({"released": key})


async def _look(service: Service) -> list[Left]:
    needed = claimed(service.ledger.open)
    found: list[Left] = []
    for name, provider in service.providers.items():
        sights = await call(provider.look)
        wanted = needed | spared(service.ledger.open, sights)
        found += [_left(name, sight, not sight.server and sight.key in wanted) for sight in sights]
    stuck = {key: f"{error.message}; {error.hint}".rstrip("; ") for key, error in service.reconciler.stuck.items()}
    return [replace(one, stuck=stuck.get(one.key, "")) for one in found]


def _left(provider: str, sight: NodeSight, is_claimed: bool) -> Left:
    run = sight.key.rpartition("-")[0]
    facts = (str(sight.state), sight.reason, is_claimed, sight.resources, sight.usd_per_hour)
    return Left(provider, sight.key, run, *facts, sight.server, sight.lease_until, sight.expired)
