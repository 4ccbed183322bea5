"""Prices per hour from Azure's public price list: requested once an hour per region, and cached on disk.

If the list is unavailable, the last one counts, or else the snapshot in the package.

The available sizes and their prices for one account, cached for a while.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from decimal import ROUND_DOWN, Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from stoker.errors import BadInput, NotAllowed, ProviderFailed
from stoker.files import write_whole
from stoker.model.node import LAST_WORDS_S, Need, Offer
from stoker.providers.azure.account.account import PUBLIC_PRICES, Account
from stoker.providers.azure.account.recording import TrafficRecorder, TrafficReplay
from stoker.providers.azure.cloud import AzureCloud, Vm
from stoker.providers.azure.market import listed, sizes
from stoker.providers.azure.market.listed import ADDRESS_PER_HOUR, PREMIUM, STANDARD, Listing, believed, read

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)

KEEP_S = 3600.0
AGAIN_S = 300.0  # before a list that was unavailable, or is not trusted, is requested again
_TIMEOUT_S = 30.0
_PAUSES_S = (1.0, 3.0, 9.0)  # where Azure asks for fewer requests
_MOST_PAGES = 200
_WANTED = (
    "serviceName eq 'Virtual Machines' and armRegionName eq '{region}' and priceType eq 'Consumption'",
    "productName eq 'Premium SSD Managed Disks' and armRegionName eq '{region}' and priceType eq 'Consumption'",
    "productName eq 'Standard SSD Managed Disks' and armRegionName eq '{region}' and priceType eq 'Consumption'",
)


class PriceList:
    """`folder` is where lists are cached across restarts; None: nowhere. `now` is the wall clock, `steady` the
    monotonic one."""

    def __init__(
        self,
        url: str,
        ca_file: str = "",
        folder: Path | None = None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        steady: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._url = url
        self._ca_file = ca_file
        self._folder = folder
        self._now = now
        self._steady = steady
        self._sleep = sleep
        self.wire: TrafficRecorder | TrafficReplay | None = None
        self._known: dict[tuple[str, str], tuple[float, Listing]] = {}  # by region and currency: when to ask again
        self._renewing: dict[tuple[str, str], threading.Lock] = {}

    def per_hour(self, region: str, size: str, *, spot: bool, currency: str = "USD") -> Decimal | None:
        """Of the VM alone. None where the list has no such price. Raises ProviderFailed where there is no list."""
        return self.listing(region, currency).machine(size, spot=spot)

    def beside_per_hour(self, region: str, disk_gb: int, *, address: bool, kind: str = PREMIUM) -> Decimal:
        """What a node costs besides its VM, also while that is deallocated: its disk and its address."""
        listing = self.listing(region)
        disk = listing.disk_per_hour(disk_gb, kind) or listed.disk_per_hour(disk_gb)
        return disk + (ADDRESS_PER_HOUR if address else 0)

    def as_of(self, region: str) -> datetime:
        """How old the prices of a region are."""
        return self.listing(region).as_of

    def listing(self, region: str, currency: str = "USD") -> Listing:
        """Called from several threads. A list of many pages takes a minute: one of them requests it, and the others use
        the one before, or wait for the first."""
        which = (region, currency)
        lock, older = self._renewing.setdefault(which, threading.Lock()), self._known.get(which)
        if older and (self._steady() < older[0] or not lock.acquire(blocking=False)):
            return older[1]
        if older is None:
            lock.acquire()
        try:
            due, known = self._known.get(which, (0.0, None))
            if known is None or self._steady() >= due:
                known, keep_s = self._renewed(region, currency, known)
                self._known[which] = (self._steady() + keep_s, known)
            return known
        finally:
            lock.release()

    def asked(self, region: str, currency: str = "USD") -> Listing:
        """The list as it is now, bypassing all caches. Raises ProviderFailed where it is unavailable."""
        return read(self._items(region, currency), self._now(), currency)

    def _renewed(self, region: str, currency: str, before: Listing | None) -> tuple[Listing, float]:
        """The current or last known list, and how long it stays valid."""
        before = before or self._kept(region, currency)
        age_s = (self._now() - before.as_of).total_seconds() if before else KEEP_S
        if before and 0 <= age_s < KEEP_S and not before.doubted:
            return before, KEEP_S - age_s
        try:
            fresh = self.asked(region, currency)
        except ProviderFailed as error:
            old = before or self._snapshot(region, currency)
            if old is None:
                raise
            log.warning("using prices of %s from %s: %s", region, old.as_of.date(), error.message)
            return old, AGAIN_S
        listing = believed(before or self._snapshot(region, currency), fresh)
        for name, price in listing.doubted.items():
            log.warning("ignoring an implausible price of %s in %s: %s", name, region, price)
        self._keep(region, listing)
        return listing, AGAIN_S if listing.doubted else KEEP_S

    @cached_property
    def _trust(self) -> ssl.SSLContext | None:
        """Created once: loading the trusted certificates takes longer than a request. None: no TLS."""
        import ssl  # here, because most servers never ask for a price

        return ssl.create_default_context(cafile=self._ca_file or None) if self._url.startswith("https") else None

    def _snapshot(self, region: str, currency: str) -> Listing | None:
        """It contains the public cloud's prices only."""
        return listed.listing(region) if self._url == PUBLIC_PRICES and currency == "USD" else None

    def _kept(self, region: str, currency: str) -> Listing | None:
        if self._folder is None:
            return None
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # missing, or not written by us
            return Listing.from_plain(json.loads(self._file(region, currency).read_text(encoding="utf-8")))
        return None

    def _keep(self, region: str, listing: Listing) -> None:
        if self._folder is None or not listing.machines:
            return
        file = self._file(region, listing.currency)
        with suppress(OSError):  # on a full disk, the list is requested again next time
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps(listing.plain))

    def _file(self, region: str, currency: str) -> Path:
        whose = hashlib.sha256(self._url.encode()).hexdigest()[:8]
        return (self._folder or Path()) / f"azure-{whose}-{region}-{currency}.json"

    def _items(self, region: str, currency: str) -> Iterator[dict[str, Any]]:
        for wanted in _WANTED:
            asked = {"$filter": wanted.format(region=region)}
            asked |= {} if currency == "USD" else {"currencyCode": f"'{currency}'"}
            url = f"{self._url}?{urlencode(asked)}"
            for _ in range(_MOST_PAGES):
                page = self._get(url, currency)
                yield from page.get("Items") or ()
                url = page.get("NextPageLink") or ""
                if not url:
                    break

    def _get(self, url: str, currency: str) -> dict[str, Any]:
        if isinstance(self.wire, TrafficReplay):
            told = self.wire.answer("GET", url)["answer"]
            return told if isinstance(told, dict) else {}
        from urllib.error import HTTPError  # here, for the same reason

        try:
            page = self._page(url)
        except HTTPError as error:
            if error.code == 400 and currency != "USD":
                hint = "use a code such as EUR or GBP"
                raise BadInput(f"the price list has no currency `{currency}`", hint=hint) from error
            raise _not_to_be_had(error) from error
        except (OSError, ValueError) as error:
            raise _not_to_be_had(error) from error
        if self.wire and self.wire.on:
            self.wire.note(("GET", url, None), 200, {}, page)
        return page if isinstance(page, dict) else {}

    def _page(self, url: str) -> Any:
        """A list has dozens of pages, and Azure asks those who read them in a row to slow down."""
        import urllib.request
        from urllib.error import HTTPError

        for pause_s in (*_PAUSES_S, None):
            try:
                with urllib.request.urlopen(url, timeout=_TIMEOUT_S, context=self._trust) as answer:
                    return json.load(answer)
            except HTTPError as error:
                if pause_s is None or error.code != 429:
                    raise
            self._sleep(pause_s)
        raise AssertionError


def account_prices(account: Account, folder: Path | None) -> PriceList:
    """The prices of an account's VMs; for a recording, those in it."""
    if account.replay:
        prices = PriceList(account.prices)
        prices.wire = TrafficReplay(Path(account.replay))
        return prices
    recorder = TrafficRecorder(account)
    prices = PriceList(account.prices, account.ca_file, None if recorder.on else folder)  # a recording must contain all
    prices.wire = recorder
    return prices


def _not_to_be_had(error: Exception) -> ProviderFailed:
    return ProviderFailed(f"the price list is unavailable: {error}", hint="check the network connection")


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
