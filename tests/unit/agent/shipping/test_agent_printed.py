"""Metrics of a rank's output as it grows: progress bars, the job's own expressions, and what is reported twice."""

# ruff: noqa: E501 - lines are as scripts print them

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.agent.shipping.metrics.points import LONGEST_LINE
from stoker.agent.shipping.metrics.printed import LongBar, PrintedLines, PrintedPoints, last_state
from stoker.errors import JobInvalid
from stoker.model.job.job import Job
from stoker.model.job.sections import compiled

BAR = "\x1b[1m{n}/10\x1b[0m \x1b[32m━━━━━━━━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m1s\x1b[0m 5ms/step - accuracy: {a} - loss: {l}"


class Printing:
    """A rank's log and what is read of it."""

    def __init__(self, folder: Path, metrics: Mapping[str, str] | Any = None) -> None:
        self.log = folder / "0.log"
        self.log.touch()
        self.told: list[str] = []
        self.reported: set[str] = set()
        job = Job(name="a", run="b", metrics={} if metrics is None else metrics)
        self.source = PrintedPoints(self.log, 0, job.metrics, self.reported, lambda _kind, text: self.told.append(text))

    def says(self, text: str) -> None:
        with self.log.open("ab") as log:
            log.write(text.encode())

    def points(self, *, final: bool = True) -> list[tuple[float | None, dict[str, float | None]]]:
        return [(one.step, dict(one.values)) for one in self.source.fresh(final=final)]


@pytest.fixture
def printing(tmp_path: Path) -> Iterator[Printing]:
    yield Printing(tmp_path)


def test_of_keras_bars_only_the_last_state_of_each_epoch_counts(printing: Printing) -> None:
    for epoch in (1, 2):
        printing.says(f"Epoch {epoch}/2\n")
        for n in range(1, 11):
            printing.says("\r" + BAR.format(n=n, a=n / 10, l=epoch))
        bar = BAR.format(n=10, a=0.75, l=epoch / 10)
        printing.says("\b" * 80 + "\r" + bar + f" - val_accuracy: 0.5 - val_loss: {epoch}.5\n")
    printing.says("\r" + BAR.format(n=10, a=0.25, l=0.125) + "\n")
    assert printing.points() == [
        (1, {"accuracy": 0.75, "loss": 0.1, "val_accuracy": 0.5, "val_loss": 1.5}),
        (2, {"accuracy": 0.75, "loss": 0.2, "val_accuracy": 0.5, "val_loss": 2.5}),
        (2, {"evaluate/accuracy": 0.25, "evaluate/loss": 0.125}),
    ]
    assert len(printing.told) == 1
    assert "Keras's progress bars: accuracy, loss, val_accuracy, val_loss" in printing.told[0]


def test_kerass_older_bars_are_read_too(printing: Printing) -> None:
    printing.says("Epoch 1/3\n")
    printing.says("\b\b\b\r 5/10 [====>......] - ETA: 1s - loss: 0.9")
    printing.says("\b\b\b\b\r10/10 [==============================] - 1s 5ms/step - loss: 0.5 - mean_q: 1.5\n")
    printing.says("Epoch 2/3\n10/10 - 1s - loss: 0.25 - mean_q: 2.5 - 1s/epoch - 5ms/step\n")
    assert printing.points() == [(1, {"loss": 0.5, "mean_q": 1.5}), (2, {"loss": 0.25, "mean_q": 2.5})]


@pytest.mark.parametrize("back", [50, 60, 72])
def test_a_bar_that_writes_its_count_into_its_middle_is_read_for_training_and_then_for_the_test(
    printing: Printing, back: int
) -> None:
    """As pytorch-cifar draws it, whatever the width of its terminal is."""
    bar = f" [{'=' * 48}>{'.' * 16}]  Step: 12ms | Tot: 1s2ms | Loss: %s | Acc: %s%% (63/64)"
    for epoch in range(2):
        printing.says(f"\nEpoch: {epoch}\n")
        for told in (("0.500", "75.000"), ("0.250", "87.500")):
            printing.says((bar % ("0.900", "9.000")) + "\b" * back + " 1/2 \r")
            printing.says((bar % told) + "\b" * back + " 2/2 \n")
    assert printing.points() == [
        (epoch, values)
        for epoch in range(2)
        for values in ({"loss": 0.5, "acc": 75.0}, {"test_loss": 0.25, "test_acc": 87.5})
    ]


def test_only_a_metric_that_is_new_waits_for_the_script_to_report_it_otherwise(printing: Printing) -> None:
    """A node that vanishes right after a checkpoint would take the others with it."""
    printing.source.held_s = 3600.0
    printing.says("epoch 1 loss: 0.5\n")
    assert printing.points(final=False) == []
    printing.source.held_s = 0.0
    assert printing.points(final=False) == [(1, {"loss": 0.5})]
    printing.source.held_s = 3600.0
    printing.says("epoch 2 loss: 0.25\n")
    assert printing.points(final=False) == [(2, {"loss": 0.25})]
    printing.says("epoch 2 accuracy: 0.75\n")
    assert printing.points(final=False) == []
    printing.reported.add("accuracy")
    assert printing.points() == []


def test_an_epoch_on_a_line_of_its_own_holds_for_the_lines_after_it(printing: Printing) -> None:
    printing.says(
        "Epoch 0/24\n----------\ntrain Loss: 0.5 Acc: 0.75\nval Loss: 0.25 Acc: 0.5\n\nEpoch 1/24\nval Loss: 0.125 Acc: 1.0\n"
    )
    assert printing.points() == [
        (0, {"train_loss": 0.5, "train_acc": 0.75}),
        (0, {"val_loss": 0.25, "val_acc": 0.5}),
        (1, {"val_loss": 0.125, "val_acc": 1.0}),
    ]


def test_a_dictionary_behind_a_bar_that_was_wiped_away_is_read(printing: Printing) -> None:
    printing.says("  1%|  | 10/1000 [00:01<01:00]\r" + " " * 40 + "\r{'loss': '0.6965', 'epoch': '0.5'}\n")
    assert printing.points() == [(0.5, {"loss": 0.6965})]


def test_a_bar_that_is_drawn_for_hours_is_read_in_its_last_state() -> None:
    lines = PrintedLines()
    for n in range(2000):
        assert not list(lines.feed(f"\r{n}%|{'x' * 80}| loss={n}.5".encode()))
    assert list(lines.feed(b"\r100%| loss=0.5\n")) == [b"100%| loss=0.5"]


def test_a_line_without_an_end_is_left_out_and_the_next_one_is_read() -> None:
    lines = PrintedLines()
    for _ in range(20):
        assert not list(lines.feed(b"loss: " * 10_000))
    assert list(lines.feed(b"loss: 1.5\nloss: 0.5\n")) == [b"loss: 0.5"]


drawn = st.lists(
    st.sampled_from([b"loss: 0.5", b"", b"x", b"\rloss=1.0", b"{", b"{}\r", b"loss " * 20_000, b"\r" * 3]), max_size=8
)


@given(drawn, st.lists(st.integers(0, 300), max_size=6), st.booleans())
def test_printed_lines_do_not_depend_on_the_pieces(written: list[bytes], cuts: list[int], every: bool) -> None:
    data = b"".join(line + b"\n" for line in written)
    ends = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})
    lines = PrintedLines(every=every)
    found = [line for start, end in zip([0, *ends], ends, strict=False) for line in lines.feed(data[start:end])]
    states = [last_state(line) for line in written]
    assert found == [
        one for one in states if one and len(one) <= LONGEST_LINE and (every or b"loss" in one or one[:1] == b"{")
    ]


def test_what_the_script_reports_itself_is_not_guessed_again(printing: Printing) -> None:
    printing.says('epoch 1 loss: 0.3 acc: 0.5\n{"epoch": 1, "loss": 0.31415}\n')
    assert printing.points(final=False) == [(1, {"loss": 0.31415})]  # what was guessed waits
    assert printing.points() == [(1, {"acc": 0.5})]
    printing.says("epoch 2 loss: 0.2\n")
    assert printing.points() == []


def test_the_jobs_own_expressions_rule(tmp_path: Path) -> None:
    printing = Printing(tmp_path, {"loss": r"objective ([\d.e-]+)", "kappa": r"k=(?P<value>\S+) at (?P<step>\d+)"})
    printing.says("step 3 objective 2.5e-1 loss: 9.5\nk=0.5 at 12\nk=what at 13\nepoch 4 loss: 8.5 acc: 0.75\n")
    assert printing.points() == [(3, {"loss": 0.25}), (12, {"kappa": 0.5}), (4, {"acc": 0.75})]


def test_metrics_can_be_switched_off(tmp_path: Path) -> None:
    printing = Printing(tmp_path, "off")
    printing.says('epoch 1 loss: 0.5\n{"loss": 0.25}\n')
    assert printing.points() == [(None, {"loss": 0.25})]


@pytest.mark.parametrize(
    ("pattern", "wrong"),
    [("loss (", "missing )"), ("loss", "no group"), ("(a+)+b", "inside one that repeats"), ("(?:(a|b)*c){2,}(d)", "inside one"),
     ("x" * 600, "600 characters"), (r".*.*.*.*(\d)", "4 parts")],
)  # fmt: skip
def test_a_bad_expression_is_refused_with_the_reason(pattern: str, wrong: str) -> None:
    with pytest.raises(JobInvalid) as caught:
        Job(name="a", run="b", metrics={"loss": pattern})
    assert caught.value.problems[0].field == "metrics.loss"
    assert wrong in caught.value.problems[0].found


def test_an_expression_says_what_it_finds_in_a_line() -> None:
    assert compiled(r"train loss ([\d.]+)").find("step 3: train loss 1.5, val loss 2") == (1.5, None)
    assert compiled(r"train loss ([\d.]+)").find("val loss 2") is None
    assert compiled(r"loss (\S+)").find("loss was") is None


def test_what_is_found_waits_for_nothing_while_the_node_is_about_to_go(printing: Printing) -> None:
    printing.says("epoch 3 loss: 0.5\n")
    assert printing.points(final=False) == []
    printing.source.held_s = 0.0
    assert printing.points(final=False) == [(3, {"loss": 0.5})]


STEPS = "\rSteps:  {0}%|█████     | {0}/100 [00:12<00:12,  2.43it/s, lr=0.01, acc=0.9, step_loss=0.{0}]"


def test_a_bar_for_the_whole_training_is_read_while_it_is_drawn(printing: Printing) -> None:
    printing.source.bar_s = printing.source.held_s = 0.0
    printing.says("".join(STEPS.format(n) for n in (10, 11, 12)))
    assert printing.points(final=False) == [(11.0, {"lr": 0.01, "step_loss": 0.11})]  # 12 may be incomplete
    printing.says(STEPS.format(13))
    assert printing.points(final=False) == [(12.0, {"lr": 0.01, "step_loss": 0.12})]
    assert printing.points(final=True) == [(13.0, {"lr": 0.01, "acc": 0.9, "step_loss": 0.13})]


def test_a_bar_that_ends_soon_is_read_at_its_end(printing: Printing) -> None:
    printing.source.held_s = 0.0
    for n in (10, 50, 90):
        printing.says(STEPS.format(n))
        assert printing.points(final=False) == []


@pytest.mark.parametrize(
    ("drawn", "due"),
    [
        (["Steps: 10%|", "Steps: 11%|"], True),
        (["10%|", "11%|"], True),
        (["Epoch 1: 10%|", "Epoch 2: 11%|"], False),
        (["Steps: 90%|", "Steps: 10%|"], False),
        (["Validation: 10%|", "Validation: 11%|"], False),
        (["Steps: 10%|", "loss 0.3"], False),
    ],
)
def test_only_one_bar_of_the_training_that_lasts_is_due(drawn: list[str], due: bool) -> None:
    bar = LongBar()
    bar.is_due(drawn[0], 20.0, 100.0)
    assert bar.is_due(drawn[1], 20.0, 121.0) is due
    assert not bar.is_due(drawn[1], 20.0, 122.0)
