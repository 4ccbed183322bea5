"""Providers and their nodes: what exists, which nodes no run needs, and what a provider supports."""

from __future__ import annotations

import logging
from dataclasses import replace
from decimal import Decimal

from fastapi import APIRouter, Request, Response

from stoker.engine.money.meter import cost
from stoker.engine.nodes.leftovers import claimed
from stoker.engine.nodes.resuming import spared
from stoker.errors import NotFound, StokerError
from stoker.model.node.listing import ListedNode, NodeListing, Troubled, Unseen
from stoker.model.node.node import Features, NodeSight
from stoker.server.api.http.shape import OUTSIDE, answer, gives, service_of
from stoker.server.rounds.outside import call
from stoker.server.service import Service

router = APIRouter(tags=["nodes"])
log = logging.getLogger(__name__)


@router.get("/nodes", responses=gives(NodeListing, *OUTSIDE))
async def nodes(request: Request, provider: str = "") -> Response:
    """Queried from every provider now, or from one. `unseen` are providers that could not be queried, `troubled` runs
    whose nodes may be useless."""
    service = service_of(request)
    found, unseen = await _look(service, provider)
    return answer(NodeListing(tuple(found), tuple(unseen), tuple(_troubled(service, found))))


@router.delete("/nodes/{key}", responses=gives({"released": str}, *OUTSIDE))
async def release(request: Request, key: str, others: bool = False) -> Response:
    """Releases a node that no run claims; a node of another server only on request, and if its lease has expired. May
    be repeated."""
    service = service_of(request)
    for one in (await _look(service))[0]:
        mine = not one.claimed and not one.server
        if one.key == key and (mine or (others and one.server and one.expired)):
            await call(service.providers[one.provider].stop, key)
    return answer({"released": key})


async def _look(service: Service, only: str = "") -> tuple[list[ListedNode], list[Unseen]]:
    """An unavailable provider does not affect the others."""
    needed = claimed(service.ledger.open)
    found: list[ListedNode] = []
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
        idle = {key for run in service.ledger.open for key in run.waiting_nodes}
        wanted = needed | idle | spared(service.ledger.open, sights)
        found += [_left(name, sight, not sight.server and sight.key in wanted) for sight in sights]
    stuck = {key: f"{error.message}; {error.hint}".rstrip("; ") for key, error in service.reconciler.stuck.items()}
    return [replace(_used(one, service), stuck=stuck.get(one.key, "")) for one in found], unseen


def _used(one: ListedNode, service: Service) -> ListedNode:
    """With its run, if the server still tracks it, and its cost."""
    run = next((run for run in service.ledger.open if run.id == one.run), None)
    if run is None or one.server:
        return one
    now = service.clock.now()
    spent = sum((cost(spell, now) for spell in run.spells if spell.key == one.key), Decimal(0))
    claimed_by = (run.name, run.kept_until) if one.claimed else ("", None)
    return replace(one, run_name=claimed_by[0], kept_until=claimed_by[1], spent_usd=spent)


def _troubled(service: Service, found: list[ListedNode]) -> list[Troubled]:
    troubled, made = service.reconciler.troubled, []
    for run in service.ledger.open:
        if run.id in troubled:
            mine = [one for one in found if one.run == run.id]
            cost = sum((one.usd_per_hour for one in mine), Decimal(0))
            made.append(Troubled(run.name, run.id, troubled[run.id], tuple(one.key for one in mine), cost))
    return made


def _left(provider: str, sight: NodeSight, is_claimed: bool) -> ListedNode:
    run = sight.key.partition("-")[0]
    facts = (str(sight.state), sight.reason, is_claimed, sight.resources, sight.usd_per_hour)
    return ListedNode(provider, sight.key, run, *facts, sight.server, sight.lease_until, sight.expired)


@router.get("/providers/{name}", responses=gives(Features, 404))
async def features(request: Request, name: str) -> Response:
    """The features of a provider, or of that of a cluster. Sends no external request, and costs nothing."""
    service = service_of(request)
    cluster = next((one for one in await call(lambda: service.clusters.all) if one.name == name), None)
    provider = service.providers.get(cluster.provider if cluster else name)
    if provider is None:
        raise NotFound(f"unknown provider `{name}`", hint="list the providers: stoker plan")
    return answer(provider.features)
