"""What may be spent: the budget of a run, and the limits that administrators set."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from fastapi import APIRouter, Request, Response

from stoker.engine.money import fuse, meter
from stoker.engine.money.limits import period, used
from stoker.errors import BadInput, NotFound
from stoker.model.job.fields import Money, Problems
from stoker.model.run.money import BudgetState, Limit, LimitState, Period
from stoker.model.run.run import Run
from stoker.server.api.reading import body
from stoker.server.api.shape import answer, gives, service_of, takes
from stoker.server.rounds.outside import call
from stoker.server.service import Service

router = APIRouter(tags=["budgets"])


@dataclass(frozen=True, slots=True)
class BudgetRequest:
    usd: str | None = None  # null: whatever it costs


@dataclass(frozen=True, slots=True)
class LimitRequest:
    period: Period
    usd: str
    person: str = ""  # empty: everybody together


_LIMITS = {"limits": tuple[LimitState, ...]}


@router.post("/runs/{name}/budget", openapi_extra=takes(BudgetRequest), responses=gives(Run, 404, 409))
async def set_budget(request: Request, name: str) -> Response:
    """What the run may cost in all. A paused run goes on if that is enough; one that has cost more is paused."""
    service = service_of(request)
    asked = await body(request, BudgetRequest)
    usd = None if asked.usd is None else _amount(asked.usd)
    now = service.clock.now()
    run = await service.ledger.change(name, lambda seen: fuse.set_budget(seen, usd, now))
    service.reconciler.wake()
    return answer(run)


@router.get("/runs/{name}/budget", responses=gives(BudgetState, 404))
async def budget(request: Request, name: str) -> Response:
    """What the run may cost, what it has cost until now, and what is held back to stop it in good order."""
    service = service_of(request)
    run = await service.ledger.find(name)
    spent = meter.spent(run, service.clock.now())
    return answer(BudgetState(run.budget, spent, meter.rate(run), fuse.reserve(run)))


@router.get("/limits", responses=gives(_LIMITS))
async def limits(request: Request) -> Response:
    """Every limit, with what is used of it in the period that goes on now."""
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
        raise NotFound(f"there is no limit a {of} for {whose}", hint="see them with `stoker admin limit`")
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
        raise BadInput(f"`{text}` is no amount in dollars, such as 5 or 0.50", hint=hint) from None
