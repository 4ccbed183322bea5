"""The provider: machines that are requested, seen and released, their cost, and all its faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

from stoker.engine.offers.market import Market, needs
from stoker.errors import LoginFailed, PriceTooHigh, ProviderFailed
from stoker.model.job.job import Job
from stoker.model.node.node import LAST_WORDS_S, Need, NodeSight, Offer
from stoker.model.run.money import Fuse
from stoker.testing.world.machine import WorldMachine
from stoker.testing.world.scenario import MishapKind, Scenario
from stoker.testing.world.timeline import Timeline

NAME = "cloud"
DEAR = Decimal(3)
VACANT_S = 2.0  # until a machine without work reads that it has some


class Throttled(ProviderFailed):
    """As providers report it while a machine is being created."""

    code = "throttled"


ERRORS = {MishapKind.START_THROTTLED: Throttled, MishapKind.START_TOO_DEAR: PriceTooHigh}


class WorldCloud:
    def __init__(self, scenario: Scenario, timeline: Timeline, changed: Callable[[], None]) -> None:
        """`changed` is called whenever a look would show something new."""
        self._scenario = scenario
        self._timeline = timeline
        self._changed = changed
        self.machines: dict[str, WorldMachine] = {}
        self.bills: dict[str, float] = {}  # by run: the cost of deleted machines
        self.made: Callable[[WorldMachine], None] = lambda _: None
        self.booted: Callable[[WorldMachine], None] = lambda _: None
        self.died: Callable[[WorldMachine], None] = lambda _: None
        self.taking: Callable[[], None] = lambda: None  # called before a machine is evicted
        self.faults: Counter[MishapKind] = Counter()  # current ones, and those for the next request
        self.closed: Counter[str] = Counter()  # by place
        self.prices = {place.name: place.usd_per_hour for place in scenario.places}
        self._offers = {place.name: self._offer(place.name, spot=place.spot) for place in scenario.places}
        self._markets: dict[int, Market] = {}
        self._boots = 0

    def market(self, job: Job) -> Market:
        """The current offers, for each of the job's needs."""
        if not self._offers:
            return {}
        if id(job) not in self._markets:
            self._markets[id(job)] = {(job.on, need): self.offers(need) for need in needs(job)}
        return self._markets[id(job)]

    def offers(self, need: Need) -> list[Offer]:
        return [one for one in self._offers.values() if one.spot == need.spot]

    def start(self, key: str, run: str, offer: Offer | None, fuse: Fuse | None = None, lease_s: float = 0.0) -> None:
        """One key never gives two machines, whatever the response says."""
        if key in self.machines:
            return None
        if self.faults[MishapKind.LOGGED_OUT]:
            raise LoginFailed(MishapKind.LOGGED_OUT)
        if offer and offer.again:
            return self._hand_over(key, offer.again, fuse, lease_s)
        for fault in (
            MishapKind.START_REFUSED,
            MishapKind.START_THROTTLED,
            MishapKind.START_TOO_DEAR,
            MishapKind.START_UNTOLD,
        ):
            if self.faults[fault]:
                self.faults[fault] -= 1
                if fault is MishapKind.START_UNTOLD:
                    self._make(key, run, offer, fuse, lease_s)
                raise ERRORS.get(fault, ProviderFailed)(fault)
        return self._make(key, run, offer, fuse, lease_s)

    def _hand_over(self, key: str, machine: str, fuse: Fuse | None, lease_s: float) -> None:
        """A machine of the last attempt takes the next one, as soon as it has read that."""
        found = next((one for one in self.machines.values() if one.first_key == machine), None)
        if found is None or found.off or found.releasing:
            raise ProviderFailed("its machine is gone")
        del self.machines[found.key]
        found.hand_over(key)
        found.fuse, found.lease_s = fuse, lease_s
        self.machines[key] = found
        self.made(found)
        self._timeline.after(VACANT_S, lambda: self.boot(found))
        self._changed()

    def look(self) -> list[NodeSight]:
        if self.faults[MishapKind.BLIND] or self.faults[MishapKind.LOGGED_OUT]:
            raise ProviderFailed(MishapKind.BLIND)
        return [machine.sight() for machine in self.machines.values() if not machine.unseen]

    def stop(self, key: str) -> None:
        """The server's request; a machine's own is `release`."""
        if self.faults[MishapKind.STOP_REFUSED] or self.faults[MishapKind.LOGGED_OUT]:
            raise ProviderFailed(MishapKind.STOP_REFUSED)
        if key in self.machines and not self.machines[key].unseen:  # it cannot release what it does not see
            self.release(key)
        if self.faults[MishapKind.STOP_UNTOLD]:
            self.faults[MishapKind.STOP_UNTOLD] -= 1
            raise ProviderFailed(MishapKind.STOP_UNTOLD)

    def release(self, key: str) -> None:
        machine = self.machines.get(key)
        if machine and not machine.releasing:
            machine.releasing = True
            self._timeline.after(0.0 if machine.off else self._scenario.release_s, lambda: self._remove(machine))
            self._changed()

    def take_away(self, machine: WorldMachine, reason: str, *, taken: bool = True) -> None:
        """The remainder is visible, and free, until it is released."""
        if not machine.off:
            self.taking()
            machine.taken = taken
            machine.switch_off(self._timeline.now, reason)
            self.died(machine)
            self._changed()
            if taken and self._scenario.restore_s and machine.offer and machine.offer.spot:
                self._timeline.after(self._scenario.restore_s, lambda: self._restore(machine))

    def _restore(self, machine: WorldMachine) -> None:
        """Unless it was released, or its lease has expired by then."""
        now, there = self._timeline.now, machine.off and not machine.releasing and machine.key in self.machines
        if not there or now > machine.created_at + machine.first_lease_s:
            return
        if machine.offer and self.closed[machine.offer.place] > 0:
            self._timeline.after(self._scenario.restore_s, lambda: self._restore(machine))
            return
        machine.switch_on(now)
        self._boot_later(machine)

    def close(self, place: str) -> None:
        """Evicts its spot machines, and provides no new ones."""
        self.closed[place] += 1
        for machine in list(self.machines.values()):
            if machine.offer and machine.offer.place == place and machine.offer.spot:
                self.take_away(machine, "it was evicted")

    def open(self, place: str) -> None:
        self.closed[place] -= 1

    def reprice(self, place: str, usd_per_hour: Decimal) -> None:
        self.prices[place] = usd_per_hour
        self._offers[place] = replace(self._offers[place], usd_per_hour=usd_per_hour)
        self._markets.clear()
        for machine in self.machines.values():
            if machine.offer and machine.offer.place == place:
                machine.reprice(usd_per_hour, self._timeline.now)
        self._changed()

    def bill(self, run: str) -> float:
        """The true cost of the run so far, which the engine must compute by itself."""
        now = self._timeline.now
        return self.bills.get(run, 0.0) + sum(one.cost(now) for one in self.machines.values() if one.run == run)

    def _make(self, key: str, run: str, offer: Offer | None, fuse: Fuse | None, lease_s: float) -> None:
        price = self.prices[offer.place] if offer else Decimal(0)
        machine = self.machines[key] = WorldMachine(key, run, offer, self._timeline.now, price)
        machine.fuse, machine.lease_s, machine.first_lease_s = fuse, lease_s, lease_s
        self.made(machine)
        if offer and (self.closed[offer.place] > 0 or self._is_full(offer.place)):
            machine.trouble = "no-capacity"
            machine.switch_off(self._timeline.now, "no capacity")
            self._timeline.after(2.0, self._changed)
            return
        self._boot_later(machine)

    def _is_full(self, place: str) -> bool:
        most = next((one.capacity for one in self._scenario.places if one.name == place), None)
        there = [one for one in self.machines.values() if one.offer and one.offer.place == place and not one.off]
        return most is not None and len(there) > most

    def _boot_later(self, machine: WorldMachine) -> None:
        boots = self._scenario.boot_s
        self._boots += 1
        self._timeline.after(boots[self._boots % len(boots)], lambda: self.boot(machine))
        self._changed()

    def boot(self, machine: WorldMachine) -> None:
        if not machine.off and not machine.releasing:
            machine.up = True
            self.booted(machine)
            self._changed()

    def _remove(self, machine: WorldMachine) -> None:
        now = self._timeline.now
        machine.switch_off(now)
        self.died(machine)
        self.machines.pop(machine.key, None)
        self.bills[machine.run] = self.bills.get(machine.run, 0.0) + machine.cost(now)
        self._changed()

    def _offer(self, place: str, *, spot: bool) -> Offer:
        release_s, ready_s = self._scenario.release_s, max(self._scenario.boot_s)
        price = self.prices[place]
        idle_s = self._scenario.idle_s + LAST_WORDS_S
        told = next(one for one in self._scenario.places if one.name == place)
        slots = told.capacity if told.tells else None
        return Offer(NAME, "small", place, price, slots, spot=spot, release_s=release_s, ready_s=ready_s, idle_s=idle_s)
