"""The Retail Prices API: prices of sizes in the form of the public price list, page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from stoker.twin.market import catalog, prices
from stoker.twin.refusal import Refused
from stoker.twin.state import CloudState, name_uuid
from stoker.twin.web import odata
from stoker.twin.web.server import Response, WebRequest

_PAGE = 100


def answer(cloud: CloudState, request: WebRequest, now: float, wall: Callable[[float], datetime]) -> Response:
    if request.path.lower().rstrip("/") != "/api/retail/prices":
        return Response(404, {"Error": {"Code": "404", "Message": f"there is no {request.path}"}})
    currency = request.query.get("currencyCode", "USD").strip("'").upper()
    if currency not in catalog.CURRENCIES:
        return Response(400, {"Error": {"Code": "400", "Message": f"the twin has no prices in {currency}"}})
    text = request.query.get("$filter", "")
    try:
        test = odata.parse(text) if text else None
        # A filter says `priceType`, but items say `type`.
        items = [one for one in _items(cloud, now, wall) if test is None or test({**one, "priceType": one["type"]})]
    except Refused as refusal:
        return Response(400, {"Error": {"Code": "400", "Message": refusal.message}})
    skip = int(request.query.get("$skip", 0))
    more = {**request.query, "$skip": str(skip + _PAGE)}
    following = f"{request.base}/api/retail/prices?{urlencode(more)}" if skip + _PAGE < len(items) else None
    shown = [_in_currency(item, currency) for item in items[skip : skip + _PAGE]]
    told = {"BillingCurrency": currency, "CustomerEntityId": "Default", "CustomerEntityType": "Retail"}
    return Response(200, {**told, "Items": shown, "NextPageLink": following, "Count": len(shown)})


def _items(cloud: CloudState, now: float, wall: Callable[[float], datetime]) -> Iterator[dict[str, Any]]:
    for region in catalog.REGIONS:
        for size in catalog.sizes_in(region):
            yield from _of_size(cloud, size, region, now, wall)
        yield from (_disk(tier, region, usd, "Premium") for tier, (_, usd) in catalog.DISK_TIERS.items())
        yield from (_disk(tier, region, usd, "Standard") for tier, (_, usd) in catalog.STANDARD_TIERS.items())
        yield _host(region)
        yield _blob(region)


_PLANS = {"3 Years": 0.45, "1 Year": 0.65}  # price factor of a savings plan: part of the row, not a row


def _of_size(
    cloud: CloudState, size: catalog.TwinSize, region: str, now: float, wall: Callable[[float], datetime]
) -> Iterator[dict[str, Any]]:
    """Linux and Windows, on demand, Spot and Low Priority, and other rows with the size's name, mixed as in the real
    list. Rows that are not the price of a Linux VM come last: a client that takes the last one is wrong."""
    full = catalog.on_demand_usd(size, region)
    plans = [{"retailPrice": full * share, "unitPrice": full * share, "term": term} for term, share in _PLANS.items()]
    yield {**_item(size, region, full), "savingsPlan": plans}
    if size.spot:
        spot = prices.spot_usd(cloud, size, region, now)
        since = wall(now // prices.STEP_S * prices.STEP_S).strftime("%Y-%m-%dT%H:%M:%SZ")
        yield _item(size, region, spot, " Spot", since=since)
        yield _item(size, region, round(spot * 1.9, 6), " Spot", " Windows", since=since)
        yield _item(size, region, round(spot * 1.4, 6), " Spot", isPrimaryMeterRegion=False)
        yield _item(size, region, round(full * 0.2, 6), " Low Priority")
    yield _item(size, region, round(full * 1.9, 6), "", " Windows")
    yield _item(size, region, round(full * 1.8, 6), " Win")
    for product in (f"{size.series} Series Cloud Services", f"{size.series} Series CloudServices"):
        yield _item(size, region, round(full * 1.3, 6), productName=product)
    yield _item(size, region, round(full * 1.1, 6), isPrimaryMeterRegion=False)
    yield _item(size, region, round(full * 0.6, 6), type="DevTestConsumption")
    year = round(full * 8760 * 0.6, 2)
    yield _item(size, region, year, type="Reservation", reservationTerm="1 Year")


def _host(region: str) -> dict[str, Any]:
    size = catalog.SIZES["standard_d2s_v5"]
    names = {"productName": "DSv5 Series Dedicated Host", "skuName": "DSv5 Type1", "meterName": "DSv5 Type1"}
    return _item(size, region, 5.664, armSkuName="DSv5_Type1", **names)


def _in_currency(item: dict[str, Any], currency: str) -> dict[str, Any]:
    price = round(item["retailPrice"] * catalog.CURRENCIES[currency], 6)
    return {**item, "currencyCode": currency, "retailPrice": price, "unitPrice": price}


def _disk(tier: str, region: str, usd_per_month: float, kind: str) -> dict[str, Any]:
    size = catalog.sizes_in(region)[0]
    name = f"{tier} LRS"
    return {
        **_item(size, region, usd_per_month),
        "meterId": name_uuid("meter", name, region),
        "meterName": f"{name} Disk",
        "productId": "DZH318Z0BP04",
        "skuId": f"DZH318Z0BP04/{name_uuid('sku', name, region)[:4].upper()}",
        "productName": f"{kind} SSD Managed Disks",
        "skuName": name,
        "serviceName": "Storage",
        "serviceId": "DZH317F1HKN0",
        "serviceFamily": "Storage",
        "unitOfMeasure": "1/Month",
        "armSkuName": f"{kind}_SSD_Managed_Disk_{tier}",
    }


def _blob(region: str) -> dict[str, Any]:
    """A gigabyte of blobs. Azure's list has cheaper tiers above 51,200 GB."""
    size, name = catalog.sizes_in(region)[0], "Hot LRS"
    usd = round(catalog.BLOB_USD_PER_GB_MONTH * catalog.REGIONS[region].price_factor, 6)
    return {
        **_item(size, region, usd),
        "meterId": name_uuid("meter", name, region),
        "meterName": f"{name} Data Stored",
        "productId": "DZH318Z0BZ8M",
        "skuId": f"DZH318Z0BZ8M/{name_uuid('sku', name, region)[:4].upper()}",
        "productName": "General Block Blob v2",
        "skuName": name,
        "serviceName": "Storage",
        "serviceId": "DZH317F1HKN0",
        "serviceFamily": "Storage",
        "unitOfMeasure": "1 GB/Month",
        "armSkuName": "",
    }


def _item(
    size: catalog.TwinSize,
    region: str,
    price: float,
    word: str = "",
    system: str = "",
    *,
    since: str = "2024-01-01T00:00:00Z",
    **more: Any,
) -> dict[str, Any]:
    name = f"{size.label}{word}"
    meter = name_uuid("meter", name, region, system, *more.values())
    return {
        "currencyCode": "USD",
        "tierMinimumUnits": 0.0,
        "retailPrice": price,
        "unitPrice": price,
        "armRegionName": region,
        "location": catalog.REGIONS[region].title,
        "effectiveStartDate": since,
        "meterId": meter,
        "meterName": name,
        "productId": "DZH318Z0BQ4B",
        "skuId": f"DZH318Z0BQ4B/{meter[:4].upper()}",
        "productName": f"Virtual Machines {size.series} Series{system}",
        "skuName": name,
        "serviceName": "Virtual Machines",
        "serviceId": "DZH313Z7MMC8",
        "serviceFamily": "Compute",
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        "isPrimaryMeterRegion": True,
        "armSkuName": size.name,
        **more,
    }
