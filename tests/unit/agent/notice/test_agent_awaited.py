"""Metrics that a job waits for and a script does not report."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.agent.notice.noticing import Awaited
from stoker.agent.shipping.metrics.points import MetricPoint
from stoker.model.job.job import Job


class Waiting:
    def __init__(self, **job: Any) -> None:
        self.now = 100.0
        self.told: list[str] = []
        one = Job(name="a", run="b", **job)
        self.awaited = Awaited(one, lambda _kind, text: self.told.append(text), lambda: self.now)

    def sees(self, after_s: float = 0.0, **values: float) -> list[str]:
        self.now += after_s
        if values:
            self.awaited.see(MetricPoint(0.0, 0, None, values))
        self.awaited.act()
        return self.told


def test_a_metric_of_nearly_the_same_name_is_named_at_once() -> None:
    waiting = Waiting(stop_when="val_acc >= 0.9")
    assert waiting.sees(loss=1.0) == []
    assert waiting.sees(val_accuracy=0.5) == [
        "warning: the script has not reported the metric `val_acc` of `stop_when`; did you mean `val_accuracy`?"
    ]
    waiting.sees(999.0)
    assert len(waiting.told) == 1


def test_without_one_a_minute_of_other_metrics_has_to_pass() -> None:
    waiting = Waiting(retention={"best": "-bleu"})
    assert waiting.sees(loss=1.0, lr=0.1) == []
    assert waiting.sees(59.0) == []
    assert waiting.sees(1.0) == [
        "warning: the script has not reported the metric `bleu` of `retention.best`; reported: `loss`, `lr`"
    ]
    assert (
        waiting.awaited.missing()
        == "the script has not reported the metric `bleu` of `retention.best`; reported: `loss`, `lr`"
    )


def test_with_a_limit_a_tenth_of_it_has_to_pass_whatever_was_seen() -> None:
    waiting = Waiting(stop_when="loss < 1", time_limit="100s")
    assert waiting.sees(9.0) == []
    assert waiting.sees(1.0) == ["warning: the script has not reported the metric `loss` of `stop_when`, nor any other"]


@pytest.mark.parametrize("job", [{}, {"stop_when": "loss < 1"}, {"retention": {"best": "-loss"}}])
def test_what_is_reported_needs_no_word(job: dict[str, Any]) -> None:
    waiting = Waiting(**job)
    assert waiting.sees(loss=2.0, acc=0.5) == []
    assert waiting.sees(9999.0) == []
    assert waiting.awaited.missing() == ""
