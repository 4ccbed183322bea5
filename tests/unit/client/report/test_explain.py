"""What happened and why: sentences for people who were not there."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from stories import START, Told, at, evicted, story, vanished

from stoker.client.report.explain import explain
from stoker.engine.money.receipt import receipt
from stoker.model.node import Offer
from stoker.model.orders import Notice
from stoker.model.run.report import Outcome
from stoker.model.run.run import Attempt, AttemptState, Event, Run, RunState


def clock(moment: datetime) -> str:
    return f"{moment:%H:%M:%S}"


def told(run: Run, *events: Event, when: float = 2000) -> list[str]:
    return explain(run, receipt(run, at(when)), events, clock)


def test_an_undisturbed_run_is_a_short_story() -> None:
    assert told(story(Told(), person="anna")) == [
        "14:00:00 ants-1 was submitted by anna to run on cloud",
        "14:00:45 the script started on a spot D2 in eastus, 45 s after the request"
        " (40 s for the machine, 5.0 s for set-up)",
        "14:02:30 it succeeded",
        "it cost $0.1500, 67 % of it for useful work",
    ]


def test_an_eviction_is_reported_with_what_was_safe_what_was_lost_and_what_that_cost() -> None:
    run = story(
        evicted(notice_s=9.0, step=4110, kept_step=4100),
        Told(asked=150, place="westus2", step=9000),
    )
    lines = told(run)
    assert lines[2] == (
        "14:02:25 it was evicted with 9.0 s notice; step 4,100 of 4,110 was saved;"
        " 20 s of work repeated (10 steps); $0.0200"
    )
    assert lines[3] == "14:03:15 it resumed from step 4,100, on a new node in westus2 50 s later"
    assert lines[-1] == "it cost $0.3000, 60 % of it for useful work, $0.0200 for repeated work"


def test_an_eviction_that_cost_no_work_says_that_everything_was_safe() -> None:
    run = story(evicted(kept_s=100.0, step=4100, kept_step=4100), Told(asked=150))
    assert told(run)[2] == "14:02:25 it was evicted with 30 s notice; step 4,100 was already saved"


def test_a_script_that_reports_no_steps_is_reported_in_seconds() -> None:
    lines = told(story(evicted(), Told(asked=150)))
    assert lines[2] == "14:02:25 it was evicted with 30 s notice; 20 s of work repeated; $0.0200"
    assert lines[3] == "14:03:15 it resumed from checkpoint 1 of attempt 1, on a new node in eastus 50 s later"


def test_a_node_that_vanished_is_reported_with_what_was_seen() -> None:
    gone = vanished(facts={"message": "Azure took the machine away"})
    lines = told(story(gone, Told(asked=300)))
    assert lines[2] == "14:02:37 its node was lost: Azure took the machine away; 42 s of work repeated; $0.0420"


def test_an_attempt_that_kept_nothing_starts_over() -> None:
    lines = told(story(vanished(kept_s=None), Told(asked=300)))
    assert "it resumed from the beginning" in lines[3]


def test_an_eviction_without_notice_says_so() -> None:
    assert "it was evicted without notice" in told(story(evicted(notice_s=None), Told(asked=150)))[2]


def test_machines_that_were_evicted_with_nobody_there_are_told_at_their_times_and_the_attempt_is_not() -> None:
    run = story(Told(work=100))
    (attempt,) = run.attempts
    assert attempt.effort
    effort = replace(attempt.effort, evicted_at=(at(50), at(60)))
    run = replace(run, attempts=(replace(attempt, effort=effort),))
    lines = told(run, *(Event(at(when), "machine-restored", f"restored {when}") for when in (70, 75)))
    assert [line for line in lines if "restored" in line] == ["14:01:10 restored 70", "14:01:15 restored 75"]
    assert not [line for line in lines if "evicted" in line]


def test_a_drill_is_called_one() -> None:
    drill = Notice(at(100), at(130))
    run = story(evicted(facts={"notice": drill}), Told(asked=150))
    assert "with 30 s notice, which was a drill" in told(run)[2]


def test_what_could_not_be_had_is_one_sentence_however_often_it_was_tried() -> None:
    offer = Offer("cloud", "D2", "eastus", Decimal("3.60"), spot=True)
    tries = tuple(
        Attempt(
            number,
            f"k-{number}",
            AttemptState.LOST,
            at(60 * number),
            ended_at=at(60 * number + 5),
            trouble="no-capacity",
            message="no spot D2 to be had",
            offer=offer,
        )
        for number in (1, 2, 3)
    )
    run = story(state=RunState.QUEUED, attempts=tries, reason="no spot D2 to be had; trying again at 14:07:00 UTC")
    assert told(run) == [
        "14:00:00 ants-1 was submitted to run on cloud",
        "14:03:05 a spot D2 in eastus was not available (3 tries since 14:01:00): no spot D2 to be had",
        "it is waiting: no spot D2 to be had; trying again at 14:07:00 UTC",
    ]


def test_a_machine_that_was_released_is_reported_although_the_next_could_not_be_had() -> None:
    """It was there, and paid for: why it was of no use must not be lost behind a lack of machines."""
    offer = Offer("cloud", "A10", "eastus", Decimal("3.60"), spot=True)
    unready = Attempt(
        1,
        "k-1",
        AttemptState.ENDED,
        at(60),
        ended_at=at(90),
        outcome=Outcome.NOT_READY,
        trouble="machine-not-ready",
        message="its image has no driver for this GPU",
        offer=offer,
    )
    refused = replace(
        unready,
        number=2,
        key="k-2",
        state=AttemptState.LOST,
        asked_at=at(91),
        ended_at=at(95),
        outcome=None,
        trouble="no-capacity",
        message="no spot T4 available",
        offer=replace(offer, size="T4"),
    )
    started = replace(story(Told(asked=100)).attempts[0], number=3, key="k-3")
    run = story(attempts=(unready, refused, started))
    assert told(run)[1:5] == [
        "14:01:00 a spot A10 in eastus was requested",
        "14:01:30 its node was released: its image has no driver for this GPU",
        "14:01:35 a spot T4 in eastus was not available: no spot T4 available",
        "14:02:25 the script started on a spot D2 in eastus, 45 s after the request (39 s for the machine, "
        "5.0 s for set-up)",
    ]


def test_a_failed_run_says_why_and_what_to_do() -> None:
    failed = Told(outcome=Outcome.FAILED, facts={"exit_code": 1, "message": "ValueError: no such column"})
    run = story(failed, state=RunState.FAILED, reason="ValueError: no such column", exit_code=1)
    lines = told(run)
    assert "14:02:25 the script failed (exit code 1): ValueError: no such column" in lines
    assert lines[-1] == "next: read its output with `stoker logs ants-1`, then run `stoker rerun ants-1`"
    hinted = told(replace(run, hint="pip install pandas"))
    assert hinted[-1] == "next: pip install pandas"


def test_a_paused_run_says_what_it_waits_for_and_what_to_type() -> None:
    run = story(
        evicted(),
        state=RunState.PAUSED,
        reason="its budget of $1.00 is spent",
        hint="stoker budget ants-1 $2",
        budget=Decimal(1),
    )
    assert told(run)[-3:] == [
        "it is paused: its budget of $1.00 is spent",
        "it has cost $0.1500, 53 % of it for useful work, $0.0200 for repeated work",
        "next: stoker budget ants-1 $2",
    ]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (RunState.QUEUED, "it is waiting for a node"),
        (RunState.STARTING, "its node is starting"),
        (RunState.RUNNING, "it is running"),
        (RunState.CANCELLED, "it was cancelled"),
    ],
)
def test_a_run_without_attempts_is_reported_too(state: RunState, said: str) -> None:
    assert told(story(state=state))[1:] == [said]


def test_what_stands_only_in_the_timeline_is_reported_in_its_place() -> None:
    events = [
        Event(at(100), "price", "the price changed from $3.6 to $7.2 per hour"),
        Event(at(160), "quarantined", "checkpoint 2 of attempt 1 is damaged and was quarantined"),
        Event(at(50), "running", "attempt 1 is running"),
        Event(at(120), "notice-withdrawn", "the notice of attempt 1 was withdrawn"),
        Event(at(121), "notice-withdrawn", "the notice was withdrawn: the script continues"),
    ]
    lines = told(story(evicted(), Told(asked=150)), *events)
    assert lines[2] == "14:01:40 the price changed from $3.6 to $7.2 per hour"
    assert lines[3] == "14:02:00 the notice of attempt 1 was withdrawn"
    assert lines[4].startswith("14:02:25 it was evicted")
    assert lines[5] == "14:02:40 checkpoint 2 of attempt 1 is damaged and was quarantined"
    assert not any("is running" in line for line in lines)
    assert len([line for line in lines if "withdrawn" in line]) == 1


def test_a_move_is_not_an_eviction() -> None:
    moved = Told(
        state=AttemptState.MOVED,
        outcome=Outcome.EVICTED,
        kept_s=100.0,
        step=50,
        kept_step=50,
        facts={"moving": "the deadline needs a machine that stays"},
    )
    lines = told(story(moved, Told(asked=150, spot=False)))
    assert lines[2] == (
        "14:02:25 Stoker moved it to another node: the deadline needs a machine that stays; step 50 was already saved"
    )


def test_a_free_run_speaks_of_no_money() -> None:
    run = story(Told(price=Decimal(0), on_demand=None))
    assert not any("$" in line for line in told(run))


def test_outputs_that_did_not_come_are_reported_with_what_to_do() -> None:
    run = story(Told(), land_problem="disk full")
    assert "its outputs could not be downloaded: disk full; retry with `stoker fetch ants-1`" in told(run)


@pytest.mark.parametrize("state", list(RunState))
@pytest.mark.parametrize(
    "told_of",
    [
        Told(),
        evicted(),
        vanished(),
        Told(facts={"effort": None}),
        Told(facts={"started_at": None, "effort": None, "state": AttemptState.LOST}),
        Told(facts={"offer": None}),
        Told(state=AttemptState.RUNNING, outcome=None),
        Told(outcome=Outcome.BROKEN, facts={"message": "requirements.txt is not there"}),
    ],
)
def test_every_history_can_be_told(state: RunState, told_of: Any) -> None:
    lines = told(story(told_of, state=state))
    assert lines[0].startswith(f"{START:%H:%M:%S} ants-1 was submitted")
    assert all(line and "None" not in line and "nan" not in line for line in lines)
