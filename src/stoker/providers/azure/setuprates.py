"""What a gigabyte in the store costs, from Azure's public price list."""

from __future__ import annotations

import json
import ssl
import urllib.request
from decimal import Decimal, InvalidOperation
from urllib.parse import urlencode

_TIMEOUT_S = 10.0
_METER, _PRODUCT = "Hot LRS Data Stored", "General Block Blob v2"


def usd_per_gb_month(prices: str, ca_file: str, region: str) -> Decimal | None:
    """Of the first gigabytes: from 51,200 on it is less. None where the list cannot be had, or does not say."""
    words = {"serviceName": "Storage", "armRegionName": region, "meterName": _METER, "productName": _PRODUCT}
    asked = " and ".join(f"{word} eq '{value}'" for word, value in words.items())
    context = ssl.create_default_context(cafile=ca_file or None)
    try:
        url = f"{prices}?{urlencode({'$filter': asked})}"
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S, context=context) as answer:
            items = json.load(answer)["Items"]
        first = [one for one in items if one["unitOfMeasure"] == "1 GB/Month" and not one["tierMinimumUnits"]]
        return Decimal(str(first[0]["retailPrice"])) if first else None
    except (OSError, ValueError, KeyError, TypeError, InvalidOperation):
        return None  # a set-up does not wait for a price list
