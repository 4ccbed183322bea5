"""The price of a size at a moment: fixed on demand, changing with the weather on spot."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

from stoker.twin.market import catalog
from stoker.twin.state import Charge, CloudState
from stoker.twin.time.weather import draw

STEP_S = 300.0  # how long a spot price stays the same
_MONTH_S = 730 * 3600.0


def spot_usd(cloud: CloudState, size: catalog.TwinSize, region: str, now: float) -> float:
    """Per hour. A price ordered by a test goes before the weather's."""
    orders = [
        order
        for order in cloud.prices
        if order.at <= now and (order.size.lower(), order.region) == (size.name.lower(), region)
    ]
    if orders and (ordered := orders[-1].usd_per_hour) is not None:
        return ordered
    usual = catalog.on_demand_usd(size, region) * size.spot_share
    return round(usual * (1 + cloud.weather.price_swing * _swing(cloud, size, region, now)), 6)


def _swing(cloud: CloudState, size: catalog.TwinSize, region: str, now: float) -> float:
    """Between -1 and 1: a slow and a fast wave per region and size, and some noise, as real prices seem to have."""
    step = int(now // STEP_S)
    key = (cloud.weather.seed, size.name, region)
    day = math.sin(2 * math.pi * (step * STEP_S / 86_400 + draw("day", *key)))
    hours = math.sin(2 * math.pi * (step * STEP_S / (7_200 + 7_200 * draw("length", *key)) + draw("hours", *key)))
    return 0.5 * day + 0.3 * hours + 0.2 * (2 * draw("noise", *key, step) - 1)


def usd_per_hour(cloud: CloudState, charge: Charge, now: float) -> float:
    """The current price of the charged resource."""
    if charge.meter in ("disk", "standard disk"):
        usd = catalog.disk_usd_per_month(float(charge.size), premium=charge.meter == "disk")
        return usd * 3600 / _MONTH_S
    if charge.meter == "address":
        return catalog.ADDRESS_USD_PER_HOUR
    size = catalog.SIZES[charge.size.lower()]
    if charge.meter == "spot":
        return spot_usd(cloud, size, charge.region, now)
    return catalog.on_demand_usd(size, charge.region)


def usd(cloud: CloudState, charge: Charge, now: float) -> float:
    """The amount of a charge, by the second, until now or its end."""
    until = now if charge.until is None else charge.until
    if charge.meter != "spot":
        return (until - charge.since) / 3600 * usd_per_hour(cloud, charge, now)
    total = 0.0
    for begin, end in _stretches(cloud, charge.since, until):
        total += (end - begin) / 3600 * usd_per_hour(cloud, charge, begin)
    return total


def _stretches(cloud: CloudState, since: float, until: float) -> list[tuple[float, float]]:
    """Intervals of one price each."""
    steps = range(int(since // STEP_S) + 1, int(until // STEP_S) + 1)
    changes = {step * STEP_S for step in steps} | {order.at for order in cloud.prices if since < order.at < until}
    edges = [since, *sorted(changes), until]
    return [(begin, end) for begin, end in pairwise(edges) if end > begin]


# The twin's own bill: when each resource was billed, and the amount.


def begin(cloud: CloudState, charge: Charge) -> CloudState:
    """A resource is billed from now on. No change where it is already."""
    if any(one.until is None and one.resource.lower() == charge.resource.lower() for one in cloud.charges):
        return cloud
    return replace(cloud, charges=(*cloud.charges, charge))


def end(cloud: CloudState, resource: str, now: float) -> CloudState:
    charges = tuple(
        replace(one, until=now) if one.until is None and one.resource.lower() == resource.lower() else one
        for one in cloud.charges
    )
    return replace(cloud, charges=charges)


def bill(cloud: CloudState, now: float) -> dict[str, Any]:
    """Every charge with its amount, the total, and the current price per hour."""
    lines = [
        {
            "resource": one.resource,
            "meter": one.meter,
            "size": one.size,
            "region": one.region,
            "since_s": round(one.since, 3),
            "until_s": None if one.until is None else round(one.until, 3),
            "usd": round(usd(cloud, one, now), 8),
        }
        for one in cloud.charges
    ]
    running = sum(usd_per_hour(cloud, one, now) for one in cloud.charges if one.until is None)
    total = round(sum(usd(cloud, one, now) for one in cloud.charges), 8)
    return {"now_s": round(now, 3), "usd": total, "usd_per_hour": round(running, 6), "charges": lines}
