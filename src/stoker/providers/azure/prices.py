"""What an hour costs, from Azure's public price list. The list is asked once per region and kept for a while."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

from stoker.errors import ProviderFailed

KEEP_S = 3600.0
_TIMEOUT_S = 30.0
_MOST_PAGES = 200


@dataclass(frozen=True, slots=True)
class Price:
    usd_per_hour: Decimal
    spot: bool


class PriceList:
    """By region: size in lower case to its prices."""

    def __init__(self, url: str, ca_file: str = "") -> None:
        self._url = url
        self._ca_file = ca_file
        self._known: dict[str, tuple[float, dict[tuple[str, bool], Decimal]]] = {}

    def per_hour(self, region: str, size: str, *, spot: bool) -> Decimal | None:
        """None where the list has no such price. Raises ProviderFailed where it cannot be had."""
        return self._region(region).get((size.lower(), spot))

    def _region(self, region: str) -> dict[tuple[str, bool], Decimal]:
        read_at, prices = self._known.get(region, (-KEEP_S, {}))
        if time.monotonic() - read_at >= KEEP_S:
            prices = dict(_linux(self._items(region)))
            self._known[region] = (time.monotonic(), prices)
        return prices

    def _items(self, region: str) -> Iterator[dict[str, Any]]:
        asked = f"serviceName eq 'Virtual Machines' and armRegionName eq '{region}' and priceType eq 'Consumption'"
        url = f"{self._url}?{urlencode({'$filter': asked})}"
        for _ in range(_MOST_PAGES):
            page = self._get(url)
            yield from page.get("Items") or ()
            url = page.get("NextPageLink") or ""
            if not url:
                return

    def _get(self, url: str) -> dict[str, Any]:
        import ssl  # here, with the next, because most servers never ask for a price
        import urllib.request

        context = ssl.create_default_context(cafile=self._ca_file or None)
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S, context=context) as answer:
                page = json.load(answer)
        except (OSError, ValueError) as error:
            raise ProviderFailed(f"the price list cannot be had: {error}", hint="look at the network") from error
        return page if isinstance(page, dict) else {}


def _linux(items: Iterator[dict[str, Any]]) -> Iterator[tuple[tuple[str, bool], Decimal]]:
    """Windows costs more, and `Low Priority` is a kind of machine that is no longer sold."""
    for item in items:
        meter = str(item.get("meterName", ""))
        if "Windows" in str(item.get("productName", "")) or "Low Priority" in meter:
            continue
        price = Decimal(str(item.get("retailPrice", 0)))
        if price > 0 and item.get("unitOfMeasure", "1 Hour") == "1 Hour":
            yield (str(item.get("armSkuName", "")).lower(), "Spot" in meter), price
