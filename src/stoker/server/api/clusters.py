"""Clusters: create, list, show, resize, pause, resume, remove."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal

from fastapi import APIRouter, Request, Response

from stoker.engine.clusters import busy, idle_nodes
from stoker.engine.money import meter
from stoker.engine.offers.placement import queue
from stoker.errors import BadInput, Conflict, NotSetUp
from stoker.model.cluster import IDLE_S, MOST_NODES, NAME, Cluster, ClusterState
from stoker.model.job.fields import nearest
from stoker.model.node.node import Need
from stoker.model.run.run import Run, RunState
from stoker.model.workspace.store import is_twin
from stoker.server.api.http.reading import body
from stoker.server.api.http.shape import OUTSIDE, answer, gives, service_of, takes
from stoker.server.rounds.outside import call
from stoker.server.service import Service

router = APIRouter(tags=["clusters"])
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


@router.post("/clusters", openapi_extra=takes(ClusterRequest), responses=gives(ClusterState, 404, 409, *OUTSIDE))
async def create(request: Request) -> Response:
    """Starts nothing: nodes come with the first run."""
    service = service_of(request)
    asked = await body(request, ClusterRequest)
    given = {name: getattr(asked, name) for name in ClusterRequest.__dataclass_fields__}
    cluster = Cluster(**given, created_at=service.clock.now())
    _check(cluster)
    await call(_check_provider, service, cluster)
    await call(service.clusters.add, cluster)
    return answer(await call(_state, service, cluster))


@router.get("/clusters", responses=gives(_CLUSTERS))
async def all_of_them(request: Request) -> Response:
    service = service_of(request)
    return answer({"clusters": [await call(_state, service, one) for one in await call(lambda: service.clusters.all)]})


@router.get("/clusters/{name}", responses=gives(ClusterState, 404))
async def show(request: Request, name: str) -> Response:
    """With what its idle time has cost its owner."""
    service = service_of(request)
    return answer(await call(_state, service, await call(service.clusters.named, name)))


@router.post("/clusters/{name}/resize", openapi_extra=takes(ResizeRequest), responses=gives(ClusterState, 404))
async def resize(request: Request, name: str) -> Response:
    """Runs keep their nodes; idle nodes beyond the new size are released."""
    asked = await body(request, ResizeRequest)
    service = service_of(request)
    given = {one: getattr(asked, one) for one in ResizeRequest.__dataclass_fields__ if getattr(asked, one) is not None}
    return answer(await _changed(service, name, **given))


@router.post("/clusters/{name}/pause", responses=gives(ClusterState, 404))
async def pause(request: Request, name: str) -> Response:
    """Nothing starts, and idle nodes are released. Runs that have nodes end first: cancel those that must not."""
    return answer(await _changed(service_of(request), name, paused=True))


@router.post("/clusters/{name}/resume", responses=gives(ClusterState, 404))
async def resume(request: Request, name: str) -> Response:
    return answer(await _changed(service_of(request), name, paused=False))


@router.delete("/clusters/{name}", responses=gives({"removed": str}, 404, 409))
async def remove(request: Request, name: str) -> Response:
    """Refused while a run uses it. Its idle nodes are released."""
    service = service_of(request)
    await call(service.clusters.named, name)
    using = [run.name for run in service.ledger.open if run.cluster == name and not run.state.ended]
    if using:
        more = f" and {len(using) - 1} more" if len(using) > 1 else ""
        raise Conflict(f"`{using[0]}`{more} uses cluster `{name}`", hint=f"stoker cancel {' '.join(using)}")
    await call(service.clusters.remove, name)
    return answer({"removed": name})


async def _changed(service: Service, name: str, **given: object) -> ClusterState:
    cluster = replace(await call(service.clusters.named, name), **given)  # type: ignore[arg-type]  # typed by callers
    _check(cluster)
    await call(service.clusters.save, cluster)
    return await call(_state, service, cluster)


def _check(cluster: Cluster) -> None:
    if not NAME.fullmatch(cluster.name) or is_twin(cluster.name):
        raise BadInput(f"invalid cluster name `{cluster.name}`", hint="use lower-case letters, digits and `-`")
    if not 1 <= cluster.max_nodes <= MOST_NODES:
        raise BadInput(f"invalid maximum of {cluster.max_nodes} nodes", hint=f"use 1 to {MOST_NODES}: `--max 4`")
    if not 0 <= cluster.min_nodes <= cluster.max_nodes:
        hint = f"use 0 to {cluster.max_nodes}, or raise the maximum with `--max {cluster.min_nodes}`"
        raise BadInput(f"invalid minimum of {cluster.min_nodes} nodes: the maximum is {cluster.max_nodes}", hint=hint)
    if not 0 <= cluster.idle_s <= 86_400 * 30:
        raise BadInput(f"invalid idle time of {cluster.idle_s:g} s", hint="use up to 30 days, such as `--idle 10m`")


def _check_provider(service: Service, cluster: Cluster) -> None:
    """Its size, place and settings exist."""
    provider = service.providers.get(cluster.provider)
    if provider is None:
        near = nearest(cluster.provider, service.providers)
        hint = f"did you mean `{near}`?" if near else f"installed providers: {', '.join(service.providers)}"
        raise BadInput(f"unknown provider `{cluster.provider}`", hint=hint)
    if cluster.name in service.providers:
        raise BadInput(f"`{cluster.name}` is the name of a provider", hint="choose another name")
    if cluster.spot and not provider.features.spot:
        raise BadInput(f"provider `{cluster.provider}` has no spot machines", hint="leave out `--spot`")
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
        waiting=tuple(run.name for run in queue(runs)),
        idle_hours=seconds / 3600,
        idle_usd=sum((meter.cost(one, now) for one in idle), Decimal(0)),
        runs_usd=sum((_cost(run, service) for run in paid.values()), Decimal(0)),
    )


def _cost(run: Run, service: Service) -> Decimal:
    return meter.spent(run, service.clock.now())
