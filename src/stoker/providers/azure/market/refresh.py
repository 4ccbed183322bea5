"""Rewrites the price snapshot from the public list:

python -m stoker.providers.azure.market.refresh [--url URL] [--ca-file FILE] [--out FILE] [REGION …]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from stoker.errors import ProviderFailed
from stoker.files import write_whole
from stoker.providers.azure.account.account import PUBLIC_PRICES
from stoker.providers.azure.market import listed
from stoker.providers.azure.market.prices import PriceList

_HOW = "read from the price list by `python -m stoker.providers.azure.market.refresh`"


def refresh(regions: Sequence[str], prices: PriceList, out: Path) -> int:
    """Returns the number of prices written. Raises ProviderFailed, and then leaves the file unchanged."""
    found = {region: prices.asked(region) for region in regions}
    if empty := [region for region, listing in found.items() if not listing.machines]:
        raise ProviderFailed(f"the price list has no VMs in {', '.join(empty)}", hint="check the name of the region")
    told = {
        "as_of": datetime.now(UTC).replace(microsecond=0).isoformat(),
        "how": _HOW,
        "currency": "USD",
        "regions": {name: {kind: one.plain[kind] for kind in ("machines", "disks")} for name, one in found.items()},
    }
    write_whole(out, json.dumps(told, indent=1) + "\n")
    return sum(len(listing.machines) for listing in found.values())


def main(arguments: Sequence[str]) -> int:
    options = {"--url": PUBLIC_PRICES, "--ca-file": "", "--out": str(listed.FILE)}
    regions: list[str] = []
    words = iter(arguments)
    for word in words:
        if word in options:
            options[word] = next(words, "")
        else:
            regions.append(word)
    regions = regions or listed.regions()
    try:
        count = refresh(regions, PriceList(options["--url"], options["--ca-file"]), Path(options["--out"]))
    except ProviderFailed as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stderr.write(f"{count:,} prices of {len(regions)} regions in {options['--out']}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
