"""Prices before an account is set up."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from stoker.engine.money.forecast import forecast
from stoker.model.job.job import Job
from stoker.model.node import Need
from stoker.providers.azure.market import listed as snapshot
from stoker.providers.azure.market.listed import listed, sizes

WHY = "Azure is not set up on this computer"


def test_every_size_with_a_price_is_known() -> None:
    listings = [listing for region in snapshot.regions() if (listing := snapshot.listing(region))]
    priced = {name.removeprefix("spot ") for listing in listings for name in listing.machines}
    assert len(listings) == len(snapshot.regions())
    assert priced <= {size.name.lower() for size in sizes("eastus")}


@pytest.mark.parametrize(
    ("need", "smallest"),
    [
        (Need(gpus=1, gpu="A10"), "Standard_NV36ads_A10_v5"),  # a whole one
        (Need(gpus=1, gpu="T4", spot=True), "Standard_NC4as_T4_v3"),
        (Need(cpus=8), "Standard_D8as_v5"),
        (Need(gpus=8, gpu="A100"), "Standard_ND96asr_v4"),
    ],
)
def test_what_fits_is_offered_with_the_date_of_its_price(need: Need, smallest: str) -> None:
    found = listed(need, WHY)
    cheapest = min(found, key=lambda offer: offer.usd_per_hour)
    assert cheapest.size == smallest
    assert cheapest.unready == WHY and cheapest.priced_at is not None and cheapest.spot == need.spot
    assert cheapest.on_demand_usd_per_hour and cheapest.on_demand_usd_per_hour >= cheapest.usd_per_hour


def test_a_region_or_a_size_without_a_price_has_no_offer() -> None:
    assert not listed(Need(region="antarctica"), WHY)
    assert not listed(Need(size="Standard_X1"), WHY)


def test_hours_budget_and_deadline_say_what_is_out_of_reach() -> None:
    job = Job(name="a", run="b", on="azure", gpu="A10", budget=Decimal(20), deadline=12 * 3600.0)
    offers = [*listed(Need(gpus=1, gpu="A10"), WHY), *listed(Need(gpus=1, gpu="A10", spot=True), WHY)]
    found = forecast(job, offers, [], datetime.now(UTC), hours=10)
    assert found.choice is not None and found.choice.offer.spot and found.choice.usd is not None
    assert found.choice.usd < 20 and "10 hours of work" in found.why
    for one in found.offers:
        assert one.usd is not None and abs(one.usd - one.offer.usd_per_hour * 10) < Decimal("6")
        assert bool(one.problem) == (one.usd > 20)
    assert any("the budget is $20.00" in one.problem for one in found.offers)
