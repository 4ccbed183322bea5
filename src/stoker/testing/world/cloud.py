"""The provider: machines that are requested, seen and released, their cost, leases, and all its faults."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal

from stoker.engine.nodes.lease import node_of
from stoker.engine.offers.market import Market, needs
from stoker.errors import LoginFailed, PriceTooHigh, ProviderFailed, ProviderUnavailable
from stoker.model.job.job import Job
from stoker.model.node import LAST_WORDS_S, Need, NodeSight, NodeState, Offer, Pool
from stoker.model.run.money import Fuse
from stoker.testing.world.scenario import MishapKind, Scenario, Timeline


class WorldMachine:
    """`number` and `node` are those of the attempt in its key. `first_key` is the one that it was requested with."""

    def __init__(self, key: str, run: str, offer: Offer | None, now: float, usd_per_hour: Decimal) -> None:
        self.fuse: Fuse | None = None  # what it may spend, as known when it was requested
        self.key = key
        self.run = run
        self.account = run  # who pays for it: its run, or the cluster whose next run it waits for
        self.idle_since: float | None = None  # it waits for one since then
        self.first_key = key
        _, self.number, self.node = node_of(key)
        self.offer = offer
        self.created_at = now
        self.up = False  # it has booted
        self.off = False
        self.releasing = False
        self.trouble = ""  # why its allocation failed
        self.reason = ""
        self.taken = False  # evicted by the provider
        self.unseen = 0  # how many faults hide it from the provider's list
        self.lease_until = math.inf  # while the server renews it
        self.lease_s = 0.0  # the last one
        self.given_at = now  # its start
        self.first_lease_s = 0.0  # as requested: how long its provider restores it
        self.incarnation = 1
        self.renewed = False
        self.price = usd_per_hour
        self._since = now
        self._cost = 0.0

    def cost(self, now: float) -> float:
        """In dollars, as the cloud bills it: from the request until it is off."""
        running = 0.0 if self.off else (now - self._since) * float(self.price) / 3600
        return self._cost + running

    def reprice(self, usd_per_hour: Decimal, now: float) -> None:
        self._cost, self._since, self.price = self.cost(now), now, usd_per_hour

    def switch_off(self, now: float, reason: str = "") -> None:
        if not self.off:
            self._cost, self._since, self.off, self.reason = self.cost(now), now, True, reason

    def switch_on(self, now: float) -> None:
        """Its provider restores it, with an empty disk."""
        self._since, self.off, self.up, self.taken, self.reason = now, False, False, False, ""
        self.lease_until, self.renewed = math.inf, False
        self.incarnation += 1

    def hand_over(self, key: str) -> None:
        """The next attempt of its run has it from now on, or a run of the same cluster."""
        self.key, self.idle_since = key, None
        self.run, self.number, self.node = node_of(key)

    def charge(self, account: str, now: float) -> float:
        """Somebody else pays for it from now on. Returns what it has cost up to now."""
        cost, self.account = self.cost(now), account
        self._cost, self._since = 0.0, now
        return cost

    def sight(self) -> NodeSight:
        machine = self.first_key if self.first_key != self.key else ""
        if self.off:
            return NodeSight(
                self.key, NodeState.GONE, self.reason, self.trouble, still=True, taken=self.taken, machine=machine
            )
        if self.releasing:
            return NodeSight(self.key, NodeState.GONE, "it is being released", usd_per_hour=self.price, machine=machine)
        state = NodeState.UP if self.up else NodeState.STARTING
        return NodeSight(self.key, state, usd_per_hour=self.price, machine=machine)


NAME = "cloud"
DEAR = Decimal(3)
VACANT_S = 2.0  # until a machine without work reads that it has some


ERRORS = {MishapKind.START_THROTTLED: ProviderUnavailable, MishapKind.START_TOO_DEAR: PriceTooHigh}


class WorldCloud:
    def __init__(self, scenario: Scenario, timeline: Timeline, changed: Callable[[], None]) -> None:
        """`changed` is called whenever a look would show something new."""
        self._scenario = scenario
        self._timeline = timeline
        self._changed = changed
        self.machines: dict[str, WorldMachine] = {}
        self.bills: dict[
            str, float
        ] = {}  # by run, or cluster: the cost of machines up to now that it no longer pays for
        self.made: Callable[[WorldMachine], None] = lambda _: None
        self.booted: Callable[[WorldMachine], None] = lambda _: None
        self.died: Callable[[WorldMachine], None] = lambda _: None
        self.taking: Callable[[], None] = lambda: None  # called before a machine is evicted
        self.faults: Counter[MishapKind] = Counter()  # current ones, and those for the next request
        self.closed: Counter[str] = Counter()  # by place
        self.prices = {place.name: place.usd_per_hour for place in scenario.places}
        self._offers = {place.name: self._offer(place.name, spot=place.spot) for place in scenario.places}
        self._markets: dict[tuple[int, str], Market] = {}
        self._boots = 0

    def market(self, job: Job, pool: Pool | None = None) -> Market:
        """The current offers, for each of the job's needs."""
        if not self._offers:
            return {}
        key = id(job), pool.name if pool else ""
        if key not in self._markets:
            self._markets[key] = {(job.on, need): self.offers(need) for need in needs(job, pool)}
        return self._markets[key]

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
        self.charge(found, found.run)
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
        return self.bills.get(run, 0.0) + sum(one.cost(now) for one in self.machines.values() if one.account == run)

    def rest(self, machine: WorldMachine, cluster: str) -> None:
        """It waits for the next run of its cluster, whose owner pays for that."""
        machine.idle_since = self._timeline.now
        self.charge(machine, cluster)

    def charge(self, machine: WorldMachine, account: str) -> None:
        if machine.account != account:
            before = machine.account
            self.bills[before] = self.bills.get(before, 0.0) + machine.charge(account, self._timeline.now)

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
        self.bills[machine.account] = self.bills.get(machine.account, 0.0) + machine.cost(now)
        self._changed()

    def _offer(self, place: str, *, spot: bool) -> Offer:
        release_s, ready_s = self._scenario.release_s, max(self._scenario.boot_s)
        price = self.prices[place]
        idle_s = self._scenario.idle_s + LAST_WORDS_S
        told = next(one for one in self._scenario.places if one.name == place)
        slots = told.capacity if told.tells else None
        return Offer(NAME, "small", place, price, slots, spot=spot, release_s=release_s, ready_s=ready_s, idle_s=idle_s)


class WorldLeases:
    """Between two rounds with the same messages to the same agents, renewals are implicit: they need no events."""

    def __init__(self, cloud: WorldCloud, timeline: Timeline, idle_s: float) -> None:
        self._cloud = cloud
        self._timeline = timeline
        self.idle_s = idle_s
        self.is_cut: Callable[[WorldMachine], bool] = lambda _: False
        self.is_idle: Callable[[WorldMachine], bool] = lambda _: False  # its agent has written its final report
        self.over: Callable[[WorldMachine], None] = lambda _: None  # the node notices that it has expired
        self.checked: Callable[[WorldMachine], None] = lambda _: None  # the check of the promise

    def begin(self, machine: WorldMachine) -> None:
        """It has booted, and counts from here."""
        if machine.lease_s and machine.incarnation > 1:  # no more than the rest
            until = machine.lease_until = machine.given_at + machine.lease_s
            self._timeline.at(until, lambda: self._check(machine, until))
        elif machine.lease_s:
            self._run_out(machine)
        self.settle(machine)

    def renew(self, lasting_s: Mapping[str, float]) -> None:
        """The server sends messages to the agents of these, by key, and no others: each may stay so long afterwards."""
        for machine in self._cloud.machines.values():
            renewed = machine.key in lasting_s
            if renewed and not (machine.up and self.is_cut(machine)):
                machine.lease_s, machine.given_at = lasting_s[machine.key], self._timeline.now
            if renewed != machine.renewed:
                # Renewals were implicit up to now.
                machine.given_at = self._timeline.now if machine.renewed else machine.given_at
                machine.renewed = renewed
                self.settle(machine)

    def cut(self, key: str) -> None:
        """The server could not release it: a message in the store ends its lease."""
        machine = self._cloud.machines.get(key)
        if machine and machine.lease_s and machine.up and not machine.off and not self.is_cut(machine):
            machine.lease_s, machine.renewed = min(machine.lease_s, self.idle_s), False
            self.settle(machine)

    def settle(self, machine: WorldMachine) -> None:
        """Whether it is renewed, or can see that, or has something to do, has changed."""
        if not machine.lease_s or not machine.up or machine.off:
            return
        if machine.renewed and not self.is_cut(machine):
            machine.lease_until = math.inf
        elif self._timeline.now + self._lasts_s(machine) < machine.lease_until:
            self._run_out(machine)

    def _lasts_s(self, machine: WorldMachine) -> float:
        return min(machine.lease_s, self.idle_s) if self.is_idle(machine) else machine.lease_s

    def _run_out(self, machine: WorldMachine) -> None:
        until = machine.lease_until = self._timeline.now + self._lasts_s(machine)
        self._timeline.at(until, lambda: self._check(machine, until))

    def _check(self, machine: WorldMachine, until: float) -> None:
        if machine.lease_until == until and not machine.off:
            self.checked(machine)
            self.over(machine)
