"""Where the money went: by hand for the cases that people meet, and for any history whatever, that it all adds up."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from stories import PRICE, START, Told, adds_up, at, evicted, seconds, story, vanished

from stoker.engine.money.receipt import receipt, with_effort
from stoker.model.run.money import Spell
from stoker.model.run.receipt import Part, Receipt, rounded
from stoker.model.run.report import Effort, Outcome, Phase, Report
from stoker.model.run.run import Attempt, AttemptState, RunState
from stoker.model.wire import dump, load


def test_one_quiet_run_is_split_into_what_it_did() -> None:
    run = story(Told(stage=5, blocked=10, waited=6))
    made = receipt(run, at(1000))
    assert seconds(made) == {
        "useful": 84,
        "provisioning": 40,
        "set-up": 5,
        "data": 5 + 6 + 1,
        "checkpoint": 10,
        "idle": 4,
    }
    assert made.seconds == 155
    assert made.usd == Decimal("0.155")
    assert made.parts[Part.USEFUL].usd == Decimal("0.084")
    assert made.final
    adds_up(made, run)


def test_putting_a_checkpoint_back_is_not_set_up() -> None:
    made = receipt(story(Told(unpack=8, restored=6)), at(1000))
    assert seconds(made)["checkpoint"] == 6
    assert seconds(made)["set-up"] == 2 + 3


def test_work_behind_the_last_checkpoint_of_an_evicted_attempt_was_done_twice() -> None:
    run = story(evicted(step=410, kept_step=400), Told(asked=200, place="westus2"))
    made = receipt(run, at(1000))
    assert seconds(made)["redone"] == 20
    assert seconds(made)["useful"] == 80 + 100
    (taken,) = made.taken
    assert (taken.attempt, taken.how, taken.notice_s) == (1, "evicted", 30)
    assert (taken.steps_lost, taken.safe_step, taken.step) == (10, 400, 410)
    assert taken.redone.usd == Decimal("0.020")
    adds_up(made, run)


def test_an_eviction_while_nobody_was_there_counts_with_the_work_that_was_done_twice() -> None:
    """The same attempt, on a machine that its provider restored."""
    run = story(Told(work=100))
    effort = run.attempts[0].effort
    assert effort
    restored = replace(run.attempts[0], effort=replace(effort, undone_s=30.0, evicted_at=(at(20), at(60))))
    run = replace(run, attempts=(restored,))
    made = receipt(run, at(1000))
    assert (seconds(made)["redone"], seconds(made)["useful"]) == (30, 70)
    assert [(one.attempt, one.how, one.at) for one in made.taken] == [(1, "evicted", at(20)), (1, "evicted", at(60))]
    assert all(one.alone for one in made.taken), "nobody saw whether they had notice"
    assert sum(one.redone.seconds for one in made.taken) == 30
    adds_up(made, run)


def test_a_node_that_vanishes_worked_until_it_was_missed() -> None:
    run = story(vanished(), Told(asked=300))
    made = receipt(run, at(1000))
    assert made.stays[0].parts[Part.REDONE].seconds == 30 + 12
    assert made.stays[0].parts[Part.USEFUL].seconds == 70
    assert made.taken[0].notice_s is None
    adds_up(made, run)


def test_a_node_that_had_made_its_last_save_did_nothing_until_it_was_missed() -> None:
    run = story(vanished(kept_s=100), Told(asked=300))
    first, second = run.attempts
    assert first.effort is not None
    resting = replace(first, effort=replace(first.effort, at_rest=True))
    made = receipt(replace(run, attempts=(resting, second)), at(1000))
    parts = made.stays[0].parts
    assert [parts[Part.USEFUL].seconds, parts[Part.REDONE].seconds] == [100, 0]
    assert parts[Part.IDLE].seconds == receipt(run, at(1000)).stays[0].parts[Part.IDLE].seconds + 12
    adds_up(made, run)


def test_a_node_that_was_gone_before_it_was_missed_did_nothing_meanwhile() -> None:
    """The bill ends 8 s before somebody noticed: so much less was lost."""
    run = story(vanished(idle=-8.0), Told(asked=300))
    made = receipt(run, at(1000))
    first = made.stays[0].parts
    assert [first[Part.PROVISIONING].seconds, first[Part.USEFUL].seconds] == [40, 70]
    assert [first[Part.REDONE].seconds, first[Part.IDLE].seconds] == [30 + 4, 0]
    adds_up(made, run)


def test_an_attempt_that_kept_nothing_was_for_nothing() -> None:
    made = receipt(story(vanished(kept_s=None, step=7), Told(asked=300)), at(1000))
    assert made.stays[0].parts[Part.USEFUL].seconds == 0
    assert made.stays[0].parts[Part.REDONE].seconds == 112
    assert made.taken[0].steps_lost == 7


def test_a_step_that_was_saved_was_done_although_nobody_reported_it() -> None:
    made = receipt(story(vanished(step=15, kept_step=18), Told(asked=300)), at(1000))
    assert (made.taken[0].step, made.taken[0].safe_step, made.taken[0].steps_lost) == (18, 18, 0)
    made = receipt(story(vanished(step=None, kept_step=18), Told(asked=300)), at(1000))
    assert (made.taken[0].step, made.taken[0].steps_lost) == (18, None)


def test_an_attempt_between_that_kept_nothing_costs_only_itself() -> None:
    """The third resumes from the first's checkpoint."""
    run = story(evicted(), vanished(asked=200, kept_s=None), Told(asked=500))
    made = receipt(run, at(1000))
    assert [stay.parts[Part.REDONE].seconds for stay in made.stays] == [20, 112, 0]
    adds_up(made, run)


def test_a_damaged_checkpoint_makes_more_work_be_lost() -> None:
    """Two were saved; the later one could not be restored."""
    run = story(evicted(kept_s=80), Told(asked=200))
    first, second = run.attempts
    assert first.effort is not None and first.effort.kept is not None
    assert second.effort is not None
    kept = first.effort.kept
    later = replace(kept, number=2)
    earlier = replace(kept, at=kept.at - timedelta(seconds=15))
    attempts = (
        replace(first, effort=replace(first.effort, kept=later)),
        replace(second, effort=replace(second.effort, began_from=earlier)),
    )
    made = receipt(replace(run, attempts=attempts), at(1000))
    assert made.stays[0].parts[Part.REDONE].seconds == 35


def test_a_run_that_waits_will_resume_from_its_newest_checkpoint() -> None:
    waiting = story(evicted(), state=RunState.QUEUED)
    assert seconds(receipt(waiting, at(1000)))["redone"] == 20
    cancelled = replace(waiting, state=RunState.CANCELLED, ended_at=at(400))
    assert "redone" not in seconds(receipt(cancelled, at(1000))), "nobody does it again"


def test_a_run_that_waits_behind_an_attempt_without_a_node_is_no_different() -> None:
    refused = Attempt(2, "0123456789ab-2", AttemptState.LOST, at(300), ended_at=at(302), trouble="no-capacity")
    run = story(evicted(), state=RunState.QUEUED)
    made = receipt(replace(run, attempts=(*run.attempts, refused)), at(1000))
    assert seconds(made)["redone"] == 20
    assert [one.attempt for one in made.taken] == [1], "what could not be had was not taken away"


def test_the_price_that_held_counts_for_what_was_done_meanwhile() -> None:
    """Provisioning, set-up and half of the work at one price, the rest at another."""
    run = story(Told())
    half = at(40 + 5 + 50)
    key, last = run.spells[0].key, run.spells[0].until
    run = replace(run, spells=(Spell(key, START, half, PRICE), Spell(key, half, last, PRICE * 10)))
    made = receipt(run, at(1000))
    assert made.parts[Part.PROVISIONING].usd == Decimal("0.040")
    assert made.parts[Part.USEFUL].usd == Decimal("0.050") + Decimal("0.50")
    assert made.parts[Part.IDLE].usd == Decimal("0.04")
    adds_up(made, run)


def test_what_was_asked_for_ahead_and_never_needed_was_idle() -> None:
    run = story(Told())
    spare = Spell(f"{run.id}-2", at(50), at(80), PRICE)
    run = replace(run, spells=(*run.spells, spare))
    made = receipt(run, at(1000))
    assert made.stays[1].parts[Part.IDLE].seconds == 30
    adds_up(made, run)


def test_while_it_runs_the_time_since_the_last_word_goes_on_as_it_was() -> None:
    run = story(Told(saving=0, idle=0, state=AttemptState.RUNNING, outcome=None), state=RunState.RUNNING)
    open_spell = replace(run.spells[0], until=None)
    made = receipt(replace(run, spells=(open_spell,)), at(40 + 5 + 100 + 7))
    assert seconds(made) == {"useful": 107, "provisioning": 40, "set-up": 5}
    assert made.usd_per_hour == PRICE
    assert not made.final


def test_a_run_without_attempts_has_an_empty_receipt() -> None:
    made = receipt(story(state=RunState.QUEUED), at(5))
    assert made.seconds == 0
    assert made.usd == 0
    assert made.stays == ()
    assert set(made.parts) == set(Part)


def test_a_run_on_a_free_node_has_its_minutes_anyway() -> None:
    run = story(Told(price=Decimal(0), idle=0))
    made = receipt(run, at(1000))
    assert made.free
    assert seconds(made)["useful"] == 100
    assert made.undisturbed_usd is not None or run.spells == ()


def test_a_node_that_never_spoke_was_provisioned_to_its_end() -> None:
    run = story(Told(state=AttemptState.LOST, outcome=None, facts={"effort": None, "started_at": None}))
    made = receipt(run, at(1000))
    assert seconds(made) == {"provisioning": 150}
    adds_up(made, run)


def test_an_agent_that_never_counted_is_taken_by_what_the_server_saw_and_the_receipt_says_so() -> None:
    run = story(Told(facts={"effort": None}))
    made = receipt(run, at(1000))
    assert seconds(made) == {"provisioning": 45, "useful": 100, "idle": 5}
    assert made.notes == ("attempt 1 never reported how it spent its time: all of it counts as useful",)
    adds_up(made, run)


@pytest.mark.parametrize("skew", [-1e6, -100.0, 100.0, 1e6])
def test_a_node_whose_clock_is_wrong_changes_no_sum(skew: float) -> None:
    run = story(evicted(skew=skew), Told(asked=200, skew=skew))
    made = receipt(run, at(1000))
    adds_up(made, run)
    assert seconds(made)["useful"] == 180
    assert seconds(made)["redone"] == 20


def test_a_clock_that_was_set_back_makes_nothing_negative() -> None:
    run = story(Told())
    made = receipt(replace(run, spells=(replace(run.spells[0], until=None),)), at(-500))
    assert made.usd == 0
    assert made.seconds == 0


def test_undisturbed_on_demand_it_would_have_had_one_start_and_no_work_twice() -> None:
    run = story(evicted(), Told(asked=200))
    made = receipt(run, at(1000))
    needed = 40 + 5 + 1 + 180 + 4
    assert made.undisturbed_usd == Decimal(needed) * Decimal("18.00") / 3600


def test_without_a_price_on_demand_nothing_is_compared() -> None:
    assert receipt(story(Told(on_demand=None)), at(1000)).undisturbed_usd is None


def test_an_attempt_that_is_over_keeps_what_its_agent_said_once() -> None:
    run = story(Told(facts={"effort": None}))
    effort = Effort(at(9), {Phase.RUNNING: 5.0})
    report = Report(1, 0, Phase.DONE, at(9), 7, effort=effort)
    kept = with_effort(run, report)
    assert kept.attempts[0].effort == effort
    later = replace(report, effort=replace(effort, blocked_s=1.0))
    assert with_effort(kept, later) is kept
    assert with_effort(run, replace(report, attempt=2)) is run
    assert with_effort(run, None) is run
    running = replace(run, attempts=(replace(run.attempts[0], state=AttemptState.RUNNING),))
    assert with_effort(running, report) is running


def test_a_receipt_survives_its_journey() -> None:
    made = receipt(story(evicted(), Told(asked=200)), at(1000))
    assert load(Receipt, dump(made)) == made


def test_rounded_parts_sum_to_the_rounded_whole() -> None:
    thirds = [Decimal("0.333333")] * 3
    assert rounded(thirds, Decimal("0.01")) == [Decimal("0.34"), Decimal("0.33"), Decimal("0.33")]
    assert rounded([], Decimal("0.01")) == []


amounts = some.decimals(min_value=0, max_value=10_000, places=9, allow_nan=False, allow_infinity=False)


@given(some.lists(amounts, max_size=12), some.sampled_from([Decimal("1"), Decimal("0.01"), Decimal("0.0001")]))
def test_whatever_is_rounded_sums_and_moves_by_less_than_one(values: list[Decimal], quantum: Decimal) -> None:
    after = rounded(values, quantum)
    assert sum(after, Decimal(0)) == sum(values, Decimal(0)).quantize(quantum)
    assert all(abs(one - other) < quantum for one, other in zip(values, after, strict=True))


times = some.floats(min_value=0, max_value=5000, allow_nan=False)
maybe_times = some.none() | times
prices = some.decimals(min_value=0, max_value=100, places=6, allow_nan=False, allow_infinity=False)


@some.composite
def any_told(draw: some.DrawFn) -> Told:
    """What an agent may say, and more: figures that cannot be true at all."""
    state = draw(some.sampled_from(list(AttemptState)))
    facts: dict[str, Any] = {}
    if draw(some.booleans()):
        facts["effort"] = None
    return Told(
        asked=draw(times),
        boot=draw(times),
        unpack=draw(times),
        stage=draw(times),
        prepare=draw(times),
        work=draw(times),
        saving=draw(times),
        idle=draw(some.floats(min_value=-5000, max_value=5000, allow_nan=False)),
        state=state,
        outcome=draw(some.none() | some.sampled_from(list(Outcome))),
        kept_s=draw(maybe_times),
        step=draw(maybe_times),
        kept_step=draw(maybe_times),
        restored=draw(times),
        blocked=draw(times),
        waited=draw(times),
        unheard=draw(times),
        price=draw(prices),
        skew=draw(some.floats(min_value=-1e5, max_value=1e5, allow_nan=False)),
        facts=facts,
    )


@settings(max_examples=300, deadline=None)
@given(some.lists(any_told(), max_size=5), some.sampled_from(list(RunState)), times, some.booleans())
def test_whatever_happened_the_parts_sum_to_the_whole(
    told: list[Told], state: RunState, when: float, still_costs: bool
) -> None:
    run = story(*told, state=state)
    if still_costs and run.spells:
        run = replace(run, spells=(*run.spells[:-1], replace(run.spells[-1], until=None)))
    adds_up(receipt(run, at(when)), run)


@settings(max_examples=200, deadline=None)
@given(any_told(), some.lists(some.tuples(times, prices), min_size=1, max_size=6))
def test_whatever_the_prices_did_the_parts_sum_to_the_whole(told: Told, changes: list[tuple[float, Decimal]]) -> None:
    run = story(told)
    key, since, spells = f"{run.id}-1", 0.0, []
    for length, price in changes:
        spells.append(Spell(key, at(since), at(since + length), price))
        since += length
    run = replace(run, spells=tuple(spells))
    adds_up(receipt(run, at(since)), run)
