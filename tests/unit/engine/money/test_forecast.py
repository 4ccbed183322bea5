"""What a job will cost: from earlier runs where there are any, and honestly unknown where there are none."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from stories import Told, at, evicted, story

from stoker.engine.money.forecast import forecast, past
from stoker.model.job.job import Job
from stoker.model.node import Offer
from stoker.model.run.receipt import Forecast
from stoker.model.run.run import Run, RunState
from stoker.model.wire import dump, load

SPOT = Offer("cloud", "D2", "eastus", Decimal("3.60"), spot=True, on_demand_usd_per_hour=Decimal("18.00"))
FULL = Offer("cloud", "D2", "eastus", Decimal("18.00"), on_demand_usd_per_hour=Decimal("18.00"))
LARGE = Offer("cloud", "D8", "eastus", Decimal("72.00"), on_demand_usd_per_hour=Decimal("72.00"))


def a_job(**asked: Any) -> Job:
    return Job(name="ants", run="python train.py", on="cloud", **asked)


def quiet(work: float = 1000, **told: Any) -> Run:
    return story(Told(work=work, **told))


def larger(run: Run) -> Run:
    """The same on another size."""
    return replace(
        run,
        attempts=tuple(replace(one, offer=replace(one.offer, size="D8")) for one in run.attempts if one.offer),
    )


def test_without_earlier_runs_only_the_price_of_an_hour_is_known() -> None:
    made = forecast(a_job(), [FULL, SPOT], [], at(0))
    assert [one.offer for one in made.offers] == [SPOT, FULL]
    assert made.choice is made.offers[0]
    assert (made.choice.seconds, made.choice.usd, made.choice.evictions) == (None, None, None)
    assert made.choice.discount == pytest.approx(0.8)
    assert made.offers[1].discount is None
    assert made.why == "the cheapest per hour; runtime unknown until one run has succeeded"


def test_an_earlier_run_tells_how_long_it_takes_on_that_size() -> None:
    made = forecast(a_job(), [FULL, LARGE], [quiet()], at(9000))
    known, unknown = made.offers
    assert known.offer is FULL
    assert known.seconds == pytest.approx(46 + 1000)
    assert known.usd == Decimal("5.23")
    assert known.evictions == 0
    assert unknown.seconds is None
    assert made.why == "the cheapest choice, from 1 earlier run"


def test_a_failed_run_does_not_tell_how_long_the_work_takes() -> None:
    failed = replace(quiet(), state=RunState.FAILED)
    made = forecast(a_job(), [FULL], [failed], at(9000))
    assert made.offers[0].seconds is None
    assert made.past.runs == 0


def test_an_eviction_in_the_first_two_minutes_is_expected_again() -> None:
    stormy = story(evicted(work=60, kept_s=40), Told(asked=120, work=30))
    spot = forecast(a_job(), [SPOT], [stormy], at(9000)).offers[0]
    assert spot.evictions is not None
    assert spot.evictions > 0.2


def test_evictions_cost_another_start_and_what_was_not_saved() -> None:
    stormy = story(evicted(work=1800, kept_s=1700), Told(asked=2000, work=1800))
    known = past([stormy], at(9000))
    assert known.evictions == 1
    assert known.lost_s == 100
    assert known.work_s == {"D2": 3500}
    assert known.evictions_per_hour == pytest.approx(3600 / (1850 + 1850), rel=0.01)
    spot, full = (forecast(a_job(), [one], [stormy], at(9000)).offers[0] for one in (SPOT, FULL))
    assert full.evictions == 0
    assert spot.evictions is not None
    assert spot.evictions > 0.4
    assert spot.seconds is not None
    assert full.seconds is not None
    assert spot.seconds > full.seconds + 0.4 * 100
    assert spot.usd is not None
    assert full.usd is not None
    assert spot.usd < full.usd


def test_evictions_that_were_tried_on_other_machines_are_not_expected_of_spot() -> None:
    tried = story(replace(evicted(work=20, kept_s=15), spot=False), Told(asked=100, work=20, spot=False))
    known = past([tried], at(9000))
    assert (known.evictions, known.lost_s) == (0, 5)


def test_a_storm_in_which_nothing_gets_anywhere_is_reported_as_one() -> None:
    quick = evicted(work=1, kept_s=0, boot=1)
    stormy = story(
        *(replace(quick, asked=20.0 * number) for number in range(100)), Told(asked=9000, boot=10_000, spot=False)
    )
    made = forecast(a_job(), [SPOT], [stormy], at(99_999))
    assert made.offers[0].problem == "its nodes are evicted before they make progress"
    assert made.choice is None
    assert made.why == "D2 in eastus: its nodes are evicted before they make progress"


def test_the_cheapest_that_meets_the_deadline_is_chosen() -> None:
    runs = [quiet(work=4000), larger(quiet(work=1000))]
    made = forecast(a_job(deadline="30m"), [FULL, LARGE], runs, at(9000))
    assert made.choice is not None
    assert made.choice.offer is LARGE
    assert made.why == "the cheapest choice that meets the deadline, from 2 earlier runs"
    assert made.offers[1].problem == "takes 1h 07m, but the deadline is 30m 00s"


def test_a_budget_that_is_too_small_is_reported_with_what_it_would_take() -> None:
    made = forecast(a_job(budget="$1"), [FULL, SPOT], [quiet()], at(9000))
    assert made.choice is None or made.choice.offer is SPOT
    made = forecast(a_job(budget="$1"), [FULL], [quiet()], at(9000))
    assert made.choice is None
    assert made.offers[0].problem == "costs $5.23, but the budget is $1.00"
    assert made.why == "the cheapest costs $5.23 (D2 in eastus); the budget is $1.00"


def test_neither_quick_nor_cheap_enough_is_reported_with_both() -> None:
    runs = [quiet(work=4000), larger(quiet(work=1000))]
    made = forecast(a_job(deadline="30m", budget="$20.50"), [FULL, LARGE], runs, at(9000))
    assert made.choice is None
    assert "the fastest takes 17m 26s (D8 in eastus), the cheapest costs $20.2" in made.why
    assert made.why.endswith("the deadline is 30m 00s, the budget is $20.50")


def test_a_budget_says_how_long_it_lasts() -> None:
    (one,) = forecast(a_job(budget="$9"), [FULL], [], at(0)).offers
    assert one.lasts_s == 1800


def test_what_costs_more_than_the_job_gives_will_not_do() -> None:
    job = a_job(spot={"max_price": "1.00", "fallback": "on-demand"})
    made = forecast(job, [SPOT, FULL], [], at(0))
    assert made.choice is not None
    assert made.choice.offer is FULL
    assert made.offers[1].problem == "$3.60 an hour is more than `spot.max_price`"


def test_the_lack_of_a_matching_offer_is_reported() -> None:
    made = forecast(a_job(), [], [], at(0))
    assert (made.choice, made.why) == (None, "`cloud` has no offer that fits")


def test_several_nodes_cost_several_times_as_much() -> None:
    (one,) = forecast(a_job(nodes=4, budget="$36"), [FULL], [quiet()], at(9000)).offers
    assert one.usd == 4 * Decimal("5.23")
    assert one.lasts_s == 1800


def test_a_forecast_survives_its_journey() -> None:
    made = forecast(a_job(budget="$9"), [FULL, SPOT], [quiet()], at(9000))
    assert load(Forecast, dump(made)) == made


def test_a_run_that_changed_its_size_tells_by_its_steps() -> None:
    """The smaller machine did 100 of 400 steps in 200 s, the larger one the rest in 150 s."""
    run = story(
        evicted(work=250, kept_s=200, step=120, kept_step=100),
        Told(asked=400, work=150, step=400),
    )
    first, second = run.attempts
    assert second.offer is not None
    moved = replace(run, attempts=(first, replace(second, offer=replace(second.offer, size="D8"))))
    assert past([moved], at(9000)).work_s == {"D2": 800, "D8": 200}


def test_a_run_that_changed_its_size_and_reports_no_steps_tells_nothing() -> None:
    run = story(evicted(), Told(asked=400))
    first, second = run.attempts
    assert second.offer is not None
    moved = replace(run, attempts=(first, replace(second, offer=replace(second.offer, size="D8"))))
    assert past([moved], at(9000)).work_s == {}
