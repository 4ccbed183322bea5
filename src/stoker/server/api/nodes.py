"""Nodes: those that providers see, those that no run needs, and clusters."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal

from fastapi import APIRouter, Request, Response

from stoker.engine.decision import cancelled
from stoker.engine.money import meter
from stoker.engine.money.meter import cost
from stoker.engine.nodes.nodes import claimed, spared
from stoker.engine.queue.clusters import busy, idle_nodes
from stoker.errors import BadInput, Conflict, NotFound, NotSetUp, StokerError
from stoker.model.cause import Cause
from stoker.model.job.fields import nearest
from stoker.model.node import (
    IDLE_S,
    MOST_NODES,
    NAME,
    Cluster,
    ClusterState,
    Features,
    ListedNode,
    Need,
    NodeListing,
    NodeSight,
    Troubled,
    Unseen,
)
from stoker.model.run.run import Run, RunState
from stoker.model.workspace.store import is_twin
from stoker.server.api.answers import OUTSIDE, answer, gives, service_of, takes
from stoker.server.api.requests import body
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
        raise NotFound(
            f"unknown provider `{name}`", hint="list the providers: stoker plan", cause=Cause.NO_SUCH_PROVIDER
        )
    return answer(provider.features)


cluster_router = APIRouter(tags=["clusters"])
_CLUSTERS = {"clusters": tuple[ClusterState, ...]}


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    name: str
    provider: str
    max_nodes: int
    min_nodes: int = 0
    idle_s: float = IDLE_S
    size: str = ""
    region: str = ""
    spot: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""


@dataclass(frozen=True, slots=True)
class ResizeRequest:
    """What is null stays as it is."""

    max_nodes: int | None = None
    min_nodes: int | None = None
    idle_s: float | None = None


@cluster_router.post(
    "/clusters", openapi_extra=takes(ClusterRequest), responses=gives(ClusterState, 404, 409, *OUTSIDE)
)
async def create(request: Request) -> Response:
    """Nodes come with the first run, or are started for its minimum."""
    service = service_of(request)
    asked = await body(request, ClusterRequest)
    given = {name: getattr(asked, name) for name in ClusterRequest.__dataclass_fields__}
    cluster = Cluster(**given, created_at=service.clock.now())
    _check(cluster)
    await call(_check_provider, service, cluster)
    await call(service.clusters.add, cluster)
    return answer(await call(_state, service, cluster))


@cluster_router.get("/clusters", responses=gives(_CLUSTERS))
async def all_of_them(request: Request) -> Response:
    service = service_of(request)
    return answer({"clusters": [await call(_state, service, one) for one in await call(lambda: service.clusters.all)]})


@cluster_router.get("/clusters/{name}", responses=gives(ClusterState, 404))
async def show(request: Request, name: str) -> Response:
    """With what its idle time has cost its owner."""
    service = service_of(request)
    return answer(await call(_state, service, await call(service.clusters.named, name)))


@cluster_router.post("/clusters/{name}/resize", openapi_extra=takes(ResizeRequest), responses=gives(ClusterState, 404))
async def resize(request: Request, name: str) -> Response:
    """Runs keep their nodes; idle nodes beyond the new size are released."""
    asked = await body(request, ResizeRequest)
    service = service_of(request)
    given = {one: getattr(asked, one) for one in ResizeRequest.__dataclass_fields__ if getattr(asked, one) is not None}
    return answer(await _changed(service, name, **given))


@cluster_router.post("/clusters/{name}/pause", responses=gives(ClusterState, 404))
async def pause(request: Request, name: str) -> Response:
    """Nothing starts, and all nodes are released: runs get a notice, save, and resume when the cluster does."""
    return answer(await _changed(service_of(request), name, paused=True))


@cluster_router.post("/clusters/{name}/resume", responses=gives(ClusterState, 404))
async def resume(request: Request, name: str) -> Response:
    return answer(await _changed(service_of(request), name, paused=False))


@cluster_router.delete("/clusters/{name}", responses=gives({"removed": str}, 404, 409))
async def remove(request: Request, name: str) -> Response:
    """Refused while a run uses it. Its idle nodes are released."""
    service = service_of(request)
    await call(service.clusters.named, name)
    there = [run for run in service.ledger.open if run.cluster == name and not run.state.ended]
    using = [run.name for run in there if not run.warms]
    if using:
        who = f"`{using[0]}` and {len(using) - 1} more use" if len(using) > 1 else f"`{using[0]}` uses"
        raise Conflict(
            f"{who} cluster `{name}`",
            hint=f"stoker cancel {' '.join(using)}",
            cause=Cause.CLUSTER_IN_USE,
        )
    await call(service.clusters.remove, name)
    now = service.clock.now()
    for run in there:
        await service.ledger.change(run.name, lambda seen: cancelled(seen, now))
    service.reconciler.wake()
    return answer({"removed": name})


async def _changed(service: Service, name: str, **given: object) -> ClusterState:
    cluster = replace(await call(service.clusters.named, name), **given)  # type: ignore[arg-type]  # typed by callers
    _check(cluster)
    if "min_nodes" in given:
        _check_minimum(service, cluster)
    await call(service.clusters.save, cluster)
    return await call(_state, service, cluster)


def _check(cluster: Cluster) -> None:
    if not NAME.fullmatch(cluster.name) or is_twin(cluster.name):
        raise BadInput(
            f"invalid cluster name `{cluster.name}`",
            hint="use lower-case letters, digits and `-`",
            cause=Cause.NAME_INVALID,
        )
    if not 1 <= cluster.max_nodes <= MOST_NODES:
        raise BadInput(
            f"invalid maximum of {cluster.max_nodes} nodes",
            hint=f"use 1 to {MOST_NODES}: `--max 4`",
            cause=Cause.CLUSTER_LIMITS,
        )
    if not 0 <= cluster.min_nodes <= cluster.max_nodes:
        hint = f"use 0 to {cluster.max_nodes}, or raise the maximum with `--max {cluster.min_nodes}`"
        raise BadInput(
            f"invalid minimum of {cluster.min_nodes} nodes: the maximum is {cluster.max_nodes}",
            hint=hint,
            cause=Cause.CLUSTER_LIMITS,
        )
    if not 0 <= cluster.idle_s <= 86_400 * 30:
        raise BadInput(
            f"invalid idle time of {cluster.idle_s:g} s",
            hint="use up to 30 days, such as `--idle 10m`",
            cause=Cause.CLUSTER_LIMITS,
        )


def _check_minimum(service: Service, cluster: Cluster) -> None:
    provider = service.providers.get(cluster.provider)
    if cluster.min_nodes and provider and not provider.features.warm:
        raise BadInput(
            f"provider `{cluster.provider}` keeps no idle nodes: a new one takes no time to start",
            hint="leave out `--min`, or use `--min 0`",
            cause=Cause.NO_IDLE_NODES,
        )


def _check_provider(service: Service, cluster: Cluster) -> None:
    """Its size, place and settings exist."""
    provider = service.providers.get(cluster.provider)
    if provider is None:
        near = nearest(cluster.provider, service.providers)
        hint = f"did you mean `{near}`?" if near else f"installed providers: {', '.join(service.providers)}"
        raise BadInput(f"unknown provider `{cluster.provider}`", hint=hint, cause=Cause.NO_SUCH_PROVIDER)
    if cluster.name in service.providers:
        raise BadInput(
            f"`{cluster.name}` is the name of a provider", hint="choose another name", cause=Cause.NAME_IN_USE
        )
    _check_minimum(service, cluster)
    if cluster.spot and not provider.features.spot:
        raise BadInput(
            f"provider `{cluster.provider}` has no spot machines", hint="leave out `--spot`", cause=Cause.NO_SPOT
        )
    offers = provider.offers(Need(spot=cluster.spot, size=cluster.size, region=cluster.region, pool=cluster.pool))
    if not offers:
        what = f"size `{cluster.size}`" if cluster.size else "machines"
        where = f" in `{cluster.region}`" if cluster.region else ""
        raise BadInput(
            f"provider `{cluster.provider}` has no {what}{where}", hint="stoker plan shows what is available"
        )
    if unready := next((one.unready for one in offers if one.unready), ""):
        raise NotSetUp(unready, hint="set it up first: docs/guides/first-cloud-run.md")


def _state(service: Service, cluster: Cluster) -> ClusterState:
    now, runs = service.clock.now(), [run for run in service.ledger.open if run.cluster == cluster.name]
    paid = {run.id: run for run in service.database.paid_runs() if run.cluster == cluster.name}
    paid |= {run.id: run for run in runs}
    idle = [spell for run in paid.values() for spell in run.idle]
    seconds = sum(((one.until or now) - one.since).total_seconds() for one in idle)
    return ClusterState(
        cluster,
        busy_nodes=busy(runs)[cluster.name],
        idle_nodes=len(idle_nodes(runs, cluster.name)),
        running=tuple(run.name for run in runs if run.state in (RunState.STARTING, RunState.RUNNING)),
        waiting=tuple(turn.name for turn in service.reconciler.queue() if turn.on == cluster.name),
        idle_hours=seconds / 3600,
        idle_usd=sum((meter.cost(one, now) for one in idle), Decimal(0)),
        runs_usd=sum((_cost(run, service) for run in paid.values()), Decimal(0)),
    )


def _cost(run: Run, service: Service) -> Decimal:
    return meter.spent(run, service.clock.now())
