"""Prices that come with the package, for when the list cannot be had. They are dated, and never taken for fresh."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from stoker.providers.azure.market.listing import Listing

FILE = Path(__file__).with_name("snapshot.json")


def regions() -> list[str]:
    return sorted(_told()["regions"])


def listing(region: str) -> Listing | None:
    """None for a region that is not in it."""
    told = _told()
    if region not in told["regions"]:
        return None
    return Listing.from_plain({**told["regions"][region], "as_of": told["as_of"], "currency": told["currency"]})


def disk_per_hour(size_gb: int) -> Decimal:
    """Where the list has none: in any region, about as much."""
    known = listing("eastus")
    price = known.disk_per_hour(size_gb) if known else None
    return price or Decimal(0)


@cache
def _told() -> dict[str, Any]:
    told: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return told
