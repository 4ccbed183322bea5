"""Budgets: what may be spent at a scope, and what the twin's own bill says was."""

from __future__ import annotations

from typing import Any

from stoker.twin.arm.requests.ask import Answer, Ask, needed, page, route
from stoker.twin.market import prices
from stoker.twin.refusal import invalid, not_found
from stoker.twin.state import Cloud, Resource

BUDGETS = "Microsoft.Consumption/budgets"


@route("PUT", BUDGETS)
def put(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    for word in ("amount", "category", "timeGrain", "timePeriod"):
        needed(ask.body, "properties", word)
    begins = str(needed(ask.body, "properties", "timePeriod", "startDate"))
    if begins[8:10] != "01":
        raise invalid(f"The start date '{begins}' of a budget must be the first day of a month.", "400")
    there = cloud.find(ask.id)
    budget = Resource(ask.id, {"properties": dict(ask.body["properties"])}, there.created_at if there else ask.now)
    cloud = cloud.put(budget)
    return cloud, Answer(200 if there else 201, _told(cloud, ask, budget))


@route("GET", BUDGETS)
def get(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    budget = cloud.find(ask.id)
    if budget is None:
        raise not_found(BUDGETS, ask.target.name, ask.target.group)
    return cloud, Answer(200, _told(cloud, ask, budget))


@route("GET", "Microsoft.Consumption", "budgets")
def list_all(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    here = [one for one in cloud.all(BUDGETS) if one.target.scope.lower() == ask.target.scope.lower()]
    return cloud, page(ask, [_told(cloud, ask, one) for one in here])


@route("DELETE", BUDGETS)
def delete(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    return cloud.drop(ask.id), Answer(200 if cloud.find(ask.id) else 204)


def _told(cloud: Cloud, ask: Ask, budget: Resource) -> dict[str, Any]:
    """With what was spent since the twin began; it does not keep months apart."""
    scope = budget.target.scope.lower() + "/"
    charges = [charge for charge in cloud.charges if charge.resource.lower().startswith(scope)]
    spent = round(sum(prices.usd(cloud, charge, ask.now) for charge in charges), 6)
    return budget.having(currentSpend={"amount": spent, "unit": "USD"}).answer()
