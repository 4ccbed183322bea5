"""Runs with several nodes: all or none, broken together, resumed on what is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from stoker.engine.decision import Sighting, StartNode, StopNode, TellAgent
from stoker.engine.lifecycle import STOP_PATIENCE_S, begin
from stoker.engine.looking import Heard, Requests, sighting
from stoker.engine.money import fuse
from stoker.engine.nodes.gang import advance
from stoker.engine.nodes.lease import node_key, node_of, spare_keys
from stoker.engine.nodes.nodes import claimed, may_resume
from stoker.engine.offers import gathering
from stoker.engine.offers.market import needs
from stoker.engine.queue.placement import place
from stoker.engine.rounds import Scene, decide
from stoker.model.cause import Cause
from stoker.model.job.job import Spot
from stoker.model.node import Features, NodeSight, NodeState, Offer
from stoker.model.orders import Notice, Wish
from stoker.model.run.money import Spell
from stoker.model.run.report import Outcome, Phase, Report
from stoker.model.run.run import AttemptState, Member, Run, RunState
from stoker.model.wire import dump, load

MakeRun = Callable[..., Run]
OFFER = Offer("cloud", "small", "here", Decimal("1.00"), slots=8)
FEATURES = Features(lease_s=3600.0, market=True)


@pytest.fixture
def run(make_run: MakeRun, now: datetime) -> Run:
    return begin(make_run(job={"nodes": 3, "on": "cloud"}), now, [OFFER] * 3).run


def said(member: Member, now: datetime, outcome: Outcome | None = None, **facts: Any) -> Report:
    phase = Phase.DONE if outcome else Phase.RUNNING
    ended = {"ended_at": now, "exit_code": 0 if outcome is Outcome.SUCCEEDED else 1} if outcome else {}
    return Report(
        member.number, member.node, phase, now, 5, **{"started_at": now, "outcome": outcome, **ended, **facts}
    )


def up(member: Member, report: Report | None = None, **more: Any) -> Sighting:
    return Sighting(node=NodeSight(member.key, NodeState.UP), report=report, **more)


def gone(member: Member, report: Report | None = None, *, taken: bool = False) -> Sighting:
    return Sighting(node=NodeSight(member.key, NodeState.GONE, "it went", taken=taken), report=report)


def together(*some: Sighting) -> Sighting:
    return replace(some[0], peers=tuple(some[1:]))


def working(run: Run, now: datetime) -> Run:
    members = run.attempts[-1].members
    return advance(run, together(*(up(one, said(one, now)) for one in members)), now).run


def test_each_node_of_an_attempt_has_a_key_of_its_own_that_tells_whose_it_is(run: Run) -> None:
    members = run.attempts[-1].members
    assert [one.key for one in members] == [node_key(run, 1, node) for node in range(3)]
    assert [node_of(one.key) for one in members] == [(run.id, 1, node) for node in range(3)]
    assert claimed([run]) == {one.key for one in members}
    assert load(Run, dump(run)) == run


def test_all_nodes_are_asked_for_at_once_and_metered_each(run: Run) -> None:
    assert {spell.key for spell in run.spells} == {one.key for one in run.attempts[-1].members}


def test_a_gang_runs_once_every_node_does(run: Run, now: datetime) -> None:
    first, second, third = run.attempts[-1].members
    some = together(up(first, said(first, now)), up(second, said(second, now)), up(third))
    half = advance(run, some, now)
    assert half.run.state is RunState.STARTING
    assert any(isinstance(one, TellAgent) for one in half.actions)
    assert working(run, now).state is RunState.RUNNING


def test_nodes_that_are_not_there_yet_are_asked_for_again(run: Run, now: datetime) -> None:
    first, second, _ = run.attempts[-1].members
    run = replace(run, spells=())
    after = advance(run, together(up(first), up(second), Sighting()), now)
    assert any(isinstance(one, StartNode) for one in after.actions)


def test_a_run_succeeds_when_every_node_has(run: Run, now: datetime) -> None:
    run = working(run, now)
    members = run.attempts[-1].members
    good = [up(one, said(one, now, Outcome.SUCCEEDED, output_files=1)) for one in members]
    waits = advance(run, together(good[0], up(members[1], said(members[1], now)), good[2]), now).run
    assert waits.state is RunState.RUNNING, "a node that is done waits for the others"
    ended = advance(waits, together(*good), now).run
    assert ended.state is RunState.SUCCEEDED and ended.output_files == 3


def test_a_node_that_was_never_there_does_not_hold_up_a_gang_of_which_another_cannot_be_had(
    run: Run, now: datetime
) -> None:
    """Why it could not be started is forgotten when it is released."""
    first, second, _ = run.attempts[-1].members
    run = replace(run, spells=())
    refused = Sighting(node=NodeSight(second.key, NodeState.GONE, "none left", "no-capacity", still=True))
    broken = advance(run, together(gone(first), refused, Sighting()), now)
    assert not broken.run.attempts[-1].state.over, "it may be under way"
    assert any(isinstance(one, StopNode) for one in broken.actions)
    later = now + timedelta(seconds=2)
    after = advance(broken.run, together(gone(first), refused, Sighting()), later)
    attempt = after.run.attempts[-1]
    assert (attempt.state, attempt.trouble) == (AttemptState.LOST, "no-capacity")
    assert attempt.peers[1].cause == Cause.NOT_STARTED


def test_one_lost_node_breaks_the_gang_and_the_others_are_reported(run: Run, now: datetime) -> None:
    run = working(run, now)
    first, second, third = run.attempts[-1].members
    broken = advance(run, together(up(first, said(first, now)), gone(second), up(third, said(third, now))), now)
    attempt = broken.run.attempts[-1]
    assert attempt.broken_at == now and not attempt.state.over, "the others save and end first"
    assert any(isinstance(one, TellAgent) for one in broken.actions)
    assert [one.kind for one in broken.events] == ["gang-broken"]
    assert attempt.peers[0].state is AttemptState.LOST


def test_survivors_that_fail_for_want_of_a_peer_are_no_failure_of_the_script(run: Run, now: datetime) -> None:
    run = working(run, now)
    first, second, third = run.attempts[-1].members
    failed = [up(one, said(one, now, Outcome.FAILED, stays=True)) for one in (first, third)]
    waits = advance(run, together(failed[0], up(second, said(second, now)), failed[1]), now).run
    assert not waits.state.ended, "whether the second one is lost is not known yet"
    later = now + timedelta(seconds=5)
    after = advance(waits, together(failed[0], gone(second, said(second, now)), failed[1]), later).run
    assert after.state is RunState.QUEUED and after.attempts[-1].state is AttemptState.LOST
    assert [one.stays for one in after.attempts[-1].members] == [True, False, True]


def test_a_failure_of_the_script_is_reported_with_its_node_and_ends_the_run(run: Run, now: datetime) -> None:
    run = working(run, now)
    first, second, third = run.attempts[-1].members
    early, late = now, now + timedelta(seconds=1)
    seen = together(
        up(first, replace(said(first, late, Outcome.FAILED), message="a peer is gone")),
        up(second, replace(said(second, early, Outcome.FAILED), message="bad batch")),
        up(third, said(third, late, Outcome.PEER_ENDED)),
    )
    ended = advance(run, seen, late).run
    assert ended.state is RunState.FAILED and ended.reason == "node 1: bad batch"


def test_a_failure_of_ranks_that_others_have_left_says_so(run: Run, now: datetime) -> None:
    """As where one rank has fewer batches than the others, and ends."""
    run = working(run, now)
    first, second, third = run.attempts[-1].members
    later = now + timedelta(seconds=1)
    seen = together(
        up(first, replace(said(first, later, Outcome.FAILED), message="exited with code 1")),
        up(second, said(second, now, Outcome.SUCCEEDED)),
        up(third, said(third, later, Outcome.PEER_ENDED)),
    )
    ended = advance(run, seen, later).run
    assert ended.reason == "node 0: exited with code 1, after node 1 had ended with exit code 0"


def test_an_eviction_outweighs_the_failures_that_follow_from_it(run: Run, now: datetime) -> None:
    run = working(run, now)
    first, second, third = run.attempts[-1].members
    seen = together(
        up(first, said(first, now, Outcome.FAILED, stays=True)),
        up(second, said(second, now, Outcome.EVICTED)),
        up(third, said(third, now, Outcome.PEER_ENDED, stays=True)),
    )
    after = advance(run, seen, now).run
    assert after.state is RunState.QUEUED and after.attempts[-1].state is AttemptState.EVICTED


def test_a_node_that_does_not_end_with_its_gang_is_stopped_and_a_failure_stays_one(run: Run, now: datetime) -> None:
    run = working(run, now)
    first, second, third = run.attempts[-1].members
    failed = up(first, replace(said(first, now, Outcome.FAILED), message="bad batch"))
    ended = up(second, said(second, now, Outcome.PEER_ENDED))
    run = advance(run, together(failed, ended, up(third, said(third, now))), now).run
    late = now + timedelta(seconds=STOP_PATIENCE_S + 1)
    stopped = advance(run, together(failed, ended, up(third, said(third, now))), late)
    assert StopNode("cloud", third.key) in stopped.actions
    after = advance(stopped.run, together(failed, ended, gone(third, said(third, now))), late).run
    assert after.state is RunState.FAILED and "bad batch" in after.reason


def test_a_node_that_could_not_be_started_releases_the_whole_gang(run: Run, now: datetime) -> None:
    first, second, _ = run.attempts[-1].members
    none = replace(Sighting(), trouble="no capacity for small in here", trouble_code="no-capacity")
    broken = advance(run, together(up(first), up(second), none), now)
    assert {one.key for one in broken.actions if isinstance(one, StopNode)} == {first.key, second.key}, "at once"
    after = advance(broken.run, together(gone(first), gone(second), none), now).run
    assert after.state is RunState.QUEUED and after.attempts[-1].trouble == "no-capacity"


def test_a_notice_of_one_node_is_heard_and_a_replacement_is_asked_for_at_once(run: Run, now: datetime) -> None:
    run = working(run, now)
    first, second, third = run.attempts[-1].members
    notice = Notice(now, now + timedelta(seconds=30), drill=False)
    market = {("cloud", need): [OFFER] for need in needs(run.job)}
    seen = together(
        up(first, said(first, now)), up(second, said(second, now, notice=notice)), up(third, said(third, now))
    )
    seen = replace(seen, nodes=tuple(one.node for one in (seen, *seen.peers) if one.node))
    after = decide([run], {run.id: seen}, Scene({"cloud": None}, now, market))[0].run
    assert after.attempts[-1].peers[0].notice and after.attempts[-1].peers[0].spare == OFFER
    assert spare_keys(after) == (node_key(run, 2, 1),)
    assert after.attempts[-1].spare is None and after.attempts[-1].peers[1].spare is None


def test_the_next_attempt_takes_the_machines_that_are_left_and_one_replacement(run: Run, now: datetime) -> None:
    run = working(run, now)
    first, second, third = run.attempts[-1].members
    seen = together(
        up(first, said(first, now, Outcome.PEER_ENDED, stays=True)),
        gone(second, taken=True),
        up(third, said(third, now, Outcome.PEER_ENDED, stays=True)),
    )
    after = advance(run, seen, now).run
    nodes = (NodeSight(first.key, NodeState.UP), NodeSight(third.key, NodeState.UP))
    assert all(may_resume(after, one) for one in nodes)
    market = {("cloud", need): [OFFER] for need in needs(run.job)}
    taken, waits = gathering.offers(after, replace(seen, nodes=nodes), market, [after], now)
    assert not waits
    assert [one.again for one in taken] == [first.key, "", third.key]
    begun = begin(after, now, taken).run
    assert [one.offer.again for one in begun.attempts[-1].members if one.offer] == [first.key, "", third.key]


def test_a_gang_for_which_there_is_no_room_is_not_started_and_says_what_is_missing(
    make_run: MakeRun, now: datetime
) -> None:
    waiting = make_run(job={"nodes": 4, "on": "cloud"})
    market = {("cloud", need): [replace(OFFER, slots=3)] for need in needs(waiting.job)}
    after = decide([waiting], {}, Scene({"cloud": None}, now, market))[0].run
    assert after.state is RunState.QUEUED and not after.attempts
    assert "4 nodes" in after.reason and "3" in after.reason


def test_two_gangs_of_one_kind_are_placed_one_after_the_other(make_run: MakeRun, now: datetime) -> None:
    runs = [make_run(number, job={"nodes": 2, "on": "cloud"}) for number in (1, 2)]
    market = {("cloud", need): [OFFER] for need in needs(runs[0].job)}
    first, second = (one.run for one in decide(runs, {}, Scene({"cloud": None}, now, market)))
    assert first.state is RunState.STARTING and second.state is RunState.QUEUED
    assert runs[0].name in second.reason


def test_cancelling_tells_all_and_stops_those_that_do_not_hear(run: Run, now: datetime) -> None:
    run = replace(working(run, now), wish=Wish.CANCEL)
    members = run.attempts[-1].members
    deaf = together(*(up(one, said(one, now), wished_s=STOP_PATIENCE_S + 1) for one in members))
    stops = [one for one in advance(run, deaf, now).actions if isinstance(one, StopNode)]
    assert {one.key for one in stops} == {one.key for one in members}
    ended = together(*(up(one, said(one, now, Outcome.CANCELLED)) for one in members))
    assert advance(run, ended, now).run.state is RunState.CANCELLED
    told = replace(working(run, now), wish=Wish.CANCEL)
    gone = Sighting(node=NodeSight(members[0].key, NodeState.GONE))
    mixed = together(gone, *(up(one, said(one, now, Outcome.PEER_ENDED)) for one in members[1:]))
    assert advance(told, mixed, now).run.state is RunState.CANCELLED, "although one was lost meanwhile"


def test_every_node_of_a_gang_is_looked_at(run: Run, now: datetime) -> None:
    first, second, _ = run.attempts[-1].members
    sights = [NodeSight(first.key, NodeState.UP), NodeSight(second.key, NodeState.UP)]
    heard = {second.key: Heard(report=said(second, now))}
    seen = sighting(run, sights, (), heard, Requests(), FEATURES)
    assert seen.node and seen.node.key == first.key and seen.report is None
    assert [one.node.key if one.node else None for one in seen.peers] == [second.key, None]
    assert seen.peers[0].report and not seen.leftovers


def test_a_gang_wider_than_its_place_has_the_place_to_itself(make_run: MakeRun, now: datetime) -> None:
    wide, narrow = make_run(1, job={"nodes": 8}), make_run(2)
    assert place([wide, narrow], {"local": 2}, now) == [wide]
    busy = begin(make_run(3), now).run
    assert place([busy, wide, narrow], {"local": 2}, now) == []


@pytest.mark.parametrize("outcome", [one for one in Outcome if one not in (Outcome.SUCCEEDED, Outcome.TARGET_REACHED)])
def test_whatever_one_node_ends_with_no_gang_goes_on_half(run: Run, now: datetime, outcome: Outcome) -> None:
    run = working(run, now)
    first, second, third = run.attempts[-1].members
    seen = together(up(first, said(first, now)), up(second, said(second, now, outcome)), up(third, said(third, now)))
    after = advance(run, seen, now)
    assert after.run.attempts[-1].broken_at, "the others are told to end"
    done = together(*(up(one, said(one, now, outcome)) for one in (first, second, third)))
    assert advance(after.run, done, now).run.state not in (RunState.STARTING, RunState.RUNNING)


def test_a_gang_starts_where_there_is_room_for_all_even_if_that_costs_more(make_run: MakeRun, now: datetime) -> None:
    waiting = make_run(job={"nodes": 4, "on": "cloud"})
    narrow, roomy = replace(OFFER, slots=3), replace(OFFER, place="there", usd_per_hour=Decimal("2.00"))
    market = {("cloud", need): [narrow, roomy] for need in needs(waiting.job)}
    after = decide([waiting], {}, Scene({"cloud": None}, now, market))[0].run
    assert {one.offer and one.offer.place for one in after.attempts[-1].members} == {"there"}


def test_a_gang_with_a_budget_asks_for_one_replacement_in_advance(run: Run, now: datetime) -> None:
    run = replace(working(run, now), budget=Decimal("100"))
    first, second, third = run.attempts[-1].members
    offer = replace(OFFER, ready_s=60.0, idle_s=600.0, spot=True)
    job = replace(run.job, spot=Spot())
    run = replace(run.with_newest(replace(run.attempts[-1], offer=offer)), job=job)
    market = {("cloud", need): [offer] for need in needs(job)}
    seen = together(up(first, said(first, now)), gone(second, taken=True), gone(third, taken=True))
    after = decide([run], {run.id: seen}, Scene({"cloud": None}, now, market))[0].run
    assert len(spare_keys(after)) == 1


def test_a_replacement_that_never_came_is_paid_for_as_a_node_of_the_next_attempt(run: Run, now: datetime) -> None:
    """Its idle time is not reserved beside the cost of all nodes: nothing ends a request that only this run can use."""
    offer = replace(OFFER, ready_s=60.0, idle_s=720.0, release_s=5.0)
    lost = replace(run.attempts[-1], state=AttemptState.LOST, ended_at=now - timedelta(hours=1), offer=offer)
    lost = replace(lost, peers=(replace(lost.peers[0], spare=offer), *lost.peers[1:]))
    closed = [replace(one, until=now) for one in run.spells]
    waiting = replace(run, state=RunState.QUEUED).with_newest(lost)
    waiting = replace(waiting, spells=(*closed, Spell(spare_keys(waiting)[0], now, None, offer.usd_per_hour)))
    enough = fuse.least(waiting, replace(offer, usd_per_hour=3 * offer.usd_per_hour))
    market = {("cloud", need): [offer] for need in needs(run.job)}

    def after(budget: Decimal) -> Run:
        funded = replace(waiting, budget=budget)
        return decide([funded], {run.id: Sighting()}, Scene({"cloud": None}, now, market))[0].run

    started = after(enough)
    assert (started.state, started.attempts[-1].number) == (RunState.STARTING, 2)
    assert len([one for one in started.spells if one.until is None]) == 3
    broke = after(enough - Decimal("0.001"))
    assert (broke.state, broke.cause, spare_keys(broke)) == (RunState.PAUSED, Cause.UNAFFORDABLE, ())
