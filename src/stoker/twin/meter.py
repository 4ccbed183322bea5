"""The twin's own bill: when each thing cost money, and how much that came to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stoker.twin import prices
from stoker.twin.state import Charge, Cloud


def begin(cloud: Cloud, charge: Charge) -> Cloud:
    """Something costs money from now on. Nothing changes where the same runs already."""
    if any(one.until is None and one.resource.lower() == charge.resource.lower() for one in cloud.charges):
        return cloud
    return replace(cloud, charges=(*cloud.charges, charge))


def end(cloud: Cloud, resource: str, now: float) -> Cloud:
    charges = tuple(
        replace(one, until=now) if one.until is None and one.resource.lower() == resource.lower() else one
        for one in cloud.charges
    )
    return replace(cloud, charges=charges)


def bill(cloud: Cloud, now: float) -> dict[str, Any]:
    """Every charge with what it comes to, the sum, and what the hour costs now."""
    lines = [
        {
            "resource": one.resource,
            "meter": one.meter,
            "size": one.size,
            "region": one.region,
            "since_s": round(one.since, 3),
            "until_s": None if one.until is None else round(one.until, 3),
            "usd": round(prices.usd(cloud, one, now), 8),
        }
        for one in cloud.charges
    ]
    running = sum(prices.usd_per_hour(cloud, one, now) for one in cloud.charges if one.until is None)
    total = round(sum(prices.usd(cloud, one, now) for one in cloud.charges), 8)
    return {"now_s": round(now, 3), "usd": total, "usd_per_hour": round(running, 6), "charges": lines}
