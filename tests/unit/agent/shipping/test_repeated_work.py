"""Work that a script's output shows twice counts as redone, whatever its checkpoint says; resumed work does not."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from stories import Told, adds_up, at, evicted, seconds, story, vanished

from stoker.agent.shipping.metrics.points import MetricPoint
from stoker.agent.shipping.metrics.printed import MOST_POINTS, CountedLines, Counters, numbers
from stoker.client.report.explain import explain
from stoker.client.report.pages import taken_words
from stoker.engine.money.receipt import receipt
from stoker.model.run.receipt import Part
from stoker.model.run.report import Climb, Effort
from stoker.model.wire import dump, load


def epochs(first: float, last: float, every_s: float = 10.0, name: str = "epoch", **facts: Any) -> Climb:
    """One after another, from the first second on."""
    values = tuple(float(value) for value in range(int(first), int(last) + 1))
    return Climb(name, tuple(every_s * place for place in range(len(values))), values, **facts)


def redone(*told: Told) -> list[float]:
    run = story(*told)
    made = receipt(run, at(5000))
    adds_up(made, run)
    return [float(stay.parts[Part.REDONE].seconds) for stay in made.stays]


# --- what it costs


def test_a_script_that_ignores_its_checkpoint_and_begins_again_has_done_all_of_it_twice() -> None:
    first = evicted(kept_s=99.0, climbs=(epochs(0, 6),))
    assert redone(first, Told(asked=300, climbs=(epochs(0, 9),))) == [100, 0]


def test_what_it_had_done_before_the_point_where_it_began_again_counts() -> None:
    first = evicted(kept_s=99.0, climbs=(epochs(0, 6),))
    assert redone(first, Told(asked=300, climbs=(epochs(4, 9),))) == [60, 0]


def test_a_run_that_resumed_is_charged_what_was_not_safe_and_no_more() -> None:
    first = evicted(kept_s=80.0, climbs=(epochs(0, 8),))
    assert redone(first, Told(asked=300, climbs=(epochs(8, 12),))) == [20, 0]
    assert redone(first, Told(asked=300, climbs=(epochs(9, 12),))) == [20, 0]


def test_a_script_that_shows_nothing_is_taken_by_its_checkpoints() -> None:
    assert redone(evicted(climbs=(epochs(0, 6),)), Told(asked=300)) == [20, 0]
    assert redone(evicted(), Told(asked=300, climbs=(epochs(0, 6),))) == [20, 0]


def test_every_attempt_that_was_begun_again_is_lost() -> None:
    told = [evicted(asked=200.0 * place, kept_s=99.0, climbs=(epochs(0, 5 + place),)) for place in range(3)]
    assert redone(*told, Told(asked=900, climbs=(epochs(0, 12),))) == [100, 100, 100, 0]


def test_one_that_began_again_and_was_resumed_makes_the_one_before_it_lost() -> None:
    told = [evicted(kept_s=99.0, climbs=(epochs(0, 5),)), evicted(asked=200, kept_s=99.0, climbs=(epochs(0, 8),))]
    assert redone(*told, Told(asked=500, climbs=(epochs(9, 12),))) == [100, 1, 0]


def test_a_counter_that_resumed_is_believed_before_one_that_began_again() -> None:
    """`step` counts since the start of the process, and `epoch` all of it."""
    first = evicted(kept_s=99.0, climbs=(epochs(0, 6), epochs(0, 60, 1.0, "step")))
    second = Told(asked=300, climbs=(epochs(7, 9), epochs(0, 60, 1.0, "step")))
    assert redone(first, second) == [1, 0]


def test_a_counter_with_a_name_is_believed_before_one_without() -> None:
    first = evicted(kept_s=99.0, climbs=(epochs(0, 6), epochs(100, 160, 1.0, "served", named=False)))
    second = Told(asked=300, climbs=(epochs(0, 9), epochs(161, 200, 1.0, "served", named=False)))
    assert redone(first, second) == [100, 0]


def test_a_node_that_was_missed_late_worked_on_all_the_while() -> None:
    first = vanished(kept_s=99.0, climbs=(epochs(0, 6),))
    assert redone(first, Told(asked=300, climbs=(epochs(3, 9),))) == [100 - 30 + 12, 0]


@pytest.mark.parametrize(
    "climb",
    [
        Climb("epoch", (0.0, 10.0), (nan, 3.0)),
        Climb("epoch", (0.0, 10.0), (0.0, inf)),
        Climb("epoch", (0.0, 10.0), (-1e308, 1e308)),
        Climb("epoch", (0.0, nan), (0.0, 3.0)),
        Climb("epoch", (-5.0, 10.0), (0.0, 3.0)),
        Climb("epoch", (10.0, 0.0), (0.0, 3.0)),
        Climb("epoch", (0.0, 10.0), (3.0, 0.0)),
        Climb("epoch", (0.0,), (0.0, 3.0)),
        Climb("epoch", (), ()),
        Climb("epoch", (0.0, 10.0), ("0", "3")),  # type: ignore[arg-type]
    ],
)
def test_counters_that_cannot_be_say_nothing(climb: Climb) -> None:
    assert redone(evicted(climbs=(climb,)), Told(asked=300, climbs=(epochs(0, 6),))) == [20, 0]
    assert redone(evicted(climbs=(epochs(0, 6),)), Told(asked=300, climbs=(climb,))) == [20, 0]


@settings(max_examples=100, deadline=None)
@given(some.lists(some.tuples(some.floats(allow_nan=True), some.floats(allow_nan=True)), max_size=5), some.data())
def test_whatever_counters_say_the_receipt_adds_up(points: list[tuple[float, float]], data: some.DataObject) -> None:
    climb = Climb("step", tuple(one for one, _ in points), tuple(other for _, other in points))
    other = data.draw(some.sampled_from([climb, epochs(0, 9, name="step"), epochs(0, 9, 1e9, "step")]))
    assert all(0 <= one <= 112 for one in redone(evicted(climbs=(climb,)), vanished(asked=300, climbs=(other,))))


def test_a_receipt_and_the_story_say_where_it_began_again() -> None:
    run = story(
        evicted(kept_s=99.0, step=6, kept_step=6, climbs=(epochs(0, 6),)), Told(asked=300, climbs=(epochs(0, 9),))
    )
    made = receipt(run, at(5000))
    [taken] = made.taken
    assert (taken.again, taken.steps_lost) == ("epoch 0", None)
    assert taken_words(taken, lambda _: "14:00").endswith(
        "of work repeated, because the script started over at epoch 0"
    )
    told = explain(run, made, [], lambda _: "14:00")
    assert any("; the script started over at epoch 0; 1m 40s of work repeated" in line for line in told)
    assert any("step 6 was restored, but the script did not use it" in line for line in told)
    assert seconds(made)["useful"] == 100


# --- what a script shows


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("epoch 3 loss 0.51", {"epoch": 3}),
        ("Epoch [3/10], Step [100/500], loss: 0.2", {"epoch": 3, "step": 100}),
        ('{"epoch": 3, "loss": 0.5}', {"epoch": 3}),
        ("2026-01-01 12:30:01 INFO epoch=7 lr=0.1", {"epoch": 7}),
        ("Epoch 3/16", {"epoch": 3}),
        ("[5]\ttrain-rmse:0.12", {"[]": 5}),
        ("done 12", {"done": 12}),
        ("saved model 4", {"saved model": 4}),
        ("resuming from epoch 5", {}),
        ("loaded checkpoint of step 500", {}),
        ("total epoch 10, best epoch 3", {}),
        ("num_epochs=10, max_step: 100", {"num_epochs": 10}),
        ("took 12 s, 35 MB", {}),
        ("loss 0.25", {}),
        ("12:30:01", {}),
        ("", {}),
    ],
)
def test_counters_are_found_in_what_is_printed(line: str, found: dict[str, int]) -> None:
    assert dict(numbers(line)) == found


def shown(*lines: str) -> dict[str, tuple[float, ...]]:
    clock = iter(range(1000))
    counters = Counters(lambda: float(next(clock)))
    for line in lines:
        counters.read(line)
    return {one.name: one.values for one in counters.climbs(0.0)}


def test_a_counter_that_starts_over_in_every_epoch_says_nothing() -> None:
    lines = [f"epoch {epoch} step {step}" for epoch in range(3) for step in range(4)]
    assert shown(*lines) == {"epoch": (0, 1, 2)}


def test_a_setting_that_is_printed_first_is_not_where_it_began() -> None:
    assert shown("epoch: 10", "epoch 0", "epoch 1") == {"epoch": (0, 1)}


def test_a_hundred_thousand_values_are_a_few_points_with_the_first_and_the_last() -> None:
    [values] = shown(*(f"step {step}" for step in range(900))).values()
    assert len(values) <= MOST_POINTS
    assert (values[0], values[-1]) == (0, 899)


def test_metrics_count_with_and_without_a_step() -> None:
    counters = Counters(lambda: 5.0)
    for step in (1, 2):
        counters.see(MetricPoint(0.0, 0, step, {"loss": 0.5, "epoch": 0}))
        counters.see(MetricPoint(0.0, 0, None, {"loss": 0.5}))
        counters.see(MetricPoint(0.0, 0, step, {"epoch": nan, "step": 1e300}))
    assert {one.name: one.values for one in counters.climbs(2.0)} == {
        "step of loss": (1, 2),
        "step of epoch": (1, 2),
        "epoch": (0,),
    }


def test_a_script_that_prints_more_than_can_be_read_is_read_where_it_is(tmp_path: Any) -> None:
    log = tmp_path / "0.log"
    counters = Counters()
    lines = CountedLines(log, counters)
    assert list(lines.fresh(final=False)) == []
    log.write_text("step 1\n" + "x" * 50 + "\n")
    assert list(lines.fresh(final=False)) == []
    with log.open("a") as file:
        file.writelines(f"step {step} {'x' * 90}\n" for step in range(2, 3000))
        file.write("bar\rstep 4000\rbar")
    assert list(lines.fresh(final=False)) == []
    [climb] = counters.climbs(0.0)
    assert (climb.values[0], climb.values[-1]) == (1, 4000)


def test_climbs_survive_their_journey() -> None:
    effort = Effort(at(0), climbs=(epochs(0, 3),))
    assert load(Effort, dump(effort)) == effort
    assert load(Effort, dump(replace(effort, climbs=()))).climbs == ()
