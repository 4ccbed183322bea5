"""What nodes are there, as the providers see them, and which of them no run claims."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from fastapi import APIRouter, Request, Response

from stoker.engine.money.meter import cost
from stoker.engine.nodes.leftovers import claimed
from stoker.engine.nodes.resuming import spared
from stoker.errors import StokerError
from stoker.model.node.node import NodeSight
from stoker.server.api.shape import OUTSIDE, answer, gives, service_of
from stoker.server.rounds.outside import call
from stoker.server.service import Service

router = APIRouter(tags=["nodes"])
log = logging.getLogger(__name__)


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
    run_name: str = ""  # of the run that claims it
    kept_until: datetime | None = None  # it is kept after that run's failure
    spent_usd: Decimal | None = None  # what it has cost so far; None: that is not known


@dataclass(frozen=True, slots=True)
class Unseen:
    """A provider that could not be asked: nobody knows what is left there."""

    provider: str
    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Troubled:
    """A run of which nobody knows how it is: its nodes are claimed, and may cost without being of any use."""

    run: str
    id: str
    reason: str
    keys: tuple[str, ...] = ()
    usd_per_hour: Decimal = Decimal(0)


_NODES = {"nodes": tuple[Left, ...], "unseen": tuple[Unseen, ...], "troubled": tuple[Troubled, ...]}


@router.get("/nodes", responses=gives(_NODES, *OUTSIDE))
async def nodes(request: Request, provider: str = "") -> Response:
    """Asked of every provider now, or of one, as it sees them. `unseen` are providers that could not be asked,
    `troubled` runs whose nodes may be there for nothing."""
    service = service_of(request)
    found, unseen = await _look(service, provider)
    return answer({"nodes": found, "unseen": unseen, "troubled": _troubled(service, found)})


@router.delete("/nodes/{key}", responses=gives({"released": str}, *OUTSIDE))
async def release(request: Request, key: str, others: bool = False) -> Response:
    """Releases a node that no run claims; of another server only where that is asked for, and its lease is over. Twice
    is fine."""
    service = service_of(request)
    for one in (await _look(service))[0]:
        mine = not one.claimed and not one.server
        if one.key == key and (mine or (others and one.server and one.expired)):
            await call(service.providers[one.provider].stop, key)
    return answer({"released": key})


async def _look(service: Service, only: str = "") -> tuple[list[Left], list[Unseen]]:
    """One provider that cannot be asked keeps nobody from the others."""
    needed = claimed(service.ledger.open)
    found: list[Left] = []
    unseen: list[Unseen] = []
    for name, provider in service.providers.items():
        if only not in ("", name):
            continue
        try:
            sights = await call(provider.look)
        except StokerError as error:
            unseen.append(Unseen(name, error.message, error.hint))
            continue
        except Exception as error:
            log.warning("looking at %s: %s", name, error, exc_info=error)
            unseen.append(Unseen(name, f"{type(error).__name__}: {error}"))
            continue
        wanted = needed | spared(service.ledger.open, sights)
        found += [_left(name, sight, not sight.server and sight.key in wanted) for sight in sights]
    stuck = {key: f"{error.message}; {error.hint}".rstrip("; ") for key, error in service.reconciler.stuck.items()}
    return [replace(_used(one, service), stuck=stuck.get(one.key, "")) for one in found], unseen


def _used(one: Left, service: Service) -> Left:
    """With the run that it is for, as far as the server still looks after that, and what it has cost."""
    run = next((run for run in service.ledger.open if run.id == one.run), None)
    if run is None or one.server:
        return one
    now = service.clock.now()
    spent = sum((cost(spell, now) for spell in run.spells if spell.key == one.key), Decimal(0))
    claimed_by = (run.name, run.kept_until) if one.claimed else ("", None)
    return replace(one, run_name=claimed_by[0], kept_until=claimed_by[1], spent_usd=spent)


def _troubled(service: Service, found: list[Left]) -> list[Troubled]:
    troubled, made = service.reconciler.troubled, []
    for run in service.ledger.open:
        if run.id in troubled:
            mine = [one for one in found if one.run == run.id]
            cost = sum((one.usd_per_hour for one in mine), Decimal(0))
            made.append(Troubled(run.name, run.id, troubled[run.id], tuple(one.key for one in mine), cost))
    return made


def _left(provider: str, sight: NodeSight, is_claimed: bool) -> Left:
    run = sight.key.rpartition("-")[0]
    facts = (str(sight.state), sight.reason, is_claimed, sight.resources, sight.usd_per_hour)
    return Left(provider, sight.key, run, *facts, sight.server, sight.lease_until, sight.expired)
