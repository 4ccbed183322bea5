"""The available sizes and their prices for one account, cached for a while."""

from __future__ import annotations

import time
from decimal import ROUND_DOWN, Decimal

from stoker.errors import NotAllowed
from stoker.model.node.node import LAST_WORDS_S, Need, Offer
from stoker.providers.azure.account.account import Account
from stoker.providers.azure.cloud import AzureCloud, Vm
from stoker.providers.azure.market import sizes
from stoker.providers.azure.market.listing import PREMIUM, STANDARD
from stoker.providers.azure.market.prices import PriceList

_SIZES_KEPT_S, _LIMITS_KEPT_S = 3600.0, 60.0
_LEAST = Decimal("0.00001")  # the smallest price, and step, that Azure accepts


class Catalogue:
    def __init__(self, account: Account, cloud: AzureCloud, prices: PriceList) -> None:
        self._account = account
        self._cloud = cloud
        self._prices = prices
        self._sizes: dict[str, tuple[float, list[sizes.AzureSize]]] = {}
        self._limits: dict[str, tuple[float, dict[str, int]]] = {}

    def offers(self, need: Need) -> list[Offer]:
        regions = [need.region] if need.region else self._account.regions
        return [
            offer
            for region in regions
            for size in self._sizes_in(region)
            if sizes.fits(size, need) and (not self._account.sizes or size.name in self._account.sizes)
            if (offer := self._offer(region, size.name, need)) is not None
        ]

    def size_of(self, region: str, name: str) -> sizes.AzureSize:
        """What is known of a size; for one that is no longer listed, the usual values."""
        known = next((one for one in self._sizes_in(region) if one.name.lower() == name.lower()), None)
        return known or sizes.AzureSize(name, "", 0, 0.0, region, spot=True)

    def per_hour(self, region: str, size: str, *, spot: bool, alone: bool = True) -> Decimal | None:
        """Of the whole node. `alone`: it is not one of a gang, whose nodes Azure does not restore."""
        machine, restored = self._prices.per_hour(region, size, spot=spot), alone and self._account.restored(spot=spot)
        return None if machine is None else machine + self._beside(region, size, restored)

    def costs(self, vm: Vm | None) -> Decimal:
        """A deallocated VM is not billed, but its disk is."""
        if vm is None or not vm.power:  # not created yet, or allocation failed
            return Decimal(0)
        if vm.power == "deallocated":
            return self._beside(vm.region, vm.size, bool(vm.set))
        price = self._prices.per_hour(vm.region, vm.size, spot=vm.spot)
        if price is None:
            return Decimal(0)  # not listed: the meter uses the last known price
        return price + self._beside(vm.region, vm.size, bool(vm.set))

    def most_for_machine(self, offer: Offer, most: Decimal | None, *, alone: bool = True) -> Decimal | None:
        """The job's maximum price covers the whole node, but Azure expects one for the VM alone, with five decimals:
        rounded down, so that nobody pays more than they set."""
        if most is None:
            return None
        beside = self._beside(offer.place, offer.size, alone and self._account.restored(spot=offer.spot))
        return max((most - beside).quantize(_LEAST, ROUND_DOWN), _LEAST)

    def _sizes_in(self, region: str) -> list[sizes.AzureSize]:
        read_at, known = self._sizes.get(region, (-_SIZES_KEPT_S, []))
        if time.monotonic() - read_at >= _SIZES_KEPT_S:
            known = sizes.read_sizes(self._cloud.skus(region), region)
            self._sizes[region] = (time.monotonic(), known)
        return known

    def _offer(self, region: str, size: str, need: Need) -> Offer | None:
        alone = need.nodes == 1
        price = self.per_hour(region, size, spot=need.spot, alone=alone)
        if price is None:
            return None
        elsewhere = need.currency != "USD"
        return Offer(
            "azure",
            size,
            region,
            price,
            slots=None if alone else self._slots(region, size, spot=need.spot),
            spot=need.spot,
            on_demand_usd_per_hour=self.per_hour(region, size, spot=False, alone=alone),
            priced_at=self._prices.as_of(region),
            quoted=self._prices.per_hour(region, size, spot=need.spot, currency=need.currency) if elsewhere else None,
            currency=need.currency,
            ready_s=self._account.ready_s,
            release_s=self._account.release_s,
            idle_s=min(self._account.idle_s, self._account.lease_s) + LAST_WORDS_S,
            network=region,
        )

    def _slots(self, region: str, size: str, *, spot: bool) -> int | None:
        """How many the quotas allow in all, whatever is in use now; None: unknown."""
        traits, limits = self.size_of(region, size), self._limits_in(region)
        names = (sizes.SPOT_CORES,) if spot else (sizes.CORES, traits.family)
        known = [limits[name.lower()] for name in names if name.lower() in limits]
        return min(known) // traits.cpus if known and traits.cpus else None

    def _limits_in(self, region: str) -> dict[str, int]:
        """By the name of the quota, in lower case. Empty for a login that may not read them."""
        read_at, known = self._limits.get(region, (-_LIMITS_KEPT_S, {}))
        if time.monotonic() - read_at >= _LIMITS_KEPT_S:
            try:
                known = {name: most for name, (_, most) in self._cloud.usages(region).items()}
            except NotAllowed:
                known = {}
            self._limits[region] = (time.monotonic(), known)
        return known

    def _beside(self, region: str, size: str, of_set: bool) -> Decimal:
        kind = PREMIUM if self.size_of(region, size).premium else STANDARD
        address = self._account.addressed(of_set=of_set)
        return self._prices.beside_per_hour(region, self._account.disk_gb, address=address, kind=kind)
