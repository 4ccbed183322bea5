"""Whatever clouds, clocks and nodes do: the meter is never below the bill, and the fuse never lets it pass a budget."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stoker.agent.machine.fuse import FuseClock
from stoker.engine.decision import Sighting, StartNode, StopNode, TellAgent
from stoker.engine.lifecycle import begin
from stoker.engine.money import meter
from stoker.engine.money.fuse import is_news
from stoker.engine.offers.market import needs
from stoker.engine.rounds import Scene, decide
from stoker.model.job.job import Job
from stoker.model.node import NodeSight, NodeState, Offer
from stoker.model.run.money import Fuse
from stoker.model.run.report import Outcome, Phase, Report
from stoker.model.run.run import Run, RunState

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
prices = st.decimals("0.01", "100", places=4)
gaps = st.floats(0.5, 150.0)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def new_run(**facts: Any) -> Run:
    job = Job(name="ants", run="true", on="cloud")
    given: dict[str, Any] = {
        "id": "00a",
        "name": "ants-1",
        "number": 1,
        "job": job,
        "snapshot": "",
        "python": "",
        "submitted_at": NOW,
    }
    return Run(**{**given, **facts})


def asked(price: Decimal) -> Run:
    return begin(new_run(), NOW, [Offer("cloud", "small", "here", price)]).run


@settings(deadline=None)
@given(st.lists(st.tuples(gaps, prices), min_size=2, max_size=12), st.data())
def test_the_meter_is_never_below_the_bill(looks: list[tuple[float, Decimal]], data: st.DataObject) -> None:
    """A node that appears between two looks, changes its price between looks, and disappears."""
    run, moment = asked(looks[0][1]), 0.0
    came = data.draw(st.floats(0.0, looks[0][0]), label="billed from")
    bill, since, price_before = Decimal(0), came, looks[0][1]
    for gap, price in looks:
        until = moment + gap
        turn = data.draw(st.floats(max(moment, since), until), label="the price changes at")
        bill += _exact(price_before, turn - since)
        since, price_before, moment = turn, price, until
        run = meter.metered(run, Sighting(nodes=(NodeSight("00a-1", NodeState.UP, usd_per_hour=price),)), at(moment))
        believed = meter.rate(run)
        assume(believed == price)  # one that falls a hundredfold is not believed: the meter is then far above
        assert meter.spent(run, at(moment)) >= bill + _exact(price, moment - since)
    went = data.draw(st.floats(since, moment + 10), label="billed until")
    bill += _exact(price_before, went - since)
    run = meter.metered(run, Sighting(), at(max(moment + 10, went)))
    assert meter.spent(run, at(10**6)) >= bill
    assert not run.costing


@settings(deadline=None)
@given(prices, st.lists(st.floats(-3600.0, 600.0), min_size=1, max_size=20))
def test_no_clock_makes_a_sum_negative_or_hides_more_than_a_minute(price: Decimal, jumps: list[float]) -> None:
    """However it is set, forwards or back, from look to look. A step back to before the last mark looks like time that
    has not passed."""
    run, moment, sums = asked(price), 0.0, [Decimal(0)]
    for jump in jumps:
        moment += jump
        run = meter.metered(run, Sighting(nodes=(NodeSight("00a-1", NodeState.UP, usd_per_hour=price),)), at(moment))
        sums.append(meter.spent(run, at(moment)))
    hidden = price * Decimal(meter.MARK_S) / 3600
    assert all(later >= earlier - hidden for earlier, later in pairwise(sums[1:]))
    assert min(sums) >= 0


@settings(deadline=None)
@given(st.lists(st.tuples(gaps, prices), min_size=1, max_size=8))
def test_the_parts_of_a_run_sum_to_the_whole(spells: list[tuple[float, Decimal]]) -> None:
    run = asked(Decimal(1))
    for number, (seconds, price) in enumerate(spells, 2):
        run = meter.asked(run, f"00a-{number}", price, at(seconds))
    now = at(1000)
    assert meter.spent(run, now) == sum(meter.cost(spell, now) for spell in run.spells)


def _exact(price: Decimal, seconds: float) -> Decimal:
    """What the cloud bills, to the microsecond: the meter's datetimes are no finer."""
    return price * Decimal(int(seconds * 1e6)) / Decimal(3_600_000_000) - Decimal("1E-7")


@dataclass
class Machine:
    """A node as the cloud bills it, with an agent that keeps to its fuse, unless it hangs."""

    up_at: float
    clock: FuseClock
    gone_at: float | None = None
    over: bool = False


@dataclass
class Story:
    """One run on a cloud that bills by the second. `late_s` is the longest until anything is noticed."""

    run: Run
    offer: Offer
    hangs: bool
    dies_at: float  # the server's, and when the next one begins
    back_at: float
    release_s: float  # the real duration
    needs_s: float  # what the agent reserves for its save
    price_at: tuple[float, Decimal]  # a change of the price
    now: float = 0.0
    machine: Machine | None = None
    told: Fuse | None = None
    bill: Decimal = Decimal(0)
    events: list[str] = field(default_factory=list)

    def play(self, steps: list[float]) -> None:
        for step in steps:
            self.now += step
            self._live(step)
            if not self.dies_at <= self.now < self.back_at:
                self._round()
        while self.machine or self.run.costing:
            self.now += 2.0
            self._live(2.0)
            if not self.dies_at <= self.now < self.back_at:
                self._round()
            assert self.now < 100_000, self.run

    def play_on(self) -> None:
        """To the end, in long steps as long as nothing is near."""
        while not self.run.attempts or self.machine or self.run.costing:
            left_s = self.machine.clock.left_s if self.machine else 0.0
            step = min(max(left_s - self.needs_s - 10.0, 2.0), 600.0)
            self.now += step
            self._live(step)
            self._round()

    @property
    def price(self) -> Decimal:
        turn, changed = self.price_at
        return changed if self.now >= turn else self.offer.usd_per_hour

    def _live(self, step: float) -> None:
        machine = self.machine
        if machine is None or machine.up_at > self.now:
            return
        self.bill += _exact(self.price, min(step, self.now - machine.up_at))
        if not self.hangs and not machine.over and machine.clock.left_s <= self.needs_s:
            machine.over = True
        if machine.clock.left_s <= 0 or machine.over:  # the tenant, or the agent that has done with its save
            self._release()
        if machine.gone_at is not None and self.now >= machine.gone_at:
            self.machine = None

    def _release(self) -> None:
        assert self.machine
        if self.machine.gone_at is None:
            self.machine.gone_at = self.now + self.release_s

    def _round(self) -> None:
        market = {("cloud", need): [replace(self.offer, usd_per_hour=self.price)] for need in needs(self.run.job)}
        sightings = {self.run.id: self._sighting()} if self.run.attempts else {}
        for decision in decide([self.run], sightings, Scene({"cloud": None}, at(self.now), market)):
            self.run = decision.run
            self.events += [event.kind for event in decision.events]
            for action in decision.actions:
                self._act(action)

    def _sighting(self) -> Sighting:
        machine, attempt = self.machine, self.run.attempts[-1]
        outcome = Outcome.BUDGET_REACHED if machine and machine.over else None
        up = machine is not None and machine.up_at <= self.now
        report = Report(attempt.number, 0, Phase.RUNNING, at(self.now), 1, started_at=NOW, outcome=outcome)
        state = NodeState.UP if up else NodeState.STARTING
        sight = NodeSight(attempt.key, state, usd_per_hour=self.price if up else Decimal(0))
        node = sight if machine else None
        gone = node is None and any(one.key == attempt.key and one.seen_at for one in self.run.spells)
        if gone:
            node = NodeSight(attempt.key, NodeState.GONE, still=True)
        if attempt.state.over:
            return Sighting(
                nodes=(sight,) if machine else (), leftovers=(attempt.key,) if machine else (), outlives_s=800
            )
        heard = report if up or gone else None
        if gone:
            heard = replace(report, outcome=None if self.hangs else Outcome.BUDGET_REACHED)
        return Sighting(node, heard, nodes=(sight,) if machine else (), outlives_s=800)

    def _act(self, action: object) -> None:
        match action:
            case StartNode(run, fuse) if self.machine is None and not run.attempts[-1].state.over:
                self.machine = Machine(self.now + self.offer.ready_s / 2, FuseClock(lambda: self.now))
                self.told = None
                self.machine.clock.hear(fuse, 0.0)
            case TellAgent(_, fuse) if self.machine and fuse and is_news(self.told, fuse):
                self.told = fuse
                self.machine.clock.hear(fuse, 2.0)  # read a little later than it was written
            case StopNode() if self.machine:
                self._release()


@settings(deadline=None, max_examples=60)
@given(
    seconds=st.integers(20, 400),
    price=st.decimals("1", "20", places=2),
    rise=st.decimals("0.5", "1.3", places=2),
    steps=st.lists(st.floats(0.5, 2.0), min_size=20, max_size=60),
    hangs=st.booleans(),
    save_s=st.floats(0.0, 5.0),
    released=st.floats(0.1, 1.0),
    dead=st.tuples(st.floats(0.0, 300.0), st.floats(0.0, 900.0)),
    turn_at=st.floats(0.0, 600.0),
)
def test_the_bill_never_passes_the_budget(
    seconds: int,
    price: Decimal,
    rise: Decimal,
    steps: list[float],
    hangs: bool,
    save_s: float,
    released: float,
    dead: tuple[float, float],
    turn_at: float,
) -> None:
    """With agents that hang, servers that die for a while, releases as slow as they may be and prices that move."""
    offer = Offer("cloud", "small", "here", price, ready_s=10, release_s=20)
    budget = (price * seconds / 3600).quantize(Decimal("0.01"))
    # The cloud's delays are within what the offer says; rounds, looks and the step of this story add theirs.
    story = Story(
        run=new_run(budget=budget),
        offer=offer,
        hangs=hangs,
        dies_at=dead[0],
        back_at=dead[0] + dead[1],
        release_s=released * (offer.release_s - 8.0),
        needs_s=save_s,
        price_at=(turn_at if dead[1] == 0 else 1e9, price * rise),
    )
    story.play(steps)
    assert story.bill <= budget
    assert meter.spent(story.run, at(story.now)) >= story.bill
    assert story.run.state in (RunState.PAUSED, RunState.QUEUED)
    if story.run.attempts and not hangs:
        assert meter.spent(story.run, at(story.now)) <= budget


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_of_random_budgets_little_is_left_unspent_and_never_a_cent_is_over(count: int) -> None:
    """Of ten minutes to ten hours, on a cloud that takes up to three minutes to release a machine."""
    dice, shares = random.Random(count), list[Decimal]()
    for _ in range(count):
        price = Decimal(dice.randint(5, 2000)) / 100
        offer = Offer("cloud", "small", "here", price, ready_s=60, release_s=180)
        budget = (price * Decimal(dice.uniform(600, 36_000)) / 3600).quantize(Decimal("0.0001"))
        story = Story(
            run=new_run(budget=budget),
            offer=offer,
            hangs=False,
            dies_at=1e9,
            back_at=1e9,
            release_s=dice.uniform(20, 170),
            needs_s=dice.uniform(0.5, 5.0),
            price_at=(1e9, price),
        )
        story.play_on()
        metered = meter.spent(story.run, at(story.now))
        assert story.bill <= metered <= budget
        shares.append((budget - metered) / budget)
    assert sum(shares) / count < Decimal("0.05"), f"{sum(shares) / count:.2%}"
