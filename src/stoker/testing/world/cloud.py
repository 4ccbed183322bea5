"""The provider: machines that are asked for, seen and released, what they cost, and everything it gets wrong."""

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
from stoker.testing.world.machine import Machine
from stoker.testing.world.scenario import Fault, Scenario
from stoker.testing.world.timeline import Timeline

NAME = "cloud"
DEAR = Decimal(3)


class Throttled(ProviderFailed):
    """As providers say it in the middle of making a machine."""

    code = "throttled"


ERRORS = {Fault.START_THROTTLED: Throttled, Fault.START_TOO_DEAR: PriceTooHigh}


class Cloud:
    def __init__(self, scenario: Scenario, timeline: Timeline, changed: Callable[[], None]) -> None:
        """`changed` is called whenever a look would show something new."""
        self._scenario = scenario
        self._timeline = timeline
        self._changed = changed
        self.machines: dict[str, Machine] = {}
        self.bills: dict[str, float] = {}  # by run: what machines that are no more have cost
        self.made: Callable[[Machine], None] = lambda _: None
        self.booted: Callable[[Machine], None] = lambda _: None
        self.died: Callable[[Machine], None] = lambda _: None
        self.taking: Callable[[], None] = lambda: None  # somebody may look before a machine is taken away
        self.faults: Counter[Fault] = Counter()  # those that hold now, and those that wait for the next request
        self.closed: Counter[str] = Counter()  # by place
        self.prices = {place.name: place.usd_per_hour for place in scenario.places}
        self._offers = {place.name: self._offer(place.name, spot=place.spot) for place in scenario.places}
        self._markets: dict[int, Market] = {}
        self._boots = 0

    def market(self, job: Job) -> Market:
        """What is on offer now, for each of the job's needs."""
        if not self._offers:
            return {}
        if id(job) not in self._markets:
            self._markets[id(job)] = {(job.on, need): self.offers(need) for need in needs(job)}
        return self._markets[id(job)]

    def offers(self, need: Need) -> list[Offer]:
        return [one for one in self._offers.values() if one.spot == need.spot]

    def start(self, key: str, run: str, offer: Offer | None, fuse: Fuse | None = None, lease_s: float = 0.0) -> None:
        """The same key never gives two machines, whatever the answer says."""
        if key in self.machines:
            return
        if self.faults[Fault.LOGGED_OUT]:
            raise LoginFailed(Fault.LOGGED_OUT)
        for fault in (Fault.START_REFUSED, Fault.START_THROTTLED, Fault.START_TOO_DEAR, Fault.START_UNTOLD):
            if self.faults[fault]:
                self.faults[fault] -= 1
                if fault is Fault.START_UNTOLD:
                    self._make(key, run, offer, fuse, lease_s)
                raise ERRORS.get(fault, ProviderFailed)(fault)
        self._make(key, run, offer, fuse, lease_s)

    def look(self) -> list[NodeSight]:
        if self.faults[Fault.BLIND] or self.faults[Fault.LOGGED_OUT]:
            raise ProviderFailed(Fault.BLIND)
        return [machine.sight() for machine in self.machines.values() if not machine.unseen]

    def stop(self, key: str) -> None:
        """The server's request; a machine's own is `release`."""
        if self.faults[Fault.STOP_REFUSED] or self.faults[Fault.LOGGED_OUT]:
            raise ProviderFailed(Fault.STOP_REFUSED)
        if key in self.machines and not self.machines[key].unseen:  # what it does not know of it cannot release
            self.release(key)
        if self.faults[Fault.STOP_UNTOLD]:
            self.faults[Fault.STOP_UNTOLD] -= 1
            raise ProviderFailed(Fault.STOP_UNTOLD)

    def release(self, key: str) -> None:
        machine = self.machines.get(key)
        if machine and not machine.releasing:
            machine.releasing = True
            self._timeline.after(0.0 if machine.off else self._scenario.release_s, lambda: self._remove(machine))
            self._changed()

    def take_away(self, machine: Machine, reason: str, *, taken: bool = True) -> None:
        """What is left of it is seen, and costs nothing, until it is released."""
        if not machine.off:
            self.taking()
            machine.taken = taken
            machine.switch_off(self._timeline.now, reason)
            self.died(machine)
            self._changed()
            if taken and self._scenario.restore_s and machine.offer and machine.offer.spot:
                self._timeline.after(self._scenario.restore_s, lambda: self._restore(machine))

    def _restore(self, machine: Machine) -> None:
        """As long as nobody has released it, and its lease is not over by then."""
        now, there = self._timeline.now, machine.off and not machine.releasing and machine.key in self.machines
        if not there or now > machine.created_at + machine.first_lease_s:
            return
        if machine.offer and self.closed[machine.offer.place] > 0:
            self._timeline.after(self._scenario.restore_s, lambda: self._restore(machine))
            return
        machine.switch_on(now)
        self._boot_later(machine)

    def close(self, place: str) -> None:
        """Its spot machines are taken back, and it gives no new ones."""
        self.closed[place] += 1
        for machine in list(self.machines.values()):
            if machine.offer and machine.offer.place == place and machine.offer.spot:
                self.take_away(machine, "it was taken back")

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
        """What the run has cost so far: the truth, which the engine has to reckon by itself."""
        now = self._timeline.now
        return self.bills.get(run, 0.0) + sum(one.cost(now) for one in self.machines.values() if one.run == run)

    def _make(self, key: str, run: str, offer: Offer | None, fuse: Fuse | None, lease_s: float) -> None:
        price = self.prices[offer.place] if offer else Decimal(0)
        machine = self.machines[key] = Machine(key, run, offer, self._timeline.now, price)
        machine.fuse, machine.lease_s, machine.first_lease_s = fuse, lease_s, lease_s
        self.made(machine)
        if offer and self.closed[offer.place] > 0:
            machine.trouble = "no-capacity"
            machine.switch_off(self._timeline.now, "there is none to be had")
            self._timeline.after(2.0, self._changed)
            return
        self._boot_later(machine)

    def _boot_later(self, machine: Machine) -> None:
        boots = self._scenario.boot_s
        self._boots += 1
        self._timeline.after(boots[self._boots % len(boots)], lambda: self._boot(machine))
        self._changed()

    def _boot(self, machine: Machine) -> None:
        if not machine.off and not machine.releasing:
            machine.up = True
            self.booted(machine)
            self._changed()

    def _remove(self, machine: Machine) -> None:
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
        return Offer(NAME, "small", place, price, spot=spot, release_s=release_s, ready_s=ready_s, idle_s=idle_s)
