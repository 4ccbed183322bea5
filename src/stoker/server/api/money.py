"""Money: what a job would cost, what runs have cost, and what may be spent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal, InvalidOperation

from fastapi import APIRouter, Query, Request, Response

from stoker.engine.money import fuse, meter
from stoker.engine.money.forecast import forecast
from stoker.engine.money.receipt import receipt
from stoker.engine.money.spending import costs, period, used
from stoker.engine.offers.market import needs
from stoker.errors import BadInput, NotFound, StokerError
from stoker.model import wire
from stoker.model.cause import Cause
from stoker.model.job.fields import Problems
from stoker.model.job.job import Job
from stoker.model.job.values import Money
from stoker.model.node import NodeState
from stoker.model.run.money import BudgetState, By, Costs, Limit, LimitState, Period
from stoker.model.run.receipt import Forecast, Receipt
from stoker.model.run.run import Attempt, Run
from stoker.server.admission import admit
from stoker.server.api.answers import OUTSIDE, answer, gives, service_of, takes
from stoker.server.api.requests import body
from stoker.server.api.results import last_step
from stoker.server.rounds.outside import call
from stoker.server.service import Service

router = APIRouter(tags=["money"])
_EARLIER = 20  # runs that a forecast looks back to


@dataclass(frozen=True, slots=True)
class ForecastRequest:
    job: Job
    currency: str = "USD"  # additional currency for prices
    hours: float | None = None  # of work; None: estimated from earlier runs
    both: bool = False  # spot and on demand, unless the job excludes spot


@router.post("/forecast", openapi_extra=takes(ForecastRequest), responses=gives(Forecast, 404, *OUTSIDE))
async def expect(request: Request) -> Response:
    """Every offer that fits the job, and what to expect of it. Costs and changes nothing."""
    service = service_of(request)
    asked = await body(request, ForecastRequest)
    if not (asked.currency.isascii() and asked.currency.isalpha() and len(asked.currency) == 3):
        raise BadInput(f"unknown currency `{asked.currency}`", hint="use a code such as EUR or GBP")
    job, cluster = await call(service.clusters.placed, asked.job)
    pool = cluster.pool if cluster else None
    asked = replace(asked, job=job)
    admit(job, service.providers, data_follows=True, pool=pool)
    provider = service.providers[job.on]
    kinds = needs(job, pool)
    if asked.both and len(kinds) == 1 and asked.job.spot is not False:
        kinds.append(replace(kinds[0], spot=not kinds[0].spot))
    wanted = [replace(need, currency=asked.currency.upper()) for need in kinds]
    offers = [offer for need in wanted for offer in await call(provider.offers, need)]
    rows = await call(service.database.page, _EARLIER, "", asked.job.name, "")
    earlier = [wire.from_plain(Run, row) for row in rows]
    return answer(forecast(asked.job, offers, earlier, service.clock.now(), asked.hours))


@router.get("/costs", responses=gives(Costs, 404))
async def spending(
    request: Request,
    by: str = By.EXPERIMENT,
    since: str = "",
    experiment: str = "",
    zone_min: int = Query(0, ge=-1440, le=1440),
) -> Response:
    """What runs have cost. `since` is a time with its zone; `zone_min` is the time zone of days, in minutes east of
    Greenwich."""
    if by not in set(By):
        raise BadInput(f"costs cannot be grouped by `{by}`", hint=", ".join(By))
    service = service_of(request)
    runs = await call(service.database.paid_runs)
    if experiment:
        runs = [run for run in runs if run.experiment == experiment]
        if not runs and not await call(service.database.page, 1, "", experiment, ""):
            raise NotFound(
                f"experiment `{experiment}` not found",
                hint="list all runs with `stoker ps -a`",
                cause=Cause.NO_SUCH_EXPERIMENT,
            )
    zone = timezone(timedelta(minutes=zone_min))
    now = service.clock.now()
    return answer(costs(runs, By(by), now, since=_moment(since), zone=zone))


@router.get("/runs/{name}/receipt", responses=gives(Receipt, 404, *OUTSIDE))
async def of_run(request: Request, name: str, look: bool = False) -> Response:
    """How a run spent its money and time, so far if it is active. With `look` its provider is asked for its existing
    resources."""
    service = service_of(request)
    run = await service.ledger.find(name)
    told = await call(_with_last_steps, service, await service.reconciler.live(run))
    made = receipt(told, service.clock.now())
    return answer(replace(made, left=await _left(service, run)) if look else made)


def _with_last_steps(service: Service, run: Run) -> Run:
    """A node without a final report has done more steps than its last report says: they are in the store."""
    return replace(run, attempts=tuple(_with_last_step(service, run, attempt) for attempt in run.attempts))


def _with_last_step(service: Service, run: Run, attempt: Attempt) -> Attempt:
    if attempt.effort is None or attempt.outcome is not None or not attempt.state.over:
        return attempt
    try:
        step = last_step(service.stores.of(run), run.id, attempt.number, service.clock.now())
    except StokerError:  # then the report has to suffice
        return attempt
    known = [one for one in (attempt.effort.step, step) if one is not None]
    return replace(attempt, effort=replace(attempt.effort, step=max(known, default=None)))


async def _left(service: Service, run: Run) -> tuple[str, ...] | None:
    """None if no provider can be queried."""
    provider = service.providers.get(run.job.on)
    if provider is None:
        return None
    try:
        sights = await call(provider.look)
    except StokerError:
        return None
    mine = [sight for sight in sights if sight.key.startswith(f"{run.id}-")]
    there = [one for one in mine if one.resources or one.usd_per_hour or one.state is not NodeState.GONE]
    return tuple(resource for one in there for resource in one.resources or (f"node/{one.key}",))


def _moment(text: str) -> datetime | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC)  # fails on the first and last days of the calendar
    except (ValueError, OverflowError):
        raise BadInput(f"since: found `{text}`, expected a time such as 2026-01-31T14:00:00+00:00") from None
    if moment.tzinfo is None:
        raise BadInput(f"since: `{text}` has no time zone", hint="add +00:00")
    return moment


@dataclass(frozen=True, slots=True)
class BudgetRequest:
    usd: str | None = None  # null: no budget


@dataclass(frozen=True, slots=True)
class LimitRequest:
    period: Period
    usd: str
    person: str = ""  # empty: everybody together


_LIMITS = {"limits": tuple[LimitState, ...]}


@router.post("/runs/{name}/budget", openapi_extra=takes(BudgetRequest), responses=gives(Run, 404, 409))
async def set_budget(request: Request, name: str) -> Response:
    """The most that the run may cost in total. A paused run resumes if that is enough; one that has cost more
    pauses."""
    service = service_of(request)
    asked = await body(request, BudgetRequest)
    usd = None if asked.usd is None else _amount(asked.usd)
    now = service.clock.now()
    run = await service.ledger.change(name, lambda seen: fuse.set_budget(seen, usd, now))
    service.reconciler.wake()
    return answer(run)


@router.get("/runs/{name}/budget", responses=gives(BudgetState, 404))
async def budget(request: Request, name: str) -> Response:
    """What the run may cost, what it has cost so far, and what is reserved to stop it in time."""
    service = service_of(request)
    run = await service.ledger.find(name)
    spent = meter.spent(run, service.clock.now())
    return answer(BudgetState(run.budget, spent, meter.rate(run), fuse.reserve(run)))


@router.get("/limits", responses=gives(_LIMITS))
async def limits(request: Request) -> Response:
    """Every limit, with what is used of it in the current period."""
    service = service_of(request)
    return answer({"limits": await call(_states, service)})


@router.post("/limits", openapi_extra=takes(LimitRequest), responses=gives(_LIMITS))
async def set_limit(request: Request) -> Response:
    """Adds a limit, or replaces the one of the same person and period."""
    service = service_of(request)
    asked = await body(request, LimitRequest)
    await call(service.limits.save, Limit(asked.period, _amount(asked.usd), asked.person.strip()))
    return answer({"limits": await call(_states, service)})


@router.delete("/limits/{of}", responses=gives(_LIMITS, 404))
async def remove_limit(request: Request, of: Period, person: str = "") -> Response:
    service = service_of(request)
    if not await call(service.limits.remove, of, person):
        whose = f"`{person}`" if person else "everybody together"
        raise NotFound(
            f"no limit per {of} for {whose}", hint="list them with `stoker admin limit`", cause=Cause.NO_SUCH_LIMIT
        )
    return answer({"limits": await call(_states, service)})


def _states(service: Service) -> list[LimitState]:
    now, runs = service.clock.now(), service.ledger.open
    current = service.limits.current(now)
    return [
        LimitState(limit, used(limit, runs, current.past, now), period(limit.period, now)[1]) for limit in current.given
    ]


def _amount(text: str) -> Decimal:
    try:
        return Money().read(text, "usd")
    except (Problems, InvalidOperation):
        hint = "a shell reads `$5` as a name: write 5, or '$5'"
        raise BadInput(f"invalid amount `{text}`: expected dollars, such as 5 or 0.50", hint=hint) from None
