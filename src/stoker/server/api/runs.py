"""What clients ask about one run: its state, logs, metrics, results, and commands on its node. Runs: submit, list,
show, wait for, cancel, remove."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from fastapi import APIRouter, Query, Request, Response

from stoker.engine import decision, showing
from stoker.engine.decision import Decision
from stoker.engine.queue.placement import queue
from stoker.errors import (
    BadInput,
    Conflict,
    JobInvalid,
    NotFound,
    NotSetUp,
    Problem,
    StoreDenied,
    StoreUnavailable,
)
from stoker.model.cause import Cause
from stoker.model.job.job import Job
from stoker.model.job.trials import sample
from stoker.model.node import Offer, Pool
from stoker.model.orders import DataOrder
from stoker.model.run.run import Event, Run, RunState, Start, Submission, Turn
from stoker.server.admission import (
    admit,
    check_software,
    check_terminal,
    engine_notes,
    no_effect,
    to_store,
    width_note,
)
from stoker.server.api.answers import MOST_COUNTED, OUTSIDE, answer, gives, service_of, takes
from stoker.server.api.requests import body
from stoker.server.inputs import InputRequest, Pinned, kept_url, pin
from stoker.server.rounds.outside import call
from stoker.server.rounds.reports import agent_events, told_once
from stoker.server.service import Service

router = APIRouter(tags=["runs"])
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,78}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class PlanRequest:
    job: Job
    person: str = ""  # who pays for it, where administrators set limits
    locked: bool = True  # the file that `environment` names, as exact versions


@dataclass(frozen=True, slots=True)
class EvictRequest:
    notice_s: float = 30.0
    withdraw: bool = False


_PLAN = {
    "offer": Offer,
    "free": int | None,
    "queued_ahead": int,
    "alone": str,
    "notes": tuple[str, ...],
    "inputs": Mapping[str, DataOrder],
    "to_store": tuple[str, ...],
}
_PAGE = {"runs": tuple[Run, ...], "next": str | None}


@router.post("/plan", openapi_extra=takes(PlanRequest), responses=gives(_PLAN, 404, *OUTSIDE))
async def plan(request: Request) -> Response:
    """What a submission of this job would do. Costs and changes nothing."""
    service = service_of(request)
    asked = await body(request, PlanRequest)
    check_search(asked.job)
    job, cluster = await call(service.clusters.placed, sample(asked.job))
    pool = cluster.pool if cluster else None
    offer = await call(lambda: admit(job, service.providers, data_follows=True, pool=pool))
    provider = service.providers[job.on]
    if cluster:
        slots = cluster.max_nodes if offer.slots is None else min(cluster.max_nodes, offer.slots)
        offer = replace(offer, slots=slots)
    under_way = [run for run in service.ledger.open if run.place == asked.job.on]
    busy = sum(run.width for run in under_way if run.state in (RunState.STARTING, RunState.RUNNING))
    waiting = len(queue(under_way))
    free = None if offer.slots is None else max(offer.slots - busy, 0)
    notes = [*([f"{offer.unready}: these are list prices"] if offer.unready else []), *no_effect(job, provider)]
    notes += width_note(job, free)
    check_software(job, provider, locked=asked.locked)
    notes += await call(engine_notes, job, provider, pool)
    if cluster and cluster.paused:
        notes.append(f"cluster `{cluster.name}` is paused: the run waits until `stoker cluster resume {cluster.name}`")
    inputs = (await call(pinned_inputs, service, job, "", service.stores.workspace.name, {})).inputs
    told = showing.when_alone(job, provider.features, job.budget, limits=await call(service.limits.over, asked.person))
    found = {"offer": offer, "free": free, "queued_ahead": waiting, "alone": told, "notes": notes, "inputs": inputs}
    return answer({**found, "to_store": to_store(job, provider)})


@router.post("/runs", openapi_extra=takes(Submission), responses=gives(Run, 404, *OUTSIDE))
async def submit(request: Request) -> Response:
    service = service_of(request)
    run = await accept(service, await body(request, Submission))
    return answer(await service.reconciler.live(run))


async def accept(service: Service, submission: Submission, *, warms: bool = False) -> Run:
    """Checks, pins and saves it. `warms`: the server submits it itself, to start nodes of a cluster."""
    check_search(submission.job)
    if submission.job.matrix:
        raise BadInput("a job with a `matrix` is a sweep, not a run", hint="submit it to /v1/sweeps")
    checked = await check(service, submission)
    async with arriving(service, checked):
        run = await _taken_in(service, checked, warms=warms)
    service.reconciler.wake()
    return run


def check_search(job: Job) -> None:
    """Only the trials of a sweep have the search of their sweep without its matrix."""
    if job.search and not job.matrix:
        raise JobInvalid([Problem("search", "no `matrix`", "a `matrix` with the trials to search")])


@dataclass(frozen=True, slots=True)
class CheckedSubmission:
    """A submission that can run: its job as its cluster runs it, and the name of its store."""

    submission: Submission
    store: str
    pool: Pool | None = None


async def check(service: Service, submission: Submission) -> CheckedSubmission:
    """Raises the error that a run of this submission would meet."""
    job, cluster = await call(service.clusters.placed, submission.job)
    submission, pool = replace(submission, job=job), cluster.pool if cluster else None
    offer = await call(lambda: admit(job, service.providers, pool=pool))
    await call(engine_notes, job, service.providers[job.on], pool)
    check_software(job, service.providers[job.on], locked=bool(submission.lock))
    if submission.terminal:
        check_terminal(submission.job, submission.terminal, service.providers)
    if offer.unready:
        raise NotSetUp(offer.unready, hint="set it up first: docs/guides/first-cloud-run.md")
    replace(submission.job, env={**submission.here, **submission.job.env})  # the orders for a node must be valid
    if submission.name and not _NAME.fullmatch(submission.name):
        raise BadInput(
            f"invalid run name `{submission.name}`",
            hint="use lower-case letters, digits, `-`, `_`, `.`",
            cause=Cause.NAME_INVALID,
        )
    store = service.stores.named(submission.store).name if submission.store else service.stores.workspace.name
    if not service.providers[submission.job.on].features.shares_files:
        submission = replace(submission, here={})
    return CheckedSubmission(submission, store, pool)


@asynccontextmanager
async def arriving(service: Service, checked: CheckedSubmission) -> AsyncIterator[None]:
    """Protects the code of a submission in its store until a saved run refers to it."""
    store, snapshot = checked.store, checked.submission.snapshot
    await call(service.arrivals.begin, store, snapshot)
    try:
        if not await call(service.shelves.fill, store, snapshot):
            raise NotFound(f"the store has no snapshot `{snapshot}`", hint="submit again", cause=Cause.NO_SUCH_SNAPSHOT)
        yield
        service.arrivals.arrived(snapshot)
    finally:
        service.arrivals.end(snapshot)


async def _taken_in(service: Service, checked: CheckedSubmission, *, warms: bool) -> Run:
    submission, store = checked.submission, checked.store
    now = service.clock.now()
    start = await _start(service, submission)
    if start and submission.resumes and not submission.name:
        submission = replace(submission, name=await _next_name(service, start.name))
    run = replace(new_run(submission, store, now), start=start, pool=checked.pool, warms=warms)
    pinned = await call(pinned_inputs, service, submission.job, run.id, store, submission.pins)
    run = replace(run, inputs=pinned.inputs)
    await call(service.accesses.check, run)
    for key, listing in pinned.listings.items():
        await call((await service.stores.reach(store)).put, key, listing)
    service.vault.keep(run.id, submission.secrets)
    added = await service.ledger.add(run, submission.key, [Event(now, "submitted", _submitted_text(submission))])
    if added.id != run.id:
        service.vault.forget(run.id)
        for key in pinned.listings:
            await call((await service.stores.reach(store)).delete, key)
    return added


@router.get("/runs", responses=gives(_PAGE))
async def page(
    request: Request,
    limit: int = Query(20, ge=1, le=1000),
    before: str = "",
    experiment: str = "",
    state: str = "",
    folded: bool = False,
) -> Response:
    """Newest first; pass `next` as `before` for the next page; it is null at the end. `folded` omits trials of sweeps
    that wait."""
    if state and state != "active" and state not in set(RunState):
        raise BadInput(f"unknown state `{state}`", hint="active, " + ", ".join(RunState))
    service = service_of(request)
    runs = await call(lambda: service.database.page(limit, before, experiment, state, folded=folded))
    shown = {run["id"] for run in runs}
    live = {run.id: await service.reconciler.live(run) for run in service.ledger.open if run.id in shown}
    rows = [replace(live[run["id"]], packages={}, system={}) if run["id"] in live else run for run in runs]
    return answer({"runs": rows, "next": runs[-1]["id"] if len(runs) == limit else None})


@router.get("/queue", responses=gives({"turns": tuple[Turn, ...]}))
async def waiting(request: Request) -> Response:
    """The waiting runs, place by place in starting order: what each waits for, and when it will likely start."""
    return answer({"turns": service_of(request).reconciler.queue()})


@router.get("/runs/{name}", responses=gives(Run, 404))
async def show(
    request: Request,
    name: str,
    newer_than: int = Query(-1, ge=-1, le=MOST_COUNTED),
    wait_s: float = Query(0.0, ge=0, le=60),
) -> Response:
    service = service_of(request)
    ledger = service.ledger
    run = await ledger.wait(name, newer_than, wait_s) if wait_s else await ledger.find(name)
    return answer(await service.reconciler.live(run))


@router.get("/runs/{name}/events", responses=gives({"events": tuple[Event, ...]}, 404, *OUTSIDE))
async def events(request: Request, name: str) -> Response:
    """The server's and the agents' events as one timeline."""
    service = service_of(request)
    run = await service.ledger.find(name)
    found = await call(service.database.events, run.id)
    try:
        for attempt in run.attempts:
            store = await service.stores.reach(run.store)
            found += await call(agent_events, store, run.id, attempt, service.clock.now())
    except (StoreDenied, StoreUnavailable) as error:  # show what the server knows nevertheless
        found.append(Event(service.clock.now(), "store-unavailable", f"the rest cannot be read now: {error.message}"))
    return answer({"events": told_once(sorted(found, key=lambda event: event.at))})


@router.post("/runs/{name}/cancel", responses=gives(Run, 404, 409))
async def cancel(request: Request, name: str) -> Response:
    service = service_of(request)
    now = service.clock.now()

    def wish(run: Run) -> Decision:
        if run.state.ended:
            raise Conflict(f"`{name}` has ended: {run.state}", hint=f"stoker show {name}", cause=Cause.RUN_ENDED)
        return decision.cancelled(run, now)

    run = await service.ledger.change(name, wish)
    service.reconciler.wake()
    return answer(run)


@router.post("/runs/{name}/evict", openapi_extra=takes(EvictRequest), responses=gives(Run, 404, 409))
async def evict(request: Request, name: str) -> Response:
    """A drill: the run's node is evicted after the notice, as a cloud would."""
    service = service_of(request)
    asked = await body(request, EvictRequest)
    now = service.clock.now()
    if not 0 <= asked.notice_s <= 3600:
        raise BadInput(f"invalid notice of {asked.notice_s:g} s", hint="use 0 to 3600 seconds")
    run = await service.ledger.change(
        name,
        lambda seen: decision.withdraw(seen, now) if asked.withdraw else decision.evict(seen, asked.notice_s, now),
    )
    service.reconciler.wake()
    return answer(run)


@router.delete("/runs/{name}", responses=gives({"removed": str}, 404, *OUTSIDE))
async def remove(request: Request, name: str) -> Response:
    """An ended run, its files, and the code that only it used."""
    await service_of(request).removals.remove([name])
    return answer({"removed": name})


async def _start(service: Service, submission: Submission) -> Start | None:
    """What the run starts from. Raises Conflict if that run is active, or there is nothing to resume."""
    if not submission.start_from:
        return None
    old = await service.ledger.find(submission.start_from)
    if not old.state.ended:
        raise Conflict(
            f"`{old.name}` is {old.state}", hint=f"cancel it first: `stoker cancel {old.name}`", cause=Cause.RUN_ACTIVE
        )
    if submission.resumes and old.state is RunState.SUCCEEDED:
        again = f"continue its training: `stoker rerun {old.name} --from-checkpoint --set …`"
        raise Conflict(f"`{old.name}` has succeeded: there is nothing to resume", hint=again, cause=Cause.RUN_SUCCEEDED)
    return await call(service.heritage.find, old, submission.job)


async def _next_name(service: Service, name: str) -> str:
    """`ants-7-r2` for `ants-7`, and `ants-7-r3` for that."""
    root = re.sub(r"-r[0-9]+\Z", "", name)
    number = 2
    while True:
        try:
            await service.ledger.find(f"{root}-r{number}")
        except NotFound:
            return f"{root}-r{number}"
        number += 1


def pinned_inputs(service: Service, job: Job, run_id: str, store: str, pins: Mapping[str, str]) -> Pinned:
    features = service.providers[job.on].features
    reaches = features.shares_files or features.carries_folders
    kept = partial(kept_url, providers=service.providers, stores=service.stores, now=service.clock.now())
    asked = InputRequest(job, run_id, store, pins, reaches, kept)
    return pin(asked, service.datasets, service.stores)


def new_run(submission: Submission, store: str, now: datetime) -> Run:
    """A run has everything of its submission except the secrets, the key and the requested name."""
    shared = Run.__dataclass_fields__.keys() & Submission.__dataclass_fields__.keys()
    given = {name: getattr(submission, name) for name in shared}
    # Ids sort by the time of submission, and need no central counter.
    id = f"{int(now.timestamp() * 1000):012x}{os.urandom(4).hex()}"
    made = {"id": id, "number": 0, "submitted_at": now, "store": store, "budget": submission.job.budget}
    return Run(**{**given, **made})


def _submitted_text(submission: Submission) -> str:
    by = f" by {submission.person}" if submission.person else ""
    start = submission.start_from
    again = f" as a rerun of {submission.rerun_of}" if submission.rerun_of else ""
    if start:
        again = f" to resume {start}" if submission.resumes else again
        again += ", from its last checkpoint"
    return f"submitted{by}{again}"
