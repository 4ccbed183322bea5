"""Budgets: the limit at a scope, and the spending from the twin's own bill."""

from __future__ import annotations

from typing import Any

from stoker.twin.arm.requests.ask import ArmAnswer, Ask, needed, page, route
from stoker.twin.market import prices
from stoker.twin.refusal import invalid, not_found
from stoker.twin.state import CloudState, Resource

BUDGETS = "Microsoft.Consumption/budgets"


@route("PUT", BUDGETS)
def put(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    for word in ("amount", "category", "timeGrain", "timePeriod"):
        needed(ask.body, "properties", word)
    begins = str(needed(ask.body, "properties", "timePeriod", "startDate"))
    if begins[8:10] != "01":
        raise invalid(f"The start date '{begins}' of a budget must be the first day of a month.", "400")
    there = cloud.find(ask.id)
    budget = Resource(ask.id, {"properties": dict(ask.body["properties"])}, there.created_at if there else ask.now)
    cloud = cloud.put(budget)
    return cloud, ArmAnswer(200 if there else 201, _told(cloud, ask, budget))


@route("GET", BUDGETS)
def get(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    budget = cloud.find(ask.id)
    if budget is None:
        raise not_found(BUDGETS, ask.target.name, ask.target.group)
    return cloud, ArmAnswer(200, _told(cloud, ask, budget))


@route("GET", "Microsoft.Consumption", "budgets")
def list_all(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    here = [one for one in cloud.all(BUDGETS) if one.target.scope.lower() == ask.target.scope.lower()]
    return cloud, page(ask, [_told(cloud, ask, one) for one in here])


@route("DELETE", BUDGETS)
def delete(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return cloud.drop(ask.id), ArmAnswer(200 if cloud.find(ask.id) else 204)


def _told(cloud: CloudState, ask: Ask, budget: Resource) -> dict[str, Any]:
    """With the spending since the twin was created; it does not distinguish months."""
    scope = budget.target.scope.lower() + "/"
    charges = [charge for charge in cloud.charges if charge.resource.lower().startswith(scope)]
    spent = round(sum(prices.usd(cloud, charge, ask.now) for charge in charges), 6)
    return budget.having(currentSpend={"amount": spent, "unit": "USD"}).answer()
