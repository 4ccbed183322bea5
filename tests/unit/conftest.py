"""Facts to decide about, built concisely."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from stoker.model.job.job import Job
from stoker.model.run.run import Run

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def now() -> datetime:
    return NOW


@pytest.fixture
def make_run() -> Callable[..., Run]:
    def make(number: int = 1, *, job: dict[str, Any] | None = None, **facts: Any) -> Run:
        described = Job(**({"name": "ants", "run": "python train.py"} | (job or {})))
        known: dict[str, Any] = {
            "id": f"{number:012x}",
            "name": f"{described.name}-{number}",
            "number": number,
            "job": described,
            "snapshot": "s",
            "python": "python3",
            "submitted_at": NOW,
        }
        return Run(**(known | facts))

    return make
