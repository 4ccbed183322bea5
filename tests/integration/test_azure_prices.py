"""Prices: from the list, from the disk, from the package; how old each is; and what is not believed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from stoker.errors import BadInput, ProviderFailed
from stoker.providers.azure.account.account import PUBLIC_PRICES
from stoker.providers.azure.market import listed as snapshot
from stoker.providers.azure.market import refresh
from stoker.providers.azure.market.listed import Listing, believed, read
from stoker.providers.azure.market.prices import AGAIN_S, KEEP_S, PriceList

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
D2, A100 = "Standard_D2s_v5", "Standard_NC24ads_A100_v4"


def item(size: str = D2, price: Any = 0.096, word: str = "", **more: Any) -> dict[str, Any]:
    return {
        "serviceName": "Virtual Machines",
        "armSkuName": size,
        "meterName": f"{size}{word}",
        "productName": "Virtual Machines Dsv5 Series",
        "unitOfMeasure": "1 Hour",
        "retailPrice": price,
        "currencyCode": "USD",
        **more,
    }


def disk(tier: str = "P10", price: float = 19.71, meter: str = "Disk") -> dict[str, Any]:
    return item(
        "",
        price,
        serviceName="Storage",
        productName="Premium SSD Managed Disks",
        skuName=f"{tier} LRS",
        meterName=f"{tier} LRS {meter}",
        unitOfMeasure="1/Month",
    )


class PriceServer:
    """The list: pages of two, in dollars and in euros, as long as it is up."""

    def __init__(self) -> None:
        self.items = [item(), item(price=0.02, word=" Spot"), item(A100, 3.673), disk()]
        self.up = True
        self.answers = Event()  # as long as it is set
        self.answers.set()
        self.requested = Event()
        self.throttles = 0  # of the next requests
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
                outer.asked.append(self.path)
                outer.requested.set()
                outer.answers.wait(30)
                if outer.throttles:
                    outer.throttles -= 1
                    self.send_error(429)
                    return
                currency = query.get("currencyCode", "USD").strip("'")
                if not outer.up or currency not in ("USD", "EUR"):
                    self.send_error(503 if not outer.up else 400)
                    return
                wanted = "Storage" if "Managed Disks" in query["$filter"] else "Virtual Machines"
                found = [one for one in outer.items if one["serviceName"] == wanted]
                skip = int(query.get("$skip", 0))
                more = f"{outer.url}?$filter={wanted.split()[0]}&$skip={skip + 2}" if skip + 2 < len(found) else None
                if more and wanted == "Storage":
                    more = more.replace("Storage", "Managed%20Disks")
                rate = 0.5 if currency == "EUR" else 1
                shown = [
                    {**one, "retailPrice": one["retailPrice"] * rate, "currencyCode": currency}
                    for one in found[skip : skip + 2]
                ]
                body = json.dumps({"Items": shown, "NextPageLink": more}).encode()
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/api/retail/prices"
        Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


class Time:
    """Both clocks, moved together."""

    def __init__(self) -> None:
        self.passed = 0.0

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.passed)

    def steady(self) -> float:
        return 1000 + self.passed


@pytest.fixture
def server() -> Iterator[PriceServer]:
    made = PriceServer()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def time() -> Time:
    return Time()


def prices(server: PriceServer, time: Time, folder: Path | None = None) -> PriceList:
    return PriceList(server.url, folder=folder, now=time.now, steady=time.steady)


def test_all_pages_are_read_and_kept_for_a_while(server: PriceServer, time: Time) -> None:
    listed = prices(server, time)
    assert listed.per_hour("eastus", D2.upper(), spot=False) == Decimal("0.096")
    assert listed.per_hour("eastus", D2, spot=True) == Decimal("0.02")
    assert listed.per_hour("eastus", A100, spot=False) == Decimal("3.673"), "it is on the second page"
    assert listed.as_of("eastus") == NOW
    count = len(server.asked)
    time.passed = KEEP_S - 1
    listed.per_hour("eastus", D2, spot=True)
    assert len(server.asked) == count
    time.passed = KEEP_S
    listed.per_hour("eastus", D2, spot=True)
    assert len(server.asked) == 2 * count
    assert listed.as_of("eastus") == NOW + timedelta(seconds=KEEP_S)


def test_a_list_that_takes_long_is_requested_once_by_all_who_wait_for_it(server: PriceServer, time: Time) -> None:
    listed, found = prices(server, time), []
    server.answers.clear()
    waiting = [Thread(target=lambda: found.append(listed.per_hour("eastus", D2, spot=True))) for _ in range(4)]
    for one in waiting:
        one.start()
    server.answers.set()
    for one in waiting:
        one.join(30)
    assert found == [Decimal("0.02")] * 4
    count = len(server.asked)
    prices(server, time).per_hour("eastus", D2, spot=True)
    assert len(server.asked) == 2 * count


def test_while_a_list_is_renewed_the_one_before_counts(server: PriceServer, time: Time) -> None:
    listed = prices(server, time)
    listed.per_hour("eastus", D2, spot=True)
    time.passed = KEEP_S
    server.answers.clear()
    server.requested.clear()
    renewing = Thread(target=listed.per_hour, args=("eastus", D2), kwargs={"spot": True})
    renewing.start()
    assert server.requested.wait(10)
    server.items[1] = item(price=0.03, word=" Spot")
    asked: list[Decimal | None] = []
    other = Thread(target=lambda: asked.append(listed.per_hour("eastus", D2, spot=True)))
    other.start()
    other.join(10)
    assert asked == [Decimal("0.02")], "it does not wait"
    server.answers.set()
    renewing.join(30)
    assert listed.per_hour("eastus", D2, spot=True) == Decimal("0.03")


@pytest.mark.parametrize(("throttles", "read"), [(3, True), (4, False)])
def test_a_list_that_azure_asks_to_read_more_slowly_is_read_more_slowly(
    server: PriceServer, time: Time, throttles: int, read: bool
) -> None:
    pauses: list[float] = []
    listed = PriceList(server.url, now=time.now, steady=time.steady, sleep=pauses.append)
    server.throttles = throttles
    if read:
        assert listed.per_hour("eastus", D2, spot=True) == Decimal("0.02")
    else:
        with pytest.raises(ProviderFailed):
            listed.per_hour("eastus", D2, spot=True)
    assert pauses == sorted(pauses) and len(pauses) == 3


def test_what_is_not_listed_has_no_price(server: PriceServer, time: Time) -> None:
    assert prices(server, time).per_hour("eastus", A100, spot=True) is None


def test_a_node_costs_its_disk_and_its_address_too(server: PriceServer, time: Time) -> None:
    listed = prices(server, time)
    assert listed.beside_per_hour("eastus", 128, address=False) == Decimal("19.71") / 730
    assert listed.beside_per_hour("eastus", 100, address=True) == Decimal("19.71") / 730 + Decimal("0.005")
    larger = listed.beside_per_hour("eastus", 1000, address=False)
    assert larger == Decimal("135.17") / 730, "what the list lacks is in the snapshot"


def test_another_currency_is_the_lists_own(server: PriceServer, time: Time) -> None:
    listed = prices(server, time)
    assert listed.per_hour("eastus", D2, spot=False, currency="EUR") == Decimal("0.048")
    assert listed.per_hour("eastus", D2, spot=False) == Decimal("0.096")


def test_a_currency_that_there_is_not_is_the_users_mistake(server: PriceServer, time: Time) -> None:
    with pytest.raises(BadInput, match="`XYZ`"):
        prices(server, time).per_hour("eastus", D2, spot=False, currency="XYZ")


def test_the_next_server_need_not_ask(server: PriceServer, time: Time, tmp_path: Path) -> None:
    prices(server, time, tmp_path).per_hour("eastus", D2, spot=True)
    count = len(server.asked)
    time.passed = 600
    later = prices(server, time, tmp_path)
    assert later.per_hour("eastus", D2, spot=True) == Decimal("0.02")
    assert later.as_of("eastus") == NOW
    assert len(server.asked) == count


def test_a_list_that_is_unavailable_is_as_it_was_and_says_how_old_it_is(
    server: PriceServer, time: Time, tmp_path: Path
) -> None:
    prices(server, time, tmp_path).per_hour("eastus", D2, spot=True)
    time.passed, server.up = 90 * 86_400, False
    later = prices(server, time, tmp_path)
    assert later.per_hour("eastus", D2, spot=True) == Decimal("0.02")
    assert later.as_of("eastus") == NOW
    count = len(server.asked)
    later.per_hour("eastus", D2, spot=True)
    assert len(server.asked) == count, "it is not asked again at every look"
    time.passed, server.up = time.passed + AGAIN_S, True
    assert later.as_of("eastus") == time.now(), "and here it could be had"


def test_without_a_list_and_without_a_memory_there_is_no_price(server: PriceServer, time: Time) -> None:
    server.up = False
    with pytest.raises(ProviderFailed, match="the price list is unavailable"):
        prices(server, time).per_hour("eastus", D2, spot=True)


def test_a_damaged_memory_is_none(server: PriceServer, time: Time, tmp_path: Path) -> None:
    prices(server, time, tmp_path).per_hour("eastus", D2, spot=True)
    (file,) = tmp_path.iterdir()
    for rubbish in ("", "[]", '{"as_of": 5}', '{"as_of": "2026-01-01", "machines": {"a": "b"}}'):
        file.write_text(rubbish)
        assert prices(server, time, tmp_path).per_hour("eastus", D2, spot=True) == Decimal("0.02")


def test_a_memory_from_the_future_is_not_fresh(server: PriceServer, time: Time, tmp_path: Path) -> None:
    """The clock was set back since."""
    prices(server, time, tmp_path).per_hour("eastus", D2, spot=True)
    time.passed = -86_400
    server.items[1]["retailPrice"] = 0.03
    assert prices(server, time, tmp_path).per_hour("eastus", D2, spot=True) == Decimal("0.03")


def test_the_snapshot_stands_in_for_the_public_list_and_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: Any) -> Any:
        raise ProviderFailed("no network")

    monkeypatch.setattr(PriceList, "_get", nothing)
    public = PriceList(PUBLIC_PRICES)
    assert public.per_hour("eastus", D2, spot=False) == Decimal("0.096")
    assert public.as_of("eastus") == datetime(2025, 1, 1, tzinfo=UTC)
    assert public.per_hour("westeurope", A100, spot=True) == Decimal("1.32228")
    with pytest.raises(ProviderFailed):
        PriceList("https://elsewhere/prices").per_hour("eastus", D2, spot=False)
    with pytest.raises(ProviderFailed):
        public.per_hour("atlantis", D2, spot=False)


def test_the_snapshot_says_where_it_is_from_and_has_a_price_for_every_disk() -> None:
    told = json.loads(snapshot.FILE.read_text())
    assert "by hand" in told["how"] or "read from the price list" in told["how"]
    for region in snapshot.regions():
        listing = snapshot.listing(region)
        assert listing is not None
        assert all(price > 0 for price in listing.machines.values())
        spots = {name.removeprefix("spot ") for name in listing.machines if name.startswith("spot ")}
        assert all(listing.machines[f"spot {name}"] < listing.machines[name] for name in spots)
        assert listing.disk_per_hour(128)


def test_the_snapshot_is_rewritten_from_the_list(server: PriceServer, tmp_path: Path) -> None:
    out = tmp_path / "snapshot.json"
    assert refresh.main(["--url", server.url, "--out", str(out), "eastus", "westus2"]) == 0
    told = json.loads(out.read_text())
    assert told["regions"]["westus2"]["machines"][D2.lower()] == "0.096"
    assert told["regions"]["eastus"]["disks"] == {"P10": "19.71"}
    assert datetime.fromisoformat(told["as_of"]) > datetime(2026, 1, 1, tzinfo=UTC)


def test_a_refresh_that_fails_leaves_the_snapshot_as_it_was(
    server: PriceServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "snapshot.json"
    out.write_text("old")
    server.items = []
    assert refresh.main(["--url", server.url, "--out", str(out), "atlantis"]) == 1
    assert "atlantis" in capsys.readouterr().err
    server.up = False
    assert refresh.main(["--url", server.url, "--out", str(out), "eastus"]) == 1
    assert out.read_text() == "old"


@pytest.mark.parametrize("price", [0, -1, None, "", "NaN", "Infinity", "cheap"])
def test_what_has_no_price_is_not_for_nothing(price: Any) -> None:
    assert read([item(price=price)], NOW, "USD").machines == {}


@pytest.mark.parametrize(
    "other",
    [
        item(productName="Virtual Machines Dsv5 Series Windows"),
        item(word=" Low Priority"),
        item(unitOfMeasure="1 Year"),
        item(currencyCode="EUR"),
        item(serviceName="Cloud Services"),
        item(productName="D2s v5 Win"),
        item(productName="Dsv5 Series CloudServices"),
        item(productName="Dsv5 Series Dedicated Host"),
        item(type="Reservation", reservationTerm="1 Year"),
        item(type="DevTestConsumption"),
        item(skuName="D2s v5 Savings Plan"),
        item(isPrimaryMeterRegion=False),
        disk(meter="Disk Mount"),
        {},
    ],
)
def test_what_is_not_meant_is_passed_over(other: dict[str, Any]) -> None:
    listing = read([other], NOW, "USD")
    assert (listing.machines, listing.disks) == ({}, {})


def test_a_savings_plan_that_nobody_has_is_no_price() -> None:
    """The list has it inside the row of the VM."""
    plan = {"term": "3 Years", "retailPrice": 0.03, "unitPrice": 0.03}
    assert read([item(savingsPlan=[plan])], NOW, "USD").machine(D2, spot=False) == Decimal("0.096")


def listing(price: str, **more: Any) -> Listing:
    return Listing(NOW, {"d2": Decimal(price)}, **more)


def test_a_price_that_leaps_is_doubted_and_the_dearer_counts() -> None:
    fallen = believed(listing("3.00"), listing("0.03"))
    assert fallen.machines["d2"] == Decimal("3.00")
    assert fallen.doubted == {"d2": Decimal("0.03")}
    risen = believed(listing("0.03"), listing("3.00"))
    assert risen.machines["d2"] == Decimal("3.00")
    assert risen.doubted == {"d2": Decimal("3.00")}


def test_what_is_read_twice_is_believed() -> None:
    doubted = believed(listing("3.00"), listing("0.03"))
    again = believed(doubted, listing("0.031"))
    assert again.machines["d2"] == Decimal("0.031")
    assert again.doubted == {}


def test_a_slip_of_the_pen_is_forgotten() -> None:
    doubted = believed(listing("3.00"), listing("0.03"))
    again = believed(doubted, listing("3.10"))
    assert again.machines["d2"] == Decimal("3.10")
    assert again.doubted == {}


def test_an_ordinary_change_is_believed_at_once() -> None:
    assert believed(listing("3.00"), listing("0.31")).machines["d2"] == Decimal("0.31")
    assert believed(None, listing("0.01")).machines["d2"] == Decimal("0.01")
    assert believed(listing("3.00"), Listing(NOW, {})).machines == {}, "what is sold no longer has no price"


def test_a_doubted_list_is_asked_for_again_soon(server: PriceServer, time: Time, tmp_path: Path) -> None:
    listed = prices(server, time, tmp_path)
    listed.per_hour("eastus", A100, spot=False)
    server.items[2]["retailPrice"] = 0.003
    time.passed = KEEP_S
    assert listed.per_hour("eastus", A100, spot=False) == Decimal("3.673")
    time.passed += AGAIN_S
    assert listed.per_hour("eastus", A100, spot=False) == Decimal("0.003")
