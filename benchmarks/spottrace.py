"""Traces of spot markets: when machines were there and what they cost; read, written, drawn, and taken from others.

A trace is a CSV file with one line for each change: `seconds,place,available,usd_per_hour`. The place `on-demand` is
always there. `python -m benchmarks.spottrace FILE.json … --spot 0.92 --on-demand 3.06 > trace.csv` makes one of public
availability traces (`{"metadata": {"gap_seconds": 300}, "data": [1, 0, …]}`, one file for each zone, as those published
with "Can't Be Late") or of what `aws ec2 describe-spot-price-history` prints (a zone is there while it costs no more
than on-demand).
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO

from stoker.testing.world.scenario import MarketPlace

ON_DEMAND = "on-demand"
STEP_S = 120.0  # everything in a trace that is benched happens at a multiple of this, so that the oracle is exact
HEAD = ("seconds", "place", "available", "usd_per_hour")
Span = tuple[float, float]
Price = tuple[float, Decimal]


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    length_s: float
    on_demand: Decimal  # dollars an hour
    places: tuple[MarketPlace, ...]  # of spot machines

    def window(self, begin: float, length_s: float, name: str) -> Trace:
        """A piece of it, as if time began there."""
        places = tuple(_shifted(place, begin, length_s) for place in self.places)
        return Trace(name, length_s, self.on_demand, places)


def drawn(seed: int, length_s: float) -> Trace:
    """One to three places whose machines come and go. Shares and lengths are spread as in the public traces of 2022 and
    2023: there for 15 to 95 % of the time, for 40 minutes to 8 hours at once; at 15 to 50 % of the price."""
    dice = random.Random(seed)
    places = tuple(_drawn_place(dice, f"place-{number}", length_s) for number in range(dice.choice((1, 1, 2, 3))))
    return Trace(f"drawn {seed}", length_s, Decimal(1), places)


def read(path: Path) -> Trace:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows or tuple(rows[0]) != HEAD:
        raise ValueError(f"{path}: expected the columns {', '.join(HEAD)}")
    on_demand = next((Decimal(row["usd_per_hour"]) for row in rows if row["place"] == ON_DEMAND), None)
    if on_demand is None:
        raise ValueError(f"{path}: expected a line with the place `{ON_DEMAND}` and its price")
    names = dict.fromkeys(row["place"] for row in rows if row["place"] != ON_DEMAND)
    length_s = max(float(row["seconds"]) for row in rows)
    changes = {name: [row for row in rows if row["place"] == name] for name in names}
    return Trace(path.stem, length_s, on_demand, tuple(_place(name, changes[name], length_s) for name in names))


def write(trace: Trace, file: TextIO) -> None:
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(HEAD)
    lines.writerow((0, ON_DEMAND, 1, trace.on_demand))
    changes: list[tuple[float, str, int, Decimal]] = [
        change for place in trace.places for change in _changes(place, trace.length_s)
    ]
    lines.writerows(sorted(changes))


def of_availability(named: Mapping[str, Any], spot: Decimal, on_demand: Decimal) -> Trace:
    """`named` are documents of the public kind, by zone."""
    places = []
    for zone, document in named.items():
        gap_s, there = float(document["metadata"]["gap_seconds"]), [number > 0 for number in document["data"]]
        places.append(MarketPlace(zone, spot, spot=True, open=tuple(_spans(there, gap_s))))
    longest = max(len(one["data"]) * float(one["metadata"]["gap_seconds"]) for one in named.values())
    return Trace("imported", longest, on_demand, tuple(places))


def of_price_history(document: Mapping[str, Any], on_demand: Decimal) -> Trace:
    rows = [
        (datetime.fromisoformat(one["Timestamp"]).timestamp(), one["AvailabilityZone"], Decimal(one["SpotPrice"]))
        for one in document["SpotPriceHistory"]
    ]
    rows.sort()
    begin, end = rows[0][0], rows[-1][0]
    zones = dict.fromkeys(zone for _, zone, _ in rows)
    prices = {zone: [(at - begin, price) for at, name, price in rows if name == zone] for zone in zones}
    places = tuple(_priced(zone, prices[zone], end - begin, on_demand) for zone in zones)
    return Trace("imported", end - begin, on_demand, places)


def _drawn_place(dice: random.Random, name: str, length_s: float) -> MarketPlace:
    share, mean_s = dice.uniform(0.15, 0.95), dice.uniform(0.67, 8) * 3600
    gap_s = mean_s * (1 - share) / share
    spans: list[Span] = []
    at = 0.0 if dice.random() < share else _length(dice, gap_s)
    while at < length_s:
        end = at + _length(dice, mean_s)
        spans.append((at, end))
        at = end + _length(dice, gap_s)
    price = Decimal(str(round(dice.uniform(0.15, 0.5), 3)))
    changes = [(at * 3600.0, price * Decimal(str(dice.choice((0.8, 1.0, 1.3))))) for at in range(6, 200, 6)]
    kept = tuple(one for one in changes if one[0] < length_s) if dice.random() < 0.5 else ()
    return MarketPlace(name, price, spot=True, prices=kept, open=tuple(spans))


def _length(dice: random.Random, mean_s: float) -> float:
    """Heavier at both ends than chance alone: many spells are short, a few are very long."""
    return max(round(dice.weibullvariate(mean_s / 1.13, 0.8) / STEP_S), 1) * STEP_S


def _place(name: str, rows: list[dict[str, str]], length_s: float) -> MarketPlace:
    spans, prices = [], [(float(row["seconds"]), Decimal(row["usd_per_hour"])) for row in rows]
    for row, then in zip(rows, [*rows[1:], None], strict=True):
        if row["available"] not in ("0", "1"):
            raise ValueError(f"`available` is {row['available']!r}; expected 0 or 1")
        if row["available"] == "1":
            spans.append((float(row["seconds"]), float(then["seconds"]) if then else length_s))
    changed = tuple(price for price, before in zip(prices[1:], prices, strict=False) if price[1] != before[1])
    return MarketPlace(name, prices[0][1], spot=True, prices=changed, open=tuple(_joined(spans)))


def _priced(zone: str, prices: list[Price], length_s: float, on_demand: Decimal) -> MarketPlace:
    ends = [*(at for at, _ in prices[1:]), length_s]
    spans = [(at, end) for (at, price), end in zip(prices, ends, strict=True) if price <= on_demand]
    return MarketPlace(zone, prices[0][1], spot=True, prices=tuple(prices[1:]), open=tuple(_joined(spans)))


def _spans(there: list[bool], gap_s: float) -> Iterator[Span]:
    begin = None
    for number, now in enumerate([*there, False]):
        if now and begin is None:
            begin = number
        elif not now and begin is not None:
            yield begin * gap_s, number * gap_s
            begin = None


def _joined(spans: Iterable[Span]) -> list[Span]:
    joined: list[Span] = []
    for begin, end in spans:
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        elif end > begin:
            joined.append((begin, end))
    return joined


def _changes(place: MarketPlace, length_s: float) -> Iterator[tuple[float, str, int, Decimal]]:
    spans = place.open if place.open is not None else ((0.0, length_s),)
    moments = {0.0, *(at for span in spans for at in span if at < length_s), *(at for at, _ in place.prices)}
    for at in sorted(moments):
        there = any(begin <= at < end for begin, end in spans)
        price = next((price for when, price in reversed(place.prices) if when <= at), place.usd_per_hour)
        yield at, place.name, int(there), price


def _shifted(place: MarketPlace, begin: float, length_s: float) -> MarketPlace:
    """On the grid, and closed for good at the end."""
    end = begin + length_s
    spans = ((0.0, end),) if place.open is None else place.open
    inside = [(max(a, begin) - begin, min(b, end) - begin) for a, b in spans if b > begin and a < end]
    price = next((one for at, one in reversed(place.prices) if at <= begin), place.usd_per_hour)
    prices = tuple((_grid(at - begin), one) for at, one in place.prices if begin < at < end)
    snapped = _joined([(_grid(a), _grid(b)) for a, b in inside])
    return replace(place, usd_per_hour=price, prices=prices, open=tuple(snapped))


def _grid(seconds: float) -> float:
    return round(seconds / STEP_S) * STEP_S


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spottrace", description="makes a trace of public data")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--spot", type=Decimal, default=Decimal("0.3"), help="dollars an hour, where the data has none")
    parser.add_argument("--on-demand", type=Decimal, default=Decimal(1), help="dollars an hour")
    given = parser.parse_args()
    documents = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in given.files}
    first = next(iter(documents.values()))
    if "SpotPriceHistory" in first:
        rows = [row for document in documents.values() for row in document["SpotPriceHistory"]]
        trace = of_price_history({"SpotPriceHistory": rows}, given.on_demand)
    else:
        trace = of_availability(documents, given.spot, given.on_demand)
    write(trace, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
