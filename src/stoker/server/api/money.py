"""Money: what a job would cost, what runs have cost, and where that went."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone

from fastapi import APIRouter, Query, Request, Response

from stoker.engine.money.costing import costs
from stoker.engine.money.forecast import forecast
from stoker.engine.money.receipt import receipt
from stoker.engine.offers.market import needs
from stoker.errors import BadInput, NotFound, StokerError
from stoker.model import wire
from stoker.model.job.job import Job
from stoker.model.node.node import NodeState
from stoker.model.run.forecast import Forecast
from stoker.model.run.money import By, Costs
from stoker.model.run.receipt import Receipt
from stoker.model.run.run import Attempt, Run
from stoker.server.admission import admit
from stoker.server.api.metrics import last_step
from stoker.server.api.reading import body
from stoker.server.api.shape import OUTSIDE, answer, gives, service_of, takes
from stoker.server.rounds.outside import call
from stoker.server.service import Service

router = APIRouter(tags=["money"])
_EARLIER = 20  # runs that a forecast looks back to


@dataclass(frozen=True, slots=True)
class ForecastRequest:
    job: Job
    currency: str = "USD"  # in which prices are quoted besides
    hours: float | None = None  # of work, where no earlier run has to tell; None: they do
    both: bool = False  # spot and on demand, unless the job rules spot out


@router.post("/forecast", openapi_extra=takes(ForecastRequest), responses=gives(Forecast, 404, *OUTSIDE))
async def expect(request: Request) -> Response:
    """Every offer that fits the job, and what to expect of it. Spends and changes nothing."""
    service = service_of(request)
    asked = await body(request, ForecastRequest)
    if not (asked.currency.isascii() and asked.currency.isalpha() and len(asked.currency) == 3):
        raise BadInput(f"`{asked.currency}` is no currency", hint="use a code such as EUR or GBP")
    admit(asked.job, service.providers, data_follows=True)
    provider = service.providers[asked.job.on]
    kinds = needs(asked.job)
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
    """What runs have cost. `since` is a time with its zone; `zone_min` says where the day begins, in minutes east of
    Greenwich."""
    if by not in set(By):
        raise BadInput(f"costs cannot be shown by `{by}`", hint=", ".join(By))
    service = service_of(request)
    runs = await call(service.database.paid_runs)
    if experiment:
        runs = [run for run in runs if run.experiment == experiment]
        if not runs and not await call(service.database.page, 1, "", experiment, ""):
            raise NotFound(f"there is no experiment `{experiment}`", hint="see all with `stoker ps -a`")
    zone = timezone(timedelta(minutes=zone_min))
    now = service.clock.now()
    return answer(costs(runs, By(by), now, since=_moment(since), zone=zone))


@router.get("/runs/{name}/receipt", responses=gives(Receipt, 404, *OUTSIDE))
async def of_run(request: Request, name: str, look: bool = False) -> Response:
    """Where the money and the time of a run went, so far where it goes on. With `look` its provider is asked what is
    there of it now."""
    service = service_of(request)
    run = await service.ledger.find(name)
    told = await call(_with_last_steps, service, await service.reconciler.live(run))
    made = receipt(told, service.clock.now())
    return answer(replace(made, left=await _left(service, run)) if look else made)


def _with_last_steps(service: Service, run: Run) -> Run:
    """A node that went without a last word has done more steps than its last report tells: they are in the store."""
    return replace(run, attempts=tuple(_with_last_step(service, run, attempt) for attempt in run.attempts))


def _with_last_step(service: Service, run: Run, attempt: Attempt) -> Attempt:
    if attempt.effort is None or attempt.outcome is not None or not attempt.state.over:
        return attempt
    try:
        step = last_step(service.stores.of(run), run.id, attempt.number, service.clock.now())
    except StokerError:  # then what was reported has to do
        return attempt
    known = [one for one in (attempt.effort.step, step) if one is not None]
    return replace(attempt, effort=replace(attempt.effort, step=max(known, default=None)))


async def _left(service: Service, run: Run) -> tuple[str, ...] | None:
    """None where nobody can be asked."""
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
            moment = moment.astimezone(UTC)  # which the first and the last days of the calendar do not have
    except (ValueError, OverflowError):
        raise BadInput(f"since: found `{text}`, expected a time such as 2026-01-31T14:00:00+00:00") from None
    if moment.tzinfo is None:
        raise BadInput(f"since: `{text}` names no time zone", hint="add +00:00")
    return moment
