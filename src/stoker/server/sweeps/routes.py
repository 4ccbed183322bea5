"""Sweeps: submit, list, show, extend, retry the failed trials, cancel the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal

from fastapi import APIRouter, Request, Response

from stoker.engine.money import meter
from stoker.engine.sweeps.searching import ladder
from stoker.errors import BadInput
from stoker.model.job.fields import Problems
from stoker.model.job.job import Job
from stoker.model.job.values import Money
from stoker.model.run.run import Submission
from stoker.model.run.sweep import Sweep, SweepState
from stoker.server.api.answers import OUTSIDE, answer, gives, service_of, takes
from stoker.server.api.requests import body
from stoker.server.rounds.outside import call
from stoker.server.service import Service
from stoker.server.sweeps import taking

router = APIRouter(tags=["sweeps"])


@dataclass(frozen=True, slots=True)
class RetryRequest:
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class SweepBudget:
    usd: str | None


@dataclass(frozen=True, slots=True)
class ExtendRequest:
    job: Job  # with the matrix of the trials that the sweep is to have
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


@router.post("/sweeps", openapi_extra=takes(Submission), responses=gives(SweepState, 404, *OUTSIDE))
async def submit(request: Request) -> Response:
    """All trials of a job with a `matrix`, in one transaction."""
    service = service_of(request)
    sweep = await taking.take(service, await body(request, Submission))
    return answer(await state(service, sweep))


@router.get("/sweeps", responses=gives({"sweeps": tuple[SweepState, ...]}))
async def listed(request: Request) -> Response:
    """Newest first."""
    service = service_of(request)
    return answer({"sweeps": [await state(service, one) for one in reversed(service.sweeps.all)]})


@router.get("/sweeps/{name}", responses=gives(SweepState, 404))
async def show(request: Request, name: str) -> Response:
    """By its name; an experiment's name is its newest sweep, `last` the newest of all."""
    service = service_of(request)
    return answer(await state(service, service.sweeps.named(name)))


@router.post("/sweeps/{name}/budget", openapi_extra=takes(SweepBudget), responses=gives(SweepState, 404))
async def budget(request: Request, name: str) -> Response:
    """What all trials together may cost; null: no budget."""
    service = service_of(request)
    asked = await body(request, SweepBudget)
    usd = read_amount(asked.usd)
    sweep = await taking.set_budget(service, service.sweeps.named(name), usd)
    return answer(await state(service, sweep))


def read_amount(text: str | None) -> Decimal | None:
    try:
        return None if text is None else Money().read(text, "usd")
    except Problems as error:
        raise BadInput(f"found `{text}`, expected {Money().expected}") from error


@router.post("/sweeps/{name}/cancel", responses=gives({"cancelled": int}, 404))
async def cancel(request: Request, name: str) -> Response:
    """Every trial that has not ended."""
    service = service_of(request)
    return answer({"cancelled": await taking.cancel(service, service.sweeps.named(name))})


@router.post(
    "/sweeps/{name}/retry",
    openapi_extra=takes(RetryRequest),
    responses=gives({"runs": tuple[str, ...]}, 404, *OUTSIDE),
)
async def retry(request: Request, name: str) -> Response:
    """A new run for each trial whose newest run has failed."""
    service = service_of(request)
    asked = await body(request, RetryRequest)
    return answer({"runs": await taking.retry(service, service.sweeps.named(name), asked.secrets)})


@router.post("/sweeps/{name}/extend", openapi_extra=takes(ExtendRequest), responses=gives(SweepState, 404, *OUTSIDE))
async def extend(request: Request, name: str) -> Response:
    """The trials of the job's matrix that the sweep does not have yet."""
    service = service_of(request)
    asked = await body(request, ExtendRequest)
    sweep = await taking.extend(service, service.sweeps.named(name), asked.job, asked.secrets)
    return answer(await state(service, sweep))


async def state(service: Service, sweep: Sweep) -> SweepState:
    rows = await call(service.sweeps.table.trials, sweep.id)
    states = Counter(row.state for row in taking.newest(rows))
    now = service.clock.now()
    live = (run for run in service.ledger.open if run.trial and run.trial.sweep == sweep.id)
    usd = sum((meter.spent(run, now) for run in live), service.sweeps.past(sweep.id).usd)
    first, last = (rows[0].name, rows[-1].name) if rows else ("", "")
    bare = replace(sweep, submission=replace(sweep.submission, packages={}))
    search = sweep.job.search
    runs = await call(service.sweeps.table.runs, sweep.id) if search and search.rungs else []
    rungs = tuple(ladder(search, runs)) if search else ()
    paused = sum(run.trial is not None and run.trial.paused for run in runs if not run.state.ended)
    trouble = service.sweeps.trouble.get(sweep.id, "")
    return SweepState(bare, dict(states), first, last, usd, len(rows), rungs, paused, trouble)
