"""The first lines of `stoker run`: what was submitted, and what happens when the computer is closed now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stoker.cli.commands.start.attend import attend
from stoker.client.api.client import Client
from stoker.client.api.handle import RunHandle
from stoker.engine.showing import when_alone
from stoker.model.job.job import Job
from stoker.model.node import Features
from stoker.model.run.run import Run, RunState

CLOUD = Features(lease_s=5 * 86_400.0, spot=True, restores=True)
BUDGET_AND_SPOT: dict[str, Any] = {"budget": "$5", "spot": True}


@pytest.mark.parametrize(
    ("on", "given", "told"),
    [
        (
            "azure",
            {},
            "Once the run is running, you can close this computer: it continues until it ends, at most 24 h.",
        ),
        (
            "azure",
            BUDGET_AND_SPOT,
            "Once the run is running, you can close this computer: it continues until it ends, at most 5 d or $5.00; "
            "if its machine is evicted, `azure` restores it and the run resumes.",
        ),
        (
            "azure-twin",
            BUDGET_AND_SPOT,
            "The twin is on this computer: if it sleeps, the run pauses, and continues when it wakes "
            "(on `azure`, it would continue until it ends, at most 5 d or $5.00).",
        ),
        ("local", {}, "The run stops while this computer sleeps, and continues when it wakes."),
    ],
)
def test_the_first_lines_of_a_run_end_with_what_happens_if_the_laptop_is_closed(
    make_run: Callable[..., Run], capsys: pytest.CaptureFixture[str], on: str, given: dict[str, Any], told: str
) -> None:
    job = Job.read({"name": "ants", "run": "true", "on": on, **given})
    features = Features(shares_files=True) if on == "local" else CLOUD
    run = replace(make_run(), job=job, alone=when_alone(job, features, job.budget, RunState.QUEUED))
    handle = cast(RunHandle, SimpleNamespace(name=run.name, facts=run))
    assert attend(cast(Client, None), handle, f"{run.name} on {on}", detach=True, as_json=False) == 0
    first, *_, last, then = capsys.readouterr().err.splitlines()
    assert (first, last, then) == (f"{run.name} on {on}", told, f"next: stoker logs -f {run.name}")
