"""What the checkpoint library tells of how far a training is."""

import json
from pathlib import Path

import pytest

from stoker.checkpoint import surroundings
from stoker.checkpoint.surroundings import ProgressLog


@pytest.fixture
def metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_METRICS", str(tmp_path / "metrics"))
    return tmp_path / "metrics"


def test_progress_is_reported_now_and_then(metrics: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("stoker.checkpoint.surroundings.time.monotonic", lambda: now[0])
    told = ProgressLog(reports=True)
    for step in range(1, 101):
        now[0] += 0.125
        told.tell(step, step, 100)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [(one["step"], one["values"]) for one in lines] == [(40, {"progress": 0.4}), (80, {"progress": 0.8})]


def test_a_rank_that_reports_nothing_is_silent(metrics: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "EVERY_S", 0.0)
    ProgressLog(reports=False).tell(1, 1, 2)
    assert not metrics.exists()
