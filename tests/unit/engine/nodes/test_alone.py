"""The advice about closing the computer follows from the facts."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from stoker.engine.showing import spelled, when_alone
from stoker.model.job.job import Job
from stoker.model.node import Features
from stoker.model.run.money import Limit, Period
from stoker.model.run.run import RunState

HERE = Features(shares_files=True)
CLOUD = Features(lease_s=5 * 86_400.0, spot=True)
RESTORES = replace(CLOUD, restores=True)


def job(**given: Any) -> Job:
    return Job(name="ants", run="python train.py", **given)


@pytest.mark.parametrize(
    ("given", "features", "budget", "told"),
    [
        ({}, HERE, None, "The run stops while this computer sleeps, and continues when it wakes."),
        (
            {"on": "slurm"},
            replace(HERE, elsewhere=True),
            None,
            "You can close this computer: the run continues until it ends; if its allocation ends first, the run "
            "resumes when this computer is back.",
        ),
        ({}, CLOUD, None, "You can close this computer: the run continues until it ends, at most 24 h."),
        (
            {"on": "azure", "spot": True, "lease": "24h"},
            RESTORES,
            Decimal(5),
            "You can close this computer: the run continues until it ends, at most 24 h or $5.00; if its machine is "
            "evicted, `azure` restores it and the run resumes.",
        ),
        (
            {"on": "azure", "spot": True, "nodes": 2},
            RESTORES,
            None,
            "You can close this computer: the run continues until it ends, at most 24 h; if one of its machines is "
            "evicted, the run resumes when this computer is back.",
        ),
        (
            {"spot": True, "time_limit": "90m"},
            CLOUD,
            None,
            "You can close this computer: the run continues until it ends, at most 2 h; if its machine is evicted, the "
            "run resumes when this computer is back.",
        ),
        (
            {"retries": 2},
            CLOUD,
            Decimal(5),
            "You can close this computer: the run continues until it ends, at most 5 d or $5.00. A retry after the "
            "script's own failure waits for this computer.",
        ),
    ],
)
def test_it_says_what_happens_when_this_computer_is_closed(
    given: dict[str, Any], features: Features, budget: Decimal | None, told: str
) -> None:
    assert when_alone(Job.read({"name": "ants", "run": "x", **given}), features, budget, RunState.RUNNING) == told


MONTHLY = Limit(Period.MONTH, Decimal(200), "anna")
DAILY = Limit(Period.DAY, Decimal(5))


@pytest.mark.parametrize(
    ("given", "budget", "told"),
    [
        ({}, None, "at most 5 d or what anna's limit of $200.00 a month leaves."),
        ({"time_limit": "90m"}, None, "at most 2 h or what anna's limit of $200.00 a month leaves."),
        ({"lease": "24h"}, Decimal(3), "at most 24 h, $3.00 or what anna's limit of $200.00 a month leaves."),
    ],
)
def test_under_an_administrators_limit_the_bound_is_what_the_limit_leaves(
    given: dict[str, Any], budget: Decimal | None, told: str
) -> None:
    """The lease of its machine is as long as the budget lasts, which may be days: the default of 24 h does not
    apply."""
    asked = Job.read({"name": "ants", "run": "x", **given})
    said = when_alone(asked, CLOUD, budget, RunState.RUNNING, limits=[MONTHLY])
    assert said == f"You can close this computer: the run continues until it ends, {told}"


def test_every_limit_is_named() -> None:
    said = when_alone(job(), CLOUD, None, RunState.RUNNING, limits=[MONTHLY, DAILY])
    whose = "anna's limit of $200.00 a month and the limit of everybody together of $5.00 a day"
    assert said.endswith(f"at most 5 d or what {whose} leave.")


@pytest.mark.parametrize("state", [None, RunState.QUEUED, RunState.STARTING, RunState.PAUSED])
def test_a_run_without_a_machine_still_needs_this_computer(state: RunState | None) -> None:
    told = when_alone(job(), CLOUD, None, state)
    assert told.startswith("Once the run is running, you can close this computer: it continues until it ends")


@pytest.mark.parametrize("on", ["azure", "azure-twin"])
def test_a_run_that_has_ended_needs_no_advice(on: str) -> None:
    assert when_alone(job(on=on), CLOUD, None, RunState.SUCCEEDED) == ""


@pytest.mark.parametrize("state", [None, RunState.QUEUED, RunState.RUNNING])
def test_a_rehearsal_says_that_its_cloud_sleeps_too_and_how_the_real_one_would_not(state: RunState | None) -> None:
    """Promising that it continues while this computer sleeps would be wrong: its machines are processes here."""
    asked = job(on="azure-twin", spot=True, lease=86_400)
    told = "The twin is on this computer: if it sleeps, the run pauses, and continues when it wakes"
    assert when_alone(asked, RESTORES, Decimal(5), state) == (
        f"{told} (on `azure`, it would continue until it ends, at most 24 h or $5.00)."
    )
    assert when_alone(job(on="azure-twin"), replace(CLOUD, lease_s=0.0), None, state) == (
        f"{told} (on `azure`, it would continue until it ends)."
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(86_400, "24 h"), (2 * 86_400, "2 d"), (5400, "90 min"), (9000, "2 h"), (90, "90 s"), (1, "1 s")],
)
def test_times_are_reported_in_one_unit(seconds: float, text: str) -> None:
    assert spelled(seconds) == text
