"""The budget limit: what is reserved, when a run is stopped, and how it resumes."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from stoker.engine.decision import Decision, Sighting, StartNode, StopNode, TellAgent
from stoker.engine.money import fuse, meter
from stoker.engine.offers.market import needs
from stoker.engine.rounds import Scene, decide
from stoker.errors import BudgetTooSmall, Conflict
from stoker.model.cause import Cause
from stoker.model.node import NodeSight, NodeState, Offer
from stoker.model.orders import Notice, Wish
from stoker.model.run.report import Outcome, Phase, Report
from stoker.model.run.run import AttemptState, Run, RunState

Make = Callable[..., Run]
HOUR = Decimal("36")  # a cent each second
OFFER = Offer("cloud", "small", "here", HOUR, ready_s=10, release_s=20)
CHEAP = replace(OFFER, size="tiny", usd_per_hour=HOUR / 10)


class Story:
    """One run in a cloud with these offers, second by second."""

    def __init__(self, run: Run, now: datetime, *offers: Offer) -> None:
        self.run = run
        self.now = now
        self.offers = offers or (OFFER,)
        self.events: list[str] = []
        self.actions: tuple[Any, ...] = ()

    def round(self, after_s: float = 1.0, **seen: Any) -> Run:
        self.now += timedelta(seconds=after_s)
        market = {("cloud", need): self.offers for need in needs(self.run.job)}
        sightings = {self.run.id: Sighting(**seen)} if self.run.attempts else {}
        decisions = decide([self.run], sightings, Scene({"cloud": None}, self.now, market))
        decision = decisions[0] if decisions else Decision(self.run)
        self.events += [event.kind for event in decision.events]
        self.run, self.actions = decision.run, decision.actions
        return self.run

    def up(self, after_s: float = 1.0, price: Decimal = HOUR, **seen: Any) -> Run:
        """Its node exists and works."""
        node = NodeSight(self.run.attempts[-1].key, NodeState.UP, usd_per_hour=price)
        given = {"node": node, "nodes": (node,), "report": self.report()} | seen
        return self.round(after_s, **given)

    def report(self, outcome: Outcome | None = None, **more: Any) -> Report:
        phase = Phase.DONE if outcome else Phase.RUNNING
        return Report(len(self.run.attempts), 0, phase, self.now, 1, started_at=self.now, outcome=outcome, **more)

    def fuses(self) -> list[Any]:
        return [action.fuse for action in self.actions if isinstance(action, StartNode | TellAgent)]


@pytest.fixture
def story(make_run: Make, now: datetime) -> Story:
    """A dollar is a hundred seconds."""
    return Story(make_run(job={"on": "cloud"}, budget=Decimal(1)), now)


def test_the_orders_of_a_node_contain_its_budget(story: Story) -> None:
    story.round()
    (told,) = story.fuses()
    assert (told.stop_at_usd, told.spent_usd, told.usd_per_hour) == (Decimal("0.8"), 0, HOUR)
    assert told.why == "its budget of $1.00"


def test_a_node_without_a_report_gets_no_further_messages(story: Story) -> None:
    story.round()
    story.up(report=None)
    assert story.fuses() == [None]
    story.up()
    assert story.fuses()[0].spent_usd == Decimal("0.02")


def test_the_warning_comes_once_for_each_budget(story: Story) -> None:
    story.round()
    story.up(70)
    assert "budget-warning" not in story.events
    story.run = replace(story.run, budget=Decimal("2"))
    story.up(100)
    story.up()
    assert story.events.count("budget-warning") == 1
    story.run = fuse.set_budget(story.run, Decimal(100), story.now).run
    story.up()
    assert story.events.count("budget-warning") == 1


def test_before_the_budget_is_spent_the_node_has_the_time_to_save_and_to_be_released(story: Story) -> None:
    story.round()
    story.up(74)
    assert story.run.attempts[0].fused is None
    story.up()
    lit = story.run.attempts[0].fused
    assert lit and (lit.at, lit.deadline) == (story.now, story.now + timedelta(seconds=5))
    assert fuse.reserve(story.run) == Decimal("0.25")


def test_what_saving_takes_is_measured_and_held_back(story: Story) -> None:
    story.round()
    story.up(10, report=story.report(save_s=20.0))
    assert (fuse.save_s(story.run), fuse.reserve(story.run)) == (25.0, Decimal("0.45"))
    story.up(45)
    assert story.run.attempts[0].fused


def test_a_node_that_stopped_by_its_fuse_leaves_a_paused_run(story: Story) -> None:
    story.round()
    story.up(77)
    story.up(report=story.report(Outcome.BUDGET_REACHED))
    run = story.run
    assert (run.state, run.attempts[0].state, run.attempts[0].outcome) == (
        RunState.PAUSED,
        AttemptState.ENDED,
        Outcome.BUDGET_REACHED,
    )
    assert (run.cause, run.hint) == (Cause.BUDGET_SPENT, "stoker budget ants-1 2")
    assert story.events[-1] == "paused"
    assert not run.state.ended


def test_a_node_that_does_not_stop_is_stopped_and_its_last_report_is_read(story: Story) -> None:
    story.round()
    story.up(7)
    story.up(70)
    story.up(3)
    assert story.actions == (StopNode("cloud", "000000000001-1"),)
    assert story.run.state is RunState.RUNNING
    gone = NodeSight("000000000001-1", NodeState.GONE, still=True)
    run = story.round(node=gone, report=story.report())
    assert run.state is RunState.PAUSED
    assert meter.spent(story.run, story.now + timedelta(days=1)) <= Decimal(1)


def test_a_node_that_never_comes_is_given_up_before_it_costs_more_than_it_may(story: Story) -> None:
    story.round()
    story.round(77)
    assert story.run.attempts[0].fused
    story.round(3)
    assert story.run.state is RunState.PAUSED
    assert StopNode("cloud", "000000000001-1") in story.actions


def test_raising_the_budget_resumes_the_run(story: Story) -> None:
    story.round()
    story.up(77)
    story.up(report=story.report(Outcome.BUDGET_REACHED))
    story.round()
    story.run = fuse.set_budget(story.run, Decimal(5), story.now).run
    assert (story.run.state, story.run.reason, story.run.hint) == (RunState.QUEUED, "", "")
    story.round()
    assert (story.run.state, len(story.run.attempts)) == (RunState.STARTING, 2)
    assert story.fuses()[0].spent_usd == meter.spent(story.run, story.now), "what was spent before counts"


def test_raising_it_by_too_little_is_refused_with_the_least_that_would_do(story: Story) -> None:
    story.round()
    story.up(77)
    story.up(report=story.report(Outcome.BUDGET_REACHED))
    story.round()
    with pytest.raises(BudgetTooSmall, match=r"\$1\.24") as told:
        fuse.set_budget(story.run, Decimal("1.10"), story.now)
    assert told.value.hint == "stoker budget ants-1 1.24"


def test_raising_it_while_the_node_saves_calls_the_stop_off(story: Story) -> None:
    story.round()
    story.up(77)
    story.run = fuse.set_budget(story.run, Decimal(2), story.now).run
    story.up()
    assert story.run.attempts[0].fused is None
    assert story.events[-1] == "fuse-withdrawn"


def test_taking_the_budget_off_while_the_node_saves_calls_the_stop_off(story: Story) -> None:
    story.round()
    story.up(77)
    story.run = fuse.set_budget(story.run, None, story.now).run
    story.up()
    assert (story.run.attempts[0].fused, story.events[-1]) == (None, "fuse-withdrawn")
    story.up(1000)
    assert story.run.state is RunState.RUNNING


def test_lowering_it_below_what_is_spent_still_gives_the_time_to_save(story: Story) -> None:
    story.round()
    story.up(50)
    story.run = fuse.set_budget(story.run, Decimal("0.10"), story.now).run
    story.up()
    lit = story.run.attempts[0].fused
    assert lit and lit.seconds == 5
    assert story.fuses()[0].seconds == 4, "and the node knows it"
    story.up(4)
    assert story.actions == (StopNode("cloud", "000000000001-1"),)


def test_a_run_that_has_ended_has_no_budget_to_set(make_run: Make, now: datetime) -> None:
    with pytest.raises(Conflict, match=r"`ants-1`.*succeeded"):
        fuse.set_budget(make_run(state=RunState.SUCCEEDED), Decimal(1), now)


def test_a_budget_below_the_cheapest_start_pauses_at_placing_with_the_minimum(make_run: Make, now: datetime) -> None:
    story = Story(make_run(job={"on": "cloud"}, budget=Decimal("0.40")), now)
    story.round()
    assert story.run.state is RunState.PAUSED
    assert story.run.cause == Cause.UNAFFORDABLE
    assert story.run.reason == "its budget of $0.40 leaves $0.40, but the cheapest start costs $0.45"
    assert story.run.hint == "stoker budget ants-1 0.80"
    assert not story.run.attempts


def test_of_several_offers_one_that_can_be_paid_is_taken(make_run: Make, now: datetime) -> None:
    story = Story(make_run(job={"on": "cloud"}, budget=Decimal("0.40")), now, OFFER, CHEAP)
    story.round()
    assert story.run.attempts[0].offer == CHEAP


def test_after_an_eviction_the_next_attempt_has_what_is_left(story: Story) -> None:
    story.round()
    story.up(40)
    story.round(node=NodeSight("000000000001-1", NodeState.GONE, still=True), report=story.report())
    assert len(story.run.attempts) == 2
    assert story.fuses()[0].spent_usd == Decimal("0.41")


def test_after_an_eviction_with_too_little_left_the_run_is_paused(story: Story) -> None:
    story.round()
    story.up(70)
    story.round(node=NodeSight("000000000001-1", NodeState.GONE, still=True), report=story.report())
    assert story.run.state is RunState.PAUSED
    assert story.run.cause == Cause.UNAFFORDABLE and "$0.29" in story.run.reason


LEASED = replace(OFFER, idle_s=40)


def beside(story: Story, worked_s: float) -> None:
    """A node got an eviction notice, and another one is requested if it can be paid."""
    story.round()
    story.up(worked_s)
    notice = Notice(story.now, story.now + timedelta(seconds=30), drill=False)
    story.up(report=story.report(notice=notice))


SPOT = {"on": "cloud", "spot": True}
SECOND = 2 * (LEASED.ready_s + LEASED.idle_s + LEASED.release_s) / 100  # at a cent a second


@pytest.mark.parametrize(("worked_s", "asked_ahead"), [(0, True), (30, False)])
def test_a_spare_is_asked_for_only_if_both_can_be_paid_should_nobody_reach_the_first(
    make_run: Make, now: datetime, worked_s: float, asked_ahead: bool
) -> None:
    story = Story(make_run(job=SPOT, budget=Decimal(str(4 * SECOND + 0.2))), now, replace(LEASED, spot=True))
    beside(story, worked_s)
    assert ("asked-ahead" in story.events) is asked_ahead


def test_a_node_that_works_on_unheard_leaves_enough_for_a_second_one(make_run: Make, now: datetime) -> None:
    """The first node knows only what it got at its start, whatever happens then."""
    story = Story(make_run(job=SPOT, budget=Decimal(10)), now, replace(LEASED, spot=True))
    story.round()
    (first,) = story.fuses()
    most = first.stop_at_usd + Decimal(LEASED.release_s) / 100
    assert most == Decimal(10) - Decimal(str(SECOND))
    beside(story, 10)
    before = story.run.attempts[0]
    over = replace(before, state=AttemptState.EVICTED, spare=None)
    second = replace(before, number=2, key=f"{story.run.id}-2", notice=None, spare=None)
    run = replace(story.run, attempts=(over, second))
    allowance = fuse.Allowance(Decimal(10), "its budget")
    left_s = fuse.left_s(run, allowance, story.now)
    began = next(one.since for one in run.spells if one.key == second.key)
    costs = (story.now - began).total_seconds() + left_s + LEASED.release_s
    assert costs / 100 == pytest.approx(SECOND)
    assert left_s > 60, "and it is not stopped at once: the first is likely to be seen gone in a moment"
    told = fuse.told(run, allowance, story.now)
    assert told and told.seconds <= left_s
    gone = replace(run, spells=tuple(one for one in run.spells if one.key == second.key))
    assert fuse.left_s(gone, allowance, story.now) > 500


def test_near_the_end_of_its_budget_a_node_that_is_heard_may_spend_all_of_it(make_run: Make, now: datetime) -> None:
    story = Story(make_run(job=SPOT, budget=Decimal(str(SECOND * 3))), now, replace(LEASED, spot=True))
    story.round()
    (told,) = story.fuses()
    assert told.stop_at_usd == Decimal(str(SECOND * 3)) - Decimal(LEASED.release_s) / 100


@pytest.mark.parametrize(("worked_s", "asked_ahead"), [(10, True), (60, False)])
def test_a_spare_that_the_budget_cannot_pay_is_not_asked_for(story: Story, worked_s: float, asked_ahead: bool) -> None:
    story.round()
    story.up(worked_s)
    notice = Notice(story.now, story.now + timedelta(seconds=30), drill=False)
    story.up(report=story.report(notice=notice))
    assert ("asked-ahead" in story.events) is asked_ahead
    assert meter.rate(story.run) == (2 * HOUR if asked_ahead else HOUR)


def test_a_cancelled_run_that_does_not_end_is_stopped_for_its_money_anyway(story: Story) -> None:
    story.round()
    story.up(77)
    story.run = replace(story.run, wish=Wish.CANCEL)
    story.up(4)
    assert story.actions == (StopNode("cloud", "000000000001-1"),)
    story.round(node=NodeSight("000000000001-1", NodeState.GONE, still=True), report=story.report())
    assert story.run.state is RunState.CANCELLED


def test_a_kept_node_is_released_when_the_budget_is_spent(story: Story) -> None:
    story.round()
    story.up(10)
    story.run = replace(story.run, state=RunState.FAILED, kept_until=story.now + timedelta(hours=9))
    story.up(60)
    assert story.run.kept_until
    story.up(10)
    assert story.run.kept_until is None
    assert story.actions == (StopNode("cloud", "000000000001-1"),)


def test_a_budget_where_nothing_costs_never_blows(make_run: Make, now: datetime) -> None:
    story = Story(make_run(job={"on": "cloud"}, budget=Decimal("0.01")), now, replace(OFFER, usd_per_hour=Decimal(0)))
    story.round()
    story.up(1_000_000, price=Decimal(0))
    assert (story.run.state, story.run.spells, story.fuses()) == (RunState.RUNNING, (), [None])


def test_a_fuse_is_told_again_only_where_the_moment_to_stop_has_moved(story: Story) -> None:
    story.round()
    story.up()
    (first,) = story.fuses()
    story.up(20)
    (later,) = story.fuses()
    assert not fuse.is_news(first, later)
    story.up(price=2 * HOUR)
    (dearer,) = story.fuses()
    assert fuse.is_news(first, dearer)
    assert fuse.is_news(None, first)


def test_a_paused_run_that_is_cancelled_ends(make_run: Make, now: datetime) -> None:
    story = Story(make_run(job={"on": "cloud"}, budget=Decimal("0.40")), now)
    story.round()
    cancelled = decide([replace(story.run, wish=Wish.CANCEL)], {story.run.id: Sighting()}, Scene({"cloud": None}, now))
    assert (cancelled[0].run.state, cancelled[0].run.cause) == (RunState.CANCELLED, Cause.CANCELLED)


@pytest.mark.parametrize(
    ("usd", "text"), [("5", "$5.00"), ("0", "$0.00"), ("0.0042", "$0.0042"), ("0.00001", "$0.0000"), ("12.3", "$12.30")]
)
def test_dollars_are_spelled_in_cents_and_finer_where_it_is_less_than_one(usd: str, text: str) -> None:
    assert fuse.dollars(Decimal(usd)) == text
