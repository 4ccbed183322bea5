"""What could be had and what it costs: Azure's sizes and prices for one account, asked for once in a while."""

from __future__ import annotations

import time
from decimal import ROUND_DOWN, Decimal

from stoker.model.node.node import LAST_WORDS_S, Need, Offer
from stoker.providers.azure.account.account import Account
from stoker.providers.azure.cloud import Cloud, Vm
from stoker.providers.azure.market import sizes
from stoker.providers.azure.market.listing import PREMIUM, STANDARD
from stoker.providers.azure.market.prices import PriceList

_SIZES_KEPT_S = 3600.0
_LEAST = Decimal("0.00001")  # what Azure takes for a price, and how exact it wants one


class Catalogue:
    def __init__(self, account: Account, cloud: Cloud, prices: PriceList) -> None:
        self._account = account
        self._cloud = cloud
        self._prices = prices
        self._sizes: dict[str, tuple[float, list[sizes.Size]]] = {}

    def offers(self, need: Need) -> list[Offer]:
        regions = [need.region] if need.region else self._account.regions
        return [
            offer
            for region in regions
            for size in self._sizes_in(region)
            if sizes.fits(size, need) and (not self._account.sizes or size.name in self._account.sizes)
            if (offer := self._offer(region, size.name, need)) is not None
        ]

    def size_of(self, region: str, name: str) -> sizes.Size:
        """What is known of it; one that is no longer listed is supposed to be like most."""
        known = next((one for one in self._sizes_in(region) if one.name.lower() == name.lower()), None)
        return known or sizes.Size(name, "", 0, 0.0, region, spot=True)

    def per_hour(self, region: str, size: str, *, spot: bool) -> Decimal | None:
        """Of a whole node."""
        machine = self._prices.per_hour(region, size, spot=spot)
        return None if machine is None else machine + self._beside(region, size, self._account.restored(spot=spot))

    def costs(self, vm: Vm | None) -> Decimal:
        """A machine that is switched off costs nothing, and its disk goes on."""
        if vm is None or not vm.power:  # none yet, or one that could not be had
            return Decimal(0)
        if vm.power == "deallocated":
            return self._beside(vm.region, vm.size, bool(vm.set))
        price = self._prices.per_hour(vm.region, vm.size, spot=vm.spot)
        if price is None:
            return Decimal(0)  # not on the list: whoever counts goes by what it was
        return price + self._beside(vm.region, vm.size, bool(vm.set))

    def most_for_machine(self, offer: Offer, most: Decimal | None) -> Decimal | None:
        """What a job gives for an hour is for all of the node, and Azure wants to know it of the machine alone, in five
        decimals: rounded down, so that nobody pays more than was said."""
        if most is None:
            return None
        beside = self._beside(offer.place, offer.size, self._account.restored(spot=offer.spot))
        return max((most - beside).quantize(_LEAST, ROUND_DOWN), _LEAST)

    def _sizes_in(self, region: str) -> list[sizes.Size]:
        read_at, known = self._sizes.get(region, (-_SIZES_KEPT_S, []))
        if time.monotonic() - read_at >= _SIZES_KEPT_S:
            known = sizes.read_sizes(self._cloud.skus(region), region)
            self._sizes[region] = (time.monotonic(), known)
        return known

    def _offer(self, region: str, size: str, need: Need) -> Offer | None:
        price = self.per_hour(region, size, spot=need.spot)
        if price is None:
            return None
        elsewhere = need.currency != "USD"
        return Offer(
            "azure",
            size,
            region,
            price,
            spot=need.spot,
            on_demand_usd_per_hour=self.per_hour(region, size, spot=False),
            priced_at=self._prices.as_of(region),
            quoted=self._prices.per_hour(region, size, spot=need.spot, currency=need.currency) if elsewhere else None,
            currency=need.currency,
            ready_s=self._account.ready_s,
            release_s=self._account.release_s,
            idle_s=min(self._account.idle_s, self._account.lease_s) + LAST_WORDS_S,
        )

    def _beside(self, region: str, size: str, of_set: bool) -> Decimal:
        kind = PREMIUM if self.size_of(region, size).premium else STANDARD
        address = self._account.addressed(of_set=of_set)
        return self._prices.beside_per_hour(region, self._account.disk_gb, address=address, kind=kind)
