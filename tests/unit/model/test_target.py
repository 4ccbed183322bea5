"""The value of a metric that ends a run well."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.model.job.fields import Problems
from stoker.model.job.sections import Target, TargetText


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("hr@10 >= 0.979", Target("hr@10", ">=", 0.979)),
        ("loss<1e-3", Target("loss", "<", 0.001)),
        ("  val/acc:top-1 > -.5 ", Target("val/acc:top-1", ">", -0.5)),
        ("eval.loss <= 2.", Target("eval.loss", "<=", 2.0)),
        ("損失 < 0.1", Target("損失", "<", 0.1)),
        ("précision@5>=0.9", Target("précision@5", ">=", 0.9)),
    ],
)
def test_a_target_is_a_metric_a_test_and_a_number(text: str, target: Target) -> None:
    assert TargetText().read(text, "stop_when") == target
    assert TargetText().read(target, "stop_when") is target


@pytest.mark.parametrize(
    "text",
    [
        "",
        "loss",
        "loss <",
        "< 1",
        "loss = 1",
        "loss == 1",
        "1 < loss",
        "loss < x",
        "loss < 1 2",
        "loss < nan",
        "5損 < 1",
        "e\u202ex < 1",
        5,
    ],
)
def test_anything_else_is_explained(text: object) -> None:
    with pytest.raises(Problems) as found:
        TargetText().read(text, "stop_when")
    assert "such as `val_acc >= 0.95`" in str(found.value.problems[0])


@pytest.mark.parametrize(
    ("test", "reached"),
    [
        (">=", [False, True, True]),
        (">", [False, False, True]),
        ("<=", [True, True, False]),
        ("<", [True, False, False]),
    ],
)
def test_a_target_is_reached_on_its_side_of_the_value(test: str, reached: list[bool]) -> None:
    assert [Target("m", test, 0.5).reached_by(value) for value in (0.4, 0.5, 0.6)] == reached


def test_a_value_that_is_not_a_number_reaches_nothing() -> None:
    assert not any(Target("m", test, 0.5).reached_by(float("nan")) for test in (">=", ">", "<=", "<"))


@settings(deadline=None)
@given(
    metric=st.from_regex(r"[A-Za-z_][\w.@/:-]{0,20}", fullmatch=True),
    test=st.sampled_from([">=", "<=", ">", "<"]),
    value=st.floats(allow_nan=False, allow_infinity=False),
)
def test_a_target_in_words_is_read_as_itself(metric: str, test: str, value: float) -> None:
    target = Target(metric, test, value)
    assert TargetText().read(str(target), "stop_when") == target


def test_a_target_in_words_reads_like_what_was_written() -> None:
    assert str(TargetText().read("hr@10>=0.979", "stop_when")) == "hr@10 >= 0.979"
    assert str(TargetText().read("loss < 2", "stop_when")) == "loss < 2"


def test_a_value_beyond_all_numbers_is_refused() -> None:
    with pytest.raises(Problems):
        TargetText().read("loss < 1e999", "stop_when")
