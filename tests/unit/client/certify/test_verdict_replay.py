"""How the metrics of an evicted run are laid over those of an undisturbed one."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.client.certify import evidence
from stoker.client.certify.code import Trait, lines_of
from stoker.client.certify.evidence import AttemptTrace, Series, Trace
from stoker.client.certify.replay import differences, fleeting, lasting, main_metric, replay, resumes


def attempts(*pieces: Series) -> list[AttemptTrace]:
    return [AttemptTrace(series={"loss": piece}) for piece in pieces]


def by_epoch(epochs: int, batches: int) -> Series:
    """Scripts that print the epoch with every batch: many values share a step."""
    return tuple((float(epoch), 10.0 * epoch + batch) for epoch in range(epochs) for batch in range(batches))


def plain(steps: int) -> Series:
    return tuple((float(step), 1.0 / step) for step in range(1, steps + 1))


def test_where_many_values_share_a_step_the_values_tell_the_place() -> None:
    whole = by_epoch(3, 4)
    laid = replay(whole, attempts(whole[:6], whole[5:]), "loss")
    assert [(one.start, one.end, one.repeated) for one in laid.stretches] == [(0, 6, 0), (5, 12, 1)]
    assert laid.missing == ()


def test_an_epoch_that_is_repeated_from_its_first_batch_is_counted() -> None:
    whole = by_epoch(3, 4)
    laid = replay(whole, attempts(whole[:6], whole[4:]), "loss")
    assert [one.repeated for one in laid.stretches] == [0, 2]


def test_values_without_steps_are_placed_by_what_they_are() -> None:
    whole = tuple((None, value) for _, value in plain(20))
    laid = replay(whole, attempts(whole[:10], whole[8:]), "loss")
    assert [(one.start, one.repeated) for one in laid.stretches] == [(0, 0), (8, 2)]


def test_values_in_vain_and_values_too_many_are_distinguished() -> None:
    whole = plain(10)
    laid = replay(whole, attempts(whole[:4], (*whole[6:], (11.0, 0.0))), "loss")
    assert laid.missing == (4, 5)
    assert laid.stretches[1].unknown == (11.0,)


@given(
    st.integers(1, 60),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=5),
)
def test_any_resumes_of_a_right_script_differ_nowhere_and_add_up(steps: int, cuts: list[tuple[int, int]]) -> None:
    """Each attempt resumes from any step done so far, and ends anywhere; the last one ends at the end."""
    whole, reached, pieces = plain(steps), 0, []
    for back, on in cuts:
        start = min(back, reached)
        reached = max(reached, min(start + on, steps))
        pieces.append(whole[start : min(start + on, steps)])
    pieces.append(whole[reached:])
    laid = replay(whole, attempts(*pieces), "loss")
    assert laid.missing == ()
    assert all(not one.differing and not one.unknown for one in laid.stretches)
    assert sum(one.repeated for one in laid.stretches) == sum(map(len, pieces)) - steps


def test_the_largest_difference_is_reported_with_its_step() -> None:
    whole = plain(10)
    other = (*whole[:5], (6.0, 1.0), (7.0, 9.0), *whole[7:])
    found = differences(Trace("a", tuple(attempts(whole))), Trace("b", tuple(attempts(whole[:5], other[5:]))))
    assert [(one.attempt, one.step, one.agreed, one.count, one.largest_step) for one in found] == [(2, 6.0, 0, 2, 7.0)]
    assert found[0].largest == pytest.approx(9.0 - 1 / 7)


def test_other_ranks_and_metrics_are_compared_on_their_own() -> None:
    one = AttemptTrace(series={"loss": plain(10), "loss of rank 1": plain(5), "acc": plain(2)})
    other = AttemptTrace(
        series={"loss": plain(10), "loss of rank 1": tuple((s, 7.0) for s, _ in plain(5)), "acc": plain(2)}
    )
    assert main_metric(Trace("a", (one,))) == "loss"
    assert [found.metric for found in differences(Trace("a", (one,)), Trace("b", (other,)))] == ["loss of rank 1"]


def test_what_an_eviction_led_to_is_reported_in_steps() -> None:
    first = AttemptTrace(series={"loss": plain(20)}, evicted=True, notice_s=5.0)
    second = AttemptTrace(series={"loss": plain(40)[14:]}, restored=True, restored_step=17.0)
    (one,) = resumes(Trace("a", tuple(attempts(plain(40)))), Trace("b", (first, second)))
    assert (one.reached, one.kept, one.went_on, one.repeated, one.by_script) == (20.0, 17.0, 15.0, 6, 3)


def test_metrics_of_time_are_known_by_their_names() -> None:
    never = ["time", "epoch_time", "train_runtime", "train_samples_per_second", "lap_ms", "eta", "time/step", "step_s"]
    assert fleeting(never) == never
    always = ["loss", "val/acc", "times_tables", "metrics", "settime", "bits_per_symbol", "loss_scale"]
    assert lasting(always) == always


# Moments


@pytest.mark.parametrize("evictions", range(1, 12))
def test_every_eviction_has_its_moment_within_the_training(evictions: int) -> None:
    for seed in range(50):
        runs = evidence.plan(random.Random(seed), 100.0, 10.0, evictions)
        every = [moment for run in runs for moment in run]
        assert len(every) == evictions
        assert any(moment.notice_s == 5.0 for moment in every)
        assert evictions < 2 or any(not moment.notice_s for moment in every)
        for run in runs:
            assert 1 <= len(run) <= evidence.MOST_PER_RUN
            assert sum(moment.share + moment.notice_s / 90.0 for moment in run if moment.share) <= 0.95 + 1e-9
            assert all(moment.after_s == pytest.approx(10.0 + 90.0 * moment.share) for moment in run if moment.share)
        early = [moment for moment in every if moment.share is None]
        assert len(early) == (evictions >= 3)
        assert all(moment.after_s < 10.0 + 0.05 * 90.0 for moment in early)


def test_the_same_chance_gives_the_same_moments() -> None:
    assert evidence.plan(random.Random(3), 9.0, 1.0, 5) == evidence.plan(random.Random(3), 9.0, 1.0, 5)


@pytest.mark.parametrize(("ran_s", "notice_s"), [(0.5, 1.0), (20.0, 2.0), (7200.0, 5.0)])
def test_notices_are_as_long_as_makes_sense(ran_s: float, notice_s: float) -> None:
    assert evidence.notice(ran_s) == notice_s


# Lines of code


@pytest.mark.parametrize(
    ("line", "traits"),
    [
        ("loader = DataLoader(data, shuffle=True)", {Trait.SHUFFLES}),
        ("self.drop = nn.Dropout(0.5)", {Trait.DRAWS}),
        ("optimizer = torch.optim.Adam(model.parameters())", {Trait.MOMENTUM}),
        ('torch.save({"optimizer": optimizer.state_dict()}, path)', {Trait.SAVES_MOMENTUM, Trait.SAVES_FILES}),
        ("joblib.dump(model, path)", {Trait.SAVES_FILES}),
        ("torch.manual_seed(0)", {Trait.SEEDS}),
        ('saved = {"opt": opt.state_dict()}', {Trait.SAVES_MOMENTUM}),
        ("state = Checkpoint(model=model, optimizer=optimizer)", {Trait.SAVES_MOMENTUM}),
        ("state = random.getstate()", {Trait.SAVES_DRAWS}),
        ("import torch", {Trait.TORCH}),
        ("import os, time, torch", {Trait.TORCH}),
        ("import mytorch, torchvision", set()),
        ("x = 1  # random.shuffle(x) would not do", set()),
        ('"""Shuffles with random.shuffle(x)."""', set()),
        ("not python at all: random.shuffle(", {Trait.SHUFFLES}),
    ],
)
def test_a_line_shows_what_bears_on_resuming(line: str, traits: set[Trait]) -> None:
    assert {found.trait for found in lines_of("train.py", line)} == traits
