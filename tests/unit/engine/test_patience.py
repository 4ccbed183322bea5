"""What a run waits for without limit, and what ends it: table, decisions and docs agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from stoker import errors
from stoker.engine.decision import Sighting, StartNode
from stoker.engine.lifecycle import advance, begin
from stoker.engine.money import meter
from stoker.engine.patience import (
    HOPELESS,
    LOGIN,
    MARKET,
    MOST_CLOSED,
    MOST_LOST,
    MOST_REFUSED,
    NOT_READY,
    TABLE,
)
from stoker.engine.queue.placement import LONGEST_DELAY_S, place
from stoker.model.cause import Cause
from stoker.model.node import NodeSight, NodeState, Offer
from stoker.model.run.report import Effort, Kept, Outcome, Phase, Report
from stoker.model.run.run import AttemptState, Run, RunState

Make = Callable[..., Run]
DOCS = Path(__file__).parents[3] / "docs/concepts/how-a-run-survives.md"
OFFER = Offer("cloud", "small", "here", Decimal("0.60"), spot=True)


def gone(run: Run) -> NodeSight:
    return NodeSight(run.attempts[-1].key, NodeState.GONE, "its agent died")


def report(run: Run, now: datetime, *, kept: bool = False, began_from: int = 0) -> Report:
    number = run.attempts[-1].number
    base = Kept(began_from, 1, now) if began_from else None
    effort = Effort(now, began_from=base, kept=Kept(number, 1, now) if kept else None)
    return Report(number, 0, Phase.RUNNING, now, beat=1, started_at=now, effort=effort)


def lost(run: Run, now: datetime, *, kept: bool = False, began_from: int = 0) -> Run:
    """Another attempt, which reports once, and is then lost."""
    run = begin(run, now).run
    said = report(run, now, kept=kept, began_from=began_from)
    up = NodeSight(run.attempts[-1].key, NodeState.UP)
    run = advance(run, Sighting(up, said), now).run
    return advance(run, Sighting(gone(run), said), now).run


def unstarted(run: Run, now: datetime, code: str) -> Run:
    run = begin(run, now).run
    return advance(run, Sighting(trouble="quota 7", trouble_hint="do this", trouble_code=code), now).run


def test_the_table_of_the_docs_is_that_of_the_engine() -> None:
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith("| ")]
    cells = [tuple(cell.strip() for cell in row.strip("|").split("|")) for row in rows]
    begin = cells.index(("what happens", "the run", "how often")) + 1
    assert cells[begin : begin + len(TABLE)] == [(one.happens, one.then, one.limit) for one in TABLE]


def test_the_codes_of_the_table_are_those_of_errors() -> None:
    """A code that nothing raises would leave what the table promises to another row."""
    known = {one.code for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.StokerError)}
    named = {code for rule in TABLE for code in rule.codes} - {NOT_READY}  # what the report of an agent becomes
    assert named <= known


def test_losses_with_progress_between_them_never_end_a_run(make_run: Make, now: datetime) -> None:
    run = make_run()
    for _ in range(4 * MOST_LOST):
        run = lost(run, now, kept=True)
        run = lost(run, now)
    assert run.state is RunState.QUEUED


def test_losses_in_a_row_without_a_new_checkpoint_end_it(make_run: Make, now: datetime) -> None:
    run = lost(make_run(), now, kept=True)
    for number in range(1, MOST_LOST + 1):
        assert run.state is RunState.QUEUED, f"{number - 1} losses in a row"
        run = lost(run, now)
    assert run.state is RunState.FAILED
    assert run.cause == Cause.LOST_TOO_OFTEN and str(MOST_LOST) in run.reason


def test_a_checkpoint_whose_node_died_before_it_could_tell_counts_as_progress(make_run: Make, now: datetime) -> None:
    """The next attempt starts from it, and reports so."""
    run = make_run()
    for number in range(1, 3 * MOST_LOST):
        run = lost(run, now, began_from=number - 1)
    assert run.state is RunState.QUEUED


def test_evictions_between_losses_neither_count_nor_reset(make_run: Make, now: datetime) -> None:
    run = make_run()
    for number in range(MOST_LOST):
        assert run.state is RunState.QUEUED, f"{number} losses"
        run = begin(lost(run, now), now).run if number < MOST_LOST - 1 else lost(run, now)
        if run.state is RunState.STARTING:
            taken = NodeSight(run.attempts[-1].key, NodeState.GONE, "evicted", taken=True)
            run = advance(run, Sighting(taken), now).run
            assert run.attempts[-1].state is AttemptState.EVICTED
    assert run.state is RunState.FAILED


def test_unusable_reports_end_a_run_only_in_a_row(make_run: Make, now: datetime) -> None:
    def refused(run: Run) -> Run:
        run = begin(run, now).run
        up = NodeSight(run.attempts[-1].key, NodeState.UP)
        run = advance(run, Sighting(up, refused="forged"), now).run
        return advance(run, Sighting(up, refused="forged", refused_s=1e6), now).run

    run = make_run()
    for _ in range(3):
        for _ in range(MOST_REFUSED - 1):
            run = refused(run)
        assert run.state is RunState.QUEUED
        run = lost(run, now, kept=True)
    for _ in range(MOST_REFUSED):
        run = refused(run)
    assert run.state is RunState.FAILED


# By name: what is taken out of the table is then missed.
WAITED = ["no-capacity", "price-too-high", "quota-reached", "provider-unavailable", "login-failed", "store-denied"]
WAITED += ["store-unavailable", "store-failed", "store-no-container"]


def test_every_code_that_is_waited_for_is_tested_by_name() -> None:
    assert set(WAITED) == {*MARKET.codes, *LOGIN.codes}


@pytest.mark.parametrize("code", WAITED)
def test_what_the_table_does_not_limit_never_ends_a_run(make_run: Make, now: datetime, code: str) -> None:
    run = make_run()
    for _ in range(4 * MOST_LOST):
        run = unstarted(run, now, code)
    assert (run.state, run.hint) == (RunState.QUEUED, "do this")


@pytest.mark.parametrize("code", [*HOPELESS, "provider-failed", "something-new"])
def test_a_run_that_has_run_once_waits_for_whatever_keeps_a_machine_from_starting(
    make_run: Make, now: datetime, code: str
) -> None:
    run = lost(make_run(), now)
    for _ in range(4 * MOST_LOST):
        run = unstarted(run, now, code)
    assert (run.state, run.hint) == (RunState.QUEUED, "do this")
    assert "quota 7" in (run.reason if code in HOPELESS else run.attempts[-1].message)
    assert place([run], {"local": 1}, now + timedelta(seconds=LONGEST_DELAY_S - 1)) == [], "it is not hammered"
    assert place([run], {"local": 1}, now + timedelta(seconds=LONGEST_DELAY_S)) == [run]


def test_a_first_machine_that_cannot_be_started_ends_the_run(make_run: Make, now: datetime) -> None:
    assert unstarted(make_run(), now, "not-allowed").state is RunState.FAILED
    run = make_run()
    for _ in range(MOST_LOST):
        assert run.state is RunState.QUEUED
        run = unstarted(run, now, "provider-failed")
    assert run.state is RunState.FAILED


SIZES = [Offer("local", f"s{number}", "here", Decimal(1)) for number in range(2 * MOST_CLOSED)]


def refused_everywhere(run: Run, offers: Iterable[Offer], now: datetime, code: str = "something-new") -> Run:
    for offer in offers:
        assert run.state is RunState.QUEUED, run.reason
        run = begin(run, now, [offer]).run
        run = advance(run, Sighting(trouble="quota 7", trouble_code=code), now).run
    return run


def test_a_cloud_that_refuses_many_sizes_is_asked_for_the_next_one(make_run: Make, now: datetime) -> None:
    """A policy may forbid the cheapest ones, and allow a size behind them."""
    run = refused_everywhere(make_run(), SIZES[: MOST_CLOSED - 1], now)
    assert run.state is RunState.QUEUED
    assert place([run], {"local": 1}, now) == [run], "the next one at once"
    run = refused_everywhere(run, [SIZES[MOST_CLOSED - 1]], now)
    assert run.state is RunState.FAILED
    assert f"{MOST_CLOSED} sizes and regions were refused" in run.reason


def test_a_run_that_has_run_once_does_not_hammer_a_cloud_that_refuses_everything(make_run: Make, now: datetime) -> None:
    run = refused_everywhere(lost(make_run(), now), SIZES, now)
    assert place([run], {"local": 1}, now + timedelta(seconds=60)) == []
    assert place([run], {"local": 1}, now + timedelta(seconds=LONGEST_DELAY_S)) == [run]


@pytest.mark.parametrize("code", LOGIN.codes)
def test_a_login_that_fails_is_not_tried_with_one_offer_after_the_other(
    make_run: Make, now: datetime, code: str
) -> None:
    run = refused_everywhere(make_run(), SIZES[:6], now, code)
    assert place([run], {"local": 1}, now + timedelta(seconds=10)) == []
    assert place([run], {"local": 1}, now + timedelta(seconds=LONGEST_DELAY_S)) == [run]


@pytest.mark.parametrize("others", [0, 1, 4])
def test_an_offer_that_is_refused_again_and_again_ends_the_run_whatever_else_was_refused(
    make_run: Make, now: datetime, others: int
) -> None:
    run = refused_everywhere(make_run(), [*SIZES[1 : others + 1], *SIZES[:1] * (MOST_LOST - 1)], now)
    assert run.state is RunState.QUEUED
    assert refused_everywhere(run, SIZES[:1], now).state is RunState.FAILED


def test_a_store_that_cannot_be_used_costs_no_attempt_no_money_and_says_why(make_run: Make, now: datetime) -> None:
    run = begin(make_run(), now, [OFFER]).run
    key, later = run.attempts[-1].key, now + timedelta(days=2)
    seen = Sighting(unasked=(key,), waits="AADSTS7000215: Invalid client secret provided", waits_hint="az login")
    waits = advance(meter.metered(run, seen, later), seen, later)
    assert (waits.run.state, len(waits.run.attempts)) == (RunState.STARTING, 1)
    assert "AADSTS7000215" in waits.run.reason
    assert waits.run.hint == "az login"
    assert waits.actions == (StartNode(waits.run),)
    assert [event.kind for event in waits.events] == ["waits"]
    assert meter.spent(waits.run, later) == 0
    again = advance(meter.metered(waits.run, seen, later), seen, later)
    assert again.events == (), "it is said once"
    node = NodeSight(key, NodeState.STARTING, usd_per_hour=OFFER.usd_per_hour)
    after = advance(again.run, Sighting(node, nodes=(node,)), later).run
    assert (after.reason, after.hint) == ("", "")


def test_a_store_that_fails_a_machine_that_starts_is_a_loss_not_the_end(make_run: Make, now: datetime) -> None:
    """An agent that cannot reach its store for long gives up its machine, without a request."""
    run = lost(make_run(), now, kept=True)
    for _ in range(2):
        run = begin(run, now).run
        said = replace(report(run, now), outcome=Outcome.CANCELLED, message="the store cannot be reached")
        run = advance(run, Sighting(gone(run), said), now).run
    assert run.state is RunState.QUEUED


def test_a_node_without_a_usable_store_is_not_given_up_for_silence(make_run: Make, now: datetime) -> None:
    """As if a server started while the store is unavailable: it knows no report of the node."""
    run = begin(make_run(), now).run
    up, later = NodeSight(run.attempts[-1].key, NodeState.UP), now + timedelta(hours=3)
    assert not advance(run, Sighting(up, deaf=True), later).run.attempts[-1].state.over
    assert advance(run, Sighting(up), later).run.attempts[-1].state is AttemptState.LOST
