"""The meter: what a run has cost, from what was seen of its nodes."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from stoker.engine.decision import Sighting
from stoker.engine.lifecycle import begin
from stoker.engine.money import meter
from stoker.model import wire
from stoker.model.node import NodeSight, NodeState, Offer
from stoker.model.run.money import Fuse, Spell
from stoker.model.run.report import Outcome, Phase, Report
from stoker.model.run.run import Run

Make = Callable[..., Run]
HOUR = Decimal("3.60")  # a tenth of a cent each second


def after(now: datetime, seconds: float) -> datetime:
    return now + timedelta(seconds=seconds)


def costing(make_run: Make, now: datetime, price: Decimal = HOUR) -> Run:
    """A run whose node was requested now, at this price."""
    run = begin(make_run(), now, [Offer("cloud", "small", "here", price)]).run
    return meter.asked(run, run.attempts[0].key, price, now)


def sees(run: Run, price: Decimal = HOUR, state: NodeState = NodeState.UP, **more: Any) -> Sighting:
    return Sighting(nodes=(NodeSight(run.attempts[-1].key, state, usd_per_hour=price, **more),))


def test_a_node_costs_from_when_it_is_asked_for_until_it_is_seen_gone(make_run: Make, now: datetime) -> None:
    run = costing(make_run, now)
    run = meter.metered(run, Sighting(), after(now, 5))
    run = meter.metered(run, sees(run), after(now, 30))
    assert meter.spent(run, after(now, 40)) == Decimal("0.04")
    run = meter.metered(run, Sighting(), after(now, 50))
    assert meter.spent(run, after(now, 9000)) == Decimal("0.05")
    assert not run.costing


def test_a_provider_that_costs_nothing_has_no_spells(make_run: Make, now: datetime) -> None:
    run = begin(make_run(), now).run
    run = meter.asked(run, run.attempts[0].key, Decimal(0), now)
    assert meter.metered(run, sees(run, Decimal(0)), after(now, 5)) == run
    assert (run.spells, meter.spent(run, after(now, 60))) == ((), Decimal(0))


def test_without_news_only_the_mark_moves_and_that_once_a_minute(make_run: Make, now: datetime) -> None:
    run = meter.metered(costing(make_run, now), sees(costing(make_run, now)), after(now, 1))
    assert meter.metered(run, sees(run), after(now, 59)) == run
    assert meter.metered(run, sees(run), after(now, 61)).spells[0].seen_at == after(now, 61)


def test_a_price_that_rises_counts_from_when_the_old_one_was_last_seen(make_run: Make, now: datetime) -> None:
    run = meter.metered(costing(make_run, now), sees(costing(make_run, now)), after(now, 10))
    run = meter.metered(run, sees(run, 2 * HOUR), after(now, 20))
    assert [spell.usd_per_hour for spell in run.spells] == [HOUR, 2 * HOUR]
    assert meter.spent(run, after(now, 20)) == Decimal("0.01") + Decimal("0.02")


def test_a_price_that_falls_counts_from_when_it_was_seen(make_run: Make, now: datetime) -> None:
    run = meter.metered(costing(make_run, now), sees(costing(make_run, now)), after(now, 10))
    run = meter.metered(run, sees(run, HOUR / 2), after(now, 20))
    assert meter.spent(run, after(now, 30)) == Decimal("0.02") + Decimal("0.005")


def test_a_price_that_is_missing_or_has_all_but_vanished_is_not_believed(make_run: Make, now: datetime) -> None:
    run = costing(make_run, now)
    run = meter.metered(run, sees(run, Decimal(0)), after(now, 10))
    run = meter.metered(run, sees(run, HOUR / 101), after(now, 20))
    assert (meter.rate(run), meter.spent(run, after(now, 30))) == (HOUR, Decimal("0.03"))


def test_a_price_that_rises_a_hundredfold_is_believed_and_reported(make_run: Make, now: datetime) -> None:
    before = meter.metered(costing(make_run, now), sees(costing(make_run, now)), after(now, 10))
    run = meter.metered(before, sees(before, 100 * HOUR), after(now, 20))
    assert meter.rate(run) == 100 * HOUR
    (event,) = meter.price_events(before, run, after(now, 20))
    assert event.text == "the price changed from $3.6 to $360 per hour"


def test_a_clock_that_steps_back_never_makes_a_smaller_sum(make_run: Make, now: datetime) -> None:
    run = meter.metered(costing(make_run, now), sees(costing(make_run, now)), after(now, 100))
    earlier = after(now, -3600)
    run = meter.metered(run, sees(run), earlier)
    assert meter.spent(run, earlier) == Decimal("0.16"), "as much as could have gone by since it was last seen"
    assert meter.spent(run, after(earlier, 10)) == Decimal("0.17"), "and it goes on from there"
    assert meter.cost(Spell("k", now, None, HOUR), earlier) == 0


def test_a_node_that_could_not_be_had_costs_nothing(make_run: Make, now: datetime) -> None:
    run = costing(make_run, now)
    refused = sees(run, Decimal(0), NodeState.GONE, trouble="no-capacity")
    run = meter.metered(run, refused, after(now, 10))
    assert (meter.spent(run, after(now, 99)), run.costing) == (Decimal(0), False)


def test_a_node_that_turns_up_after_all_has_cost_all_the_while(make_run: Make, now: datetime) -> None:
    """The response reported a failure, but the node was created."""
    run = costing(make_run, now)
    run = meter.metered(run, sees(run, Decimal(0), NodeState.GONE, trouble="provider-unavailable"), after(now, 10))
    run = meter.metered(run, sees(run), after(now, 20))
    assert meter.spent(run, after(now, 30)) == Decimal("0.03")


def test_a_node_that_was_not_looked_at_for_long_costs_no_longer_than_its_lease(make_run: Make, now: datetime) -> None:
    run = meter.metered(costing(make_run, now), sees(costing(make_run, now)), after(now, 40))
    run = meter.metered(run, Sighting(outlives_s=600), after(now, 90_000))
    assert meter.spent(run, after(now, 90_000)) == Decimal("0.7")


def test_a_node_that_gave_its_last_report_while_nobody_looked_cost_until_a_while_after_that(
    make_run: Make, now: datetime
) -> None:
    run = meter.metered(costing(make_run, now), sees(costing(make_run, now)), after(now, 40))
    last = Report(1, 0, Phase.DONE, now, beat=9, outcome=Outcome.SUCCEEDED)  # its node's clock is wrong
    seen = Sighting(report=last, said_at=after(now, 5000), outlives_s=86_400, lingers_s=700)
    ended = meter.metered(run, seen, after(now, 90_000))
    assert meter.spent(ended, after(now, 90_000)) == Decimal("5.76")
    under_way = replace(seen, report=replace(last, outcome=None))
    assert meter.spent(meter.metered(run, under_way, after(now, 80_000)), after(now, 80_000)) == Decimal(80)


def test_a_node_that_nobody_could_look_at_costs_for_as_long_as_its_lease_was_renewed(
    make_run: Make, now: datetime
) -> None:
    """Its provider cannot be asked; the server still reaches it through the store."""
    run = meter.metered(costing(make_run, now), sees(costing(make_run, now)), after(now, 40))
    renewed = meter.metered(run, Sighting(outlives_s=600, renewed_at=after(now, 5000)), after(now, 90_000))
    assert meter.spent(renewed, after(now, 90_000)) == Decimal("5.66")
    last = Report(1, 0, Phase.DONE, now, beat=9, outcome=Outcome.BUDGET_REACHED)
    ended = Sighting(report=last, said_at=after(now, 4000), outlives_s=600, lingers_s=1000)
    assert meter.spent(meter.metered(run, ended, after(now, 90_000)), after(now, 90_000)) == Decimal("4.66")


def test_a_node_that_went_while_nobody_looked_cost_no_more_than_its_budget(make_run: Make, now: datetime) -> None:
    run = replace(costing(make_run, now), budget=Decimal(3))
    run = meter.metered(run, sees(run), after(now, 40))
    gone = meter.metered(run, Sighting(outlives_s=86_400), after(now, 80_000))
    assert meter.spent(gone, after(now, 80_000)) == Decimal(3)


def test_leftovers_and_spares_are_metered_each_to_its_attempt(make_run: Make, now: datetime) -> None:
    run = costing(make_run, now)
    run = meter.asked(run, f"{run.id}-2", 2 * HOUR, after(now, 10))
    both = Sighting(nodes=(sees(run).nodes[0], NodeSight(f"{run.id}-2", NodeState.UP, usd_per_hour=2 * HOUR)))
    run = meter.metered(run, both, after(now, 15))
    assert meter.rate(run) == 3 * HOUR
    shares = {spell.key: meter.cost(spell, after(now, 20)) for spell in run.spells}
    assert shares == {f"{run.id}-1": Decimal("0.02"), f"{run.id}-2": Decimal("0.02")}
    assert sum(shares.values()) == meter.spent(run, after(now, 20))


def test_an_ended_run_stays_open_until_its_node_is_seen_gone(make_run: Make, now: datetime) -> None:
    run = costing(make_run, now)
    assert replace(run, spells=(replace(run.spells[0], until=after(now, 1)),)).costing is False
    assert run.costing


def test_costs_are_rounded_up_and_each_spell_by_itself(now: datetime) -> None:
    third = Spell("k", now, after(now, 1), Decimal(1))
    assert meter.cost(third, now) == Decimal("0.000277778")


def test_spells_and_fuses_survive_the_wire_and_older_runs_have_none(make_run: Make, now: datetime) -> None:
    run = replace(costing(make_run, now), budget=Decimal("5.00"))
    assert wire.load(Run, wire.dump(run)) == run
    plain = wire.to_plain(run)
    for name in ("spells", "budget", "warned_usd"):
        del plain[name]
    old = wire.from_plain(Run, plain)
    assert (old.spells, old.budget) == ((), None)
    fuse = Fuse(Decimal("4.9"), Decimal("1"), HOUR, now)
    assert wire.load(Fuse, wire.dump(fuse)) == fuse


def test_a_fuse_says_how_many_seconds_are_left(now: datetime) -> None:
    assert Fuse(Decimal(2), Decimal(1), Decimal(3600), now).seconds == 1
    assert Fuse(Decimal(1), Decimal(2), Decimal(3600), now).seconds == -1
    assert Fuse(Decimal(1), Decimal(0), Decimal(0), now).seconds == float("inf")


def test_a_fuse_that_is_told_late_has_less_time_left(now: datetime) -> None:
    fuse, later = Fuse(Decimal(100), Decimal(0), Decimal(3600), now), now + timedelta(seconds=30)
    assert fuse.at(later) == Fuse(Decimal(100), Decimal(30), Decimal(3600), later)
    assert (fuse.at(later).seconds, fuse.at(now), fuse.at(now - timedelta(1))) == (70, fuse, fuse)


def test_no_minute_counts_that_a_machine_had_removed_itself_by(make_run: Make, now: datetime) -> None:
    """Nobody looked for eight hours, and the last report was written after one."""
    run = meter.metered(costing(make_run, now), sees(costing(make_run, now)), after(now, 60))
    said = Report(1, 0, Phase.DONE, now, 9, outcome=Outcome.SUCCEEDED)
    seen = Sighting(report=said, outlives_s=86_400.0, lingers_s=120.0, said_at=after(now, 3600))
    run = meter.metered(run, seen, after(now, 8 * 3600))
    assert run.spells[-1].until == after(now, 3600 + meter.MARK_S + 120)
    assert not run.costing
