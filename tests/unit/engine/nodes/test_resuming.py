"""Which machine a run resumes on: one that was deallocated, one that restarts, or another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

import pytest

from stoker.engine.decision import Sighting, StartNode, StopNode
from stoker.engine.lifecycle import advance, begin
from stoker.engine.nodes.nodes import MUTE_S, RESTART_S, claimed, release_leftovers, spared
from stoker.engine.offers.market import Market, needs
from stoker.engine.patience import MOST_LOST, MOST_USED_UP
from stoker.engine.rounds import Scene, decide
from stoker.model.cause import Cause
from stoker.model.job.job import Job, Spot
from stoker.model.node import NodeSight, NodeState, Offer
from stoker.model.orders import Notice, Wish
from stoker.model.run.report import Outcome, Phase, Report
from stoker.model.run.run import AttemptState, Run, RunState

Make = Callable[..., Run]

HERE = Offer("cloud", "small", "here", Decimal("0.10"), spot=True)
THERE = Offer("cloud", "small", "there", Decimal("0.12"), spot=True)


@pytest.fixture
def run(make_run: Make, now: datetime) -> Run:
    job = Job(name="job", run="true", on="cloud", spot=Spot())
    begun = begin(replace(make_run(id="r"), job=job), now, [HERE]).run
    return replace(begun, attempts=(replace(begun.attempts[0], started_at=now),))


def market(run: Run, *offers: Offer) -> Market:
    return {("cloud", needs(run.job)[0]): offers}


def taken(key: str, **more: object) -> NodeSight:
    return NodeSight(key, NodeState.GONE, "taken", taken=True, still=True, **more)  # type: ignore[arg-type]


def after(run: Run, sight: NodeSight, now: datetime, *offers: Offer, report: Report | None = None) -> Run:
    """Two rounds: what was seen, and what follows from it."""
    for _ in range(2):
        current = run.state in (RunState.STARTING, RunState.RUNNING)
        left = () if current else (sight.key,)
        still = left if sight.still else ()
        seen = Sighting(
            node=sight if current and sight.key == run.attempts[-1].key else None,
            report=report if current else None,
            leftovers=left,
            still=still,
            nodes=(sight,),
        )
        (decision,) = decide([run], {run.id: seen}, Scene({"cloud": None}, now, market(run, *offers)))
        run = decision.run
        if len(run.attempts) > 1:
            break
    return run


def test_a_machine_that_was_switched_off_is_taken_again_where_it_is_the_cheapest(run: Run, now: datetime) -> None:
    dear = replace(HERE, usd_per_hour=Decimal("0.11"))
    run = after(run, taken("r-1", resumable=True), now, dear, THERE)
    assert run.attempts[0].state is AttemptState.EVICTED
    assert run.attempts[1].offer == replace(dear, again="r-1"), "at today's price"


def test_a_cheaper_machine_elsewhere_is_taken_instead(run: Run, now: datetime) -> None:
    sight = taken("r-1", resumable=True)
    cheap = replace(THERE, usd_per_hour=Decimal("0.05"))
    run = after(run, sight, now, HERE, cheap)
    assert run.attempts[1].offer == cheap
    assert spared([run], [sight]) == set()
    assert release_leftovers("cloud", [sight], claimed([run]), {}) == [StopNode("cloud", "r-1")]


def test_a_machine_that_is_about_to_be_taken_again_is_not_removed(run: Run, now: datetime) -> None:
    sight = taken("r-1", resumable=True)
    waiting = advance(run, Sighting(node=sight, nodes=(sight,)), now).run
    assert waiting.state is RunState.QUEUED
    assert spared([waiting], [sight]) == {"r-1"}
    assert advance(waiting, Sighting(leftovers=("r-1",), still=("r-1",), nodes=(sight,)), now).actions == ()
    begun = after(waiting, sight, now, HERE)
    assert spared([begun], [sight]) == {"r-1"}, "until it bears the new node's mark"
    marked = replace(sight, key="r-2", machine="r-1")
    assert spared([begun], [marked]) == {"r-2"}


def test_the_third_attempt_names_the_machine_by_the_key_it_was_made_under(run: Run, now: datetime) -> None:
    run = after(run, taken("r-1", resumable=True), now, HERE)
    second = taken(run.attempts[1].key, machine="r-1", resumable=True)
    assert after(run, second, now, HERE).attempts[-1].offer == replace(HERE, again="r-1")


def test_a_machine_that_was_deleted_is_not_taken_again(run: Run, now: datetime) -> None:
    assert after(run, taken("r-1"), now, HERE, THERE).attempts[1].offer == THERE


def test_evictions_without_notice_are_weather_however_often(run: Run, now: datetime) -> None:
    for _ in range(2 * MOST_LOST):
        run = after(run, taken(run.attempts[-1].key), now, HERE, THERE)
    assert run.state is RunState.STARTING
    assert {one.state for one in run.attempts[:-1]} == {AttemptState.EVICTED}


def test_allocations_that_end_at_their_time_limit_without_progress_end_the_run(run: Run, now: datetime) -> None:
    short = replace(HERE, limit_s=600.0)
    run = run.with_newest(replace(run.attempts[0], offer=short))
    for count in range(1, MOST_USED_UP + 1):
        now += timedelta(minutes=10)
        run = after(run, taken(run.attempts[-1].key), now, short)
        assert (run.state is RunState.FAILED) == (count == MOST_USED_UP)
    assert run.cause == Cause.NO_PROGRESS
    assert "longer `time`" in run.hint


def test_an_allocation_that_has_saved_or_was_evicted_early_is_no_sign_that_its_limit_is_too_short(
    run: Run, now: datetime
) -> None:
    short = replace(HERE, limit_s=600.0)
    run = run.with_newest(replace(run.attempts[0], offer=short))
    for count in range(3 * MOST_USED_UP):
        run = run.with_newest(replace(run.attempts[-1], saved=count % 3 == 0))
        now += timedelta(minutes=5 if count % 3 == 1 else 10)
        run = after(run, taken(run.attempts[-1].key), now, short)
    assert run.state is RunState.STARTING


def report(now: datetime, **more: object) -> Report:
    return Report(1, 0, Phase.RUNNING, now, 1, started_at=now, **more)  # type: ignore[arg-type]


def test_a_run_whose_machine_restarts_resumes_there(run: Run, now: datetime) -> None:
    up = NodeSight("r-1", NodeState.UP)
    ended = replace(report(now), outcome=Outcome.EVICTED, stays=True)
    run = after(run, up, now, THERE, report=ended)
    assert run.attempts[0].state is AttemptState.EVICTED
    assert run.attempts[1].offer == replace(HERE, again="r-1"), "though another is to be had"


def test_nothing_is_asked_for_ahead_of_a_restart_and_its_silence_is_borne(run: Run, now: datetime) -> None:
    up = NodeSight("r-1", NodeState.UP)
    warned = report(now, notice=Notice(now, now + timedelta(seconds=30), drill=False, returns=True))
    seen = Sighting(node=up, report=warned, nodes=(up,), patience_s=15)
    (decision,) = decide([run], {run.id: seen}, Scene({"cloud": None}, now, market(run, HERE, THERE)))
    run = decision.run
    assert run.attempts[-1].notice and run.attempts[-1].notice.returns
    assert run.attempts[-1].spare is None
    later = now + timedelta(seconds=60)
    silent = replace(seen, silent_s=RESTART_S - 1)
    assert not advance(run, silent, later).run.attempts[-1].state.over
    assert advance(run, replace(seen, silent_s=RESTART_S + 1), later).run.attempts[-1].state is AttemptState.LOST


def test_a_node_that_never_reports_is_given_up(run: Run, now: datetime) -> None:
    up = Sighting(node=NodeSight("r-1", NodeState.UP))
    assert not advance(run, up, now + timedelta(seconds=MUTE_S - 1)).run.attempts[-1].state.over
    lost = advance(run, up, now + timedelta(seconds=MUTE_S + 1)).run
    assert lost.attempts[-1].state is AttemptState.LOST


def test_a_node_that_was_only_begun_is_asked_for_again(run: Run, now: datetime) -> None:
    begun = NodeSight("r-1", NodeState.GONE, still=True, unfinished=True)
    assert advance(run, Sighting(node=begun), now).actions == (StartNode(run),)


def test_what_belongs_to_another_server_is_never_removed() -> None:
    theirs = NodeSight("x-1", NodeState.GONE, server="another", expired=True)
    assert release_leftovers("cloud", [theirs], set(), {"x-1": 1e6}) == []


def test_a_run_that_had_an_offer_waits_until_offers_are_known_again(run: Run, now: datetime) -> None:
    """A server that has just started sees that the machine is gone before it knows which offers are available."""
    gone = taken("r-1")
    (decision,) = decide([run], {run.id: Sighting(node=gone, nodes=(gone,))}, Scene({"cloud": None}, now, {}))
    assert (decision.run.state, len(decision.run.attempts)) == (RunState.QUEUED, 1)


def test_a_run_begins_nothing_in_a_round_that_did_not_look_for_what_is_left_of_it(run: Run, now: datetime) -> None:
    waiting = replace(run, state=RunState.QUEUED)
    assert decide([waiting], {}, Scene({"cloud": None}, now, market(run, HERE))) == []


def test_a_machine_that_is_being_switched_off_is_waited_for(run: Run, now: datetime) -> None:
    going = NodeSight("r-1", NodeState.GONE, taken=True, resumable=True)
    run = advance(run, Sighting(node=going, nodes=(going,)), now).run
    seen = Sighting(leftovers=("r-1",), nodes=(going,))
    (decision,) = decide([run], {run.id: seen}, Scene({"cloud": None}, now, market(run, HERE, THERE)))
    assert (decision.run.state, decision.actions) == (RunState.QUEUED, ()), "neither removed nor asked for yet"
    assert spared([run], [going]) == {"r-1"}


def test_a_machine_that_was_evicted_before_its_first_report_is_not_evicted_again(run: Run, now: datetime) -> None:
    """Its first boot was cut off, and a first boot is not repeated."""
    mute = replace(run, attempts=(replace(run.attempts[0], started_at=None),))
    sight = taken("r-1", resumable=True)
    assert after(mute, sight, now, HERE, THERE).attempts[1].offer == THERE
    waiting = advance(mute, Sighting(node=sight, nodes=(sight,)), now).run
    assert spared([waiting], [sight]) == set()


def test_a_node_in_its_providers_own_queue_waits_for_however_long_that_takes(run: Run, now: datetime) -> None:
    queued = Sighting(node=NodeSight("r-1", NodeState.STARTING, waits="Priority (Slurm job 17)"))
    for days in range(1, 4):
        decision = advance(run, queued, now + timedelta(days=days))
        run = decision.run
        assert not run.attempts[-1].state.over
        assert run.cause == Cause.PROVIDER_QUEUE and "Priority (Slurm job 17)" in run.reason
        assert [event.kind for event in decision.events] == (["waits"] if days == 1 else [])
    up, began = Sighting(node=NodeSight("r-1", NodeState.UP)), now + timedelta(days=3)
    assert not advance(run, up, began + timedelta(seconds=MUTE_S - 1)).run.attempts[-1].state.over
    cancelled = advance(replace(run, wish=Wish.CANCEL), queued, began)
    assert StopNode("cloud", "r-1") in cancelled.actions


def test_a_provider_that_says_why_a_node_ended_has_time_to_say_it(run: Run, now: datetime) -> None:
    notice = Notice(now, now + timedelta(seconds=30), drill=False)
    run = run.with_newest(replace(run.attempts[0], notice=notice))
    up = Sighting(node=NodeSight("r-1", NodeState.UP), overstay_s=90.0)
    assert not advance(run, up, now + timedelta(seconds=119)).run.attempts[-1].state.over
    late = advance(run, up, now + timedelta(seconds=120))
    assert (late.run.attempts[-1].state, late.actions) == (AttemptState.EVICTED, (StopNode("cloud", "r-1"),))
    gone = Sighting(node=NodeSight("r-1", NodeState.GONE, "Slurm job 7 ended as PREEMPTED"), overstay_s=90.0)
    told = advance(run, gone, now + timedelta(seconds=40))
    assert told.run.attempts[-1].message == "Slurm job 7 ended as PREEMPTED"
    assert told.events[-1].text.endswith("with 30 s notice: Slurm job 7 ended as PREEMPTED; starting another")


def test_a_drill_waits_for_no_word_of_a_provider_that_knows_nothing_of_it(run: Run, now: datetime) -> None:
    run = run.with_newest(replace(run.attempts[0], notice=Notice(now, now + timedelta(seconds=3))))
    up = Sighting(node=NodeSight("r-1", NodeState.UP), overstay_s=90.0)
    assert not advance(run, up, now + timedelta(seconds=2)).run.attempts[-1].state.over
    assert advance(run, up, now + timedelta(seconds=3)).run.attempts[-1].state is AttemptState.EVICTED
