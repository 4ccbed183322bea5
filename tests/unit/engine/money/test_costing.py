"""What many runs have cost: the rows sum to the total, whatever they are sorted by."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from stories import PRICE, at, story

from stoker.engine.money.meter import spent
from stoker.engine.money.spending import costs
from stoker.model.node import Pool
from stoker.model.run.money import By, Costs, IdleSpell, Spell
from stoker.model.run.run import Run, RunState
from stoker.model.wire import dump, load


def a_run(number: int, *spells: Spell, person: str = "", on: str = "cloud", name: str = "ants") -> Run:
    run = story(state=RunState.RUNNING)
    job = replace(run.job, name=name, on=on)
    return replace(run, id=f"{number:012x}", name=f"{name}-{number}", job=job, person=person, spells=spells)


def spell(begin: float, end: float | None, price: Decimal = PRICE) -> Spell:
    return Spell("k", at(begin), None if end is None else at(end), price)


def test_costs_are_summed_by_experiment_dearest_first() -> None:
    runs = [
        a_run(1, spell(0, 100), name="ants"),
        a_run(2, spell(0, 500), spell(600, 700), name="bees"),
        a_run(3, spell(0, 50), name="ants"),
    ]
    made = costs(runs, By.EXPERIMENT, at(1000), zone=UTC)
    assert [(row.name, row.runs, row.seconds, row.usd) for row in made.rows] == [
        ("bees", 1, Decimal(600), Decimal("0.6")),
        ("ants", 2, Decimal(150), Decimal("0.15")),
    ]
    assert (made.total.usd, made.total.runs, made.total.usd_per_hour) == (Decimal("0.75"), 3, Decimal(0))


def test_costs_are_summed_by_person_cluster_and_run() -> None:
    runs = [a_run(1, spell(0, 100), person="anna", on="lab"), a_run(2, spell(0, 300), on="cloud")]
    assert [row.name for row in costs(runs, By.PERSON, at(500), zone=UTC).rows] == ["", "anna"]
    assert [row.name for row in costs(runs, By.CLUSTER, at(500), zone=UTC).rows] == ["cloud", "lab"]
    assert [row.name for row in costs(runs, By.RUN, at(500), zone=UTC).rows] == ["ants-2", "ants-1"]


def test_idle_time_is_a_cost_of_the_cluster_and_of_its_owner_and_of_no_run() -> None:
    idle = IdleSpell("k", at(100), at(300), PRICE, owner="carl")
    run = replace(a_run(1, spell(0, 100), person="anna"), pool=Pool("dev"), idle=(idle,))
    rows = {by: [(row.name, row.usd, row.runs) for row in costs([run], by, at(500), zone=UTC).rows] for by in By}
    assert rows[By.PERSON] == [("carl", Decimal("0.2"), 0), ("anna", Decimal("0.1"), 1)]
    assert rows[By.CLUSTER] == [("dev", Decimal("0.3"), 1)]
    assert rows[By.RUN] == [("idle nodes of dev", Decimal("0.2"), 0), (run.name, Decimal("0.1"), 1)]
    assert rows[By.EXPERIMENT] == [("idle nodes of dev", Decimal("0.2"), 0), ("ants", Decimal("0.1"), 1)]


def test_a_night_is_shared_by_two_days_and_the_zone_says_where_they_part() -> None:
    late = datetime(2026, 3, 1, 23, 30, tzinfo=UTC)
    one = Spell("k", late, late + timedelta(hours=1), PRICE)
    made = costs([a_run(1, one)], By.DAY, late + timedelta(days=3), zone=UTC)
    assert [(row.name, row.usd, row.runs) for row in made.rows] == [
        ("2026-03-01", Decimal("1.8"), 1),
        ("2026-03-02", Decimal("1.8"), 1),
    ]
    assert made.total.runs == 1
    berlin = timezone(timedelta(hours=1))
    assert [row.name for row in costs([a_run(1, one)], By.DAY, late + timedelta(days=3), zone=berlin).rows] == [
        "2026-03-02"
    ]


def test_only_what_was_spent_since_counts() -> None:
    runs = [a_run(1, spell(0, 100)), a_run(2, spell(50, 250))]
    made = costs(runs, By.RUN, at(500), since=at(100), zone=UTC)
    assert [(row.name, row.usd) for row in made.rows] == [("ants-2", Decimal("0.15"))]


def test_what_goes_on_says_what_an_hour_costs() -> None:
    made = costs([a_run(1, spell(0, 100), spell(100, None, 2 * PRICE))], By.DAY, at(150), zone=UTC)
    assert made.total.usd == Decimal("0.2")
    assert made.total.usd_per_hour == 2 * PRICE


def test_a_clock_that_was_set_back_makes_no_cost_negative() -> None:
    made = costs([a_run(1, spell(100, None))], By.DAY, at(50), zone=UTC)
    assert (list(made.rows), made.total.usd) == ([], Decimal(0))


def test_no_runs_cost_nothing() -> None:
    made = costs([], By.PERSON, at(0), zone=UTC)
    assert (list(made.rows), made.total.usd, made.total.runs) == ([], Decimal(0), 0)


def test_costs_survive_their_journey() -> None:
    made = costs([a_run(1, spell(0, 100))], By.DAY, at(500), since=at(10), zone=UTC)
    assert load(Costs, dump(made)) == made


prices = some.decimals(min_value=Decimal("0.000001"), max_value=100, places=6)
moments = some.floats(min_value=0, max_value=1e6)


@settings(max_examples=150, deadline=None)
@given(
    some.lists(some.lists(some.tuples(moments, moments, prices), min_size=1, max_size=3), max_size=4),
    some.sampled_from(list(By)),
    some.integers(min_value=-720, max_value=720),
)
def test_whatever_was_spent_the_rows_sum_to_what_the_meters_say(
    lives: list[list[tuple[float, float, Decimal]]], by: By, zone_min: int
) -> None:
    runs = [
        a_run(number, *(spell(begin, begin + length, price) for begin, length, price in life))
        for number, life in enumerate(lives, 1)
    ]
    made = costs(runs, by, at(3e6), zone=timezone(timedelta(minutes=zone_min)))
    whole = sum((spent(run, at(3e6)) for run in runs), Decimal(0))
    assert sum((row.usd for row in made.rows), Decimal(0)) == made.total.usd == whole
    assert sum((row.seconds for row in made.rows), Decimal(0)) == made.total.seconds
    assert float(made.total.seconds) == pytest.approx(sum(one[1] for life in lives for one in life), abs=1e-3)
