"""Runs that may have fewer nodes than they prefer: wait, replace, shrink, grow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from stoker.engine.decision import Decision, Sighting, StartSpare, StopNode
from stoker.engine.lifecycle import begin
from stoker.engine.money import fuse
from stoker.engine.money.fuse import Allowance
from stoker.engine.money.meter import spent as spent_by
from stoker.engine.nodes import elastic
from stoker.engine.nodes.gang import advance
from stoker.engine.nodes.lease import node_key, spare_keys
from stoker.engine.nodes.nodes import claimed
from stoker.engine.offers.market import needs
from stoker.engine.rounds import Scene, decide
from stoker.model.node import NodeSight, NodeState, Offer
from stoker.model.run.report import Outcome, Phase, Report
from stoker.model.run.run import AttemptState, Member, Run, RunState
from stoker.model.wire import dump, load

MakeRun = Callable[..., Run]
OFFER = Offer("cloud", "small", "here", Decimal("1.00"), slots=8, network="here")
PATIENCE = timedelta(seconds=elastic.PATIENCE_S + 1)
SETTLED = timedelta(seconds=elastic.SETTLED_S + 1)


def said(member: Member, now: datetime, outcome: Outcome | None = None, **facts: Any) -> Report:
    phase = Phase.DONE if outcome else Phase.RUNNING
    ended = {"ended_at": now, "exit_code": 1} if outcome else {}
    return Report(
        member.number, member.node, phase, now, 5, **{"started_at": now, "outcome": outcome, **ended, **facts}
    )


def together(*some: Sighting) -> Sighting:
    return replace(some[0], peers=tuple(some[1:]))


def working(run: Run, now: datetime) -> Run:
    members = run.attempts[-1].members
    seen = [Sighting(node=NodeSight(one.key, NodeState.UP), report=said(one, now)) for one in members]
    after = advance(run, together(*seen), now).run
    return after.with_newest(replace(after.attempts[-1], saved=True))


def losing(run: Run, now: datetime, *lost: int) -> tuple[Run, Sighting]:
    """The run after these nodes were evicted, and what is seen of the others."""
    parts = []
    for one in run.attempts[-1].members:
        if one.node in lost:
            parts.append(Sighting(node=NodeSight(one.key, NodeState.GONE, "it went", taken=True)))
        else:
            report = said(one, now, Outcome.PEER_ENDED, stays=True)
            parts.append(Sighting(node=NodeSight(one.key, NodeState.UP), report=report))
    after = advance(run, together(*parts), now).run
    nodes = tuple(part.node for part in parts if part.node and part.node.state is NodeState.UP)
    return after, Sighting(nodes=nodes)


def market(run: Run, *offers: Offer) -> dict[Any, list[Offer]]:
    return {("cloud", need): list(offers) for need in needs(run.job)}


def one_round(run: Run, now: datetime, *offers: Offer, seen: Sighting | None = None) -> Decision:
    scene = Scene({"cloud": None}, now, market(run, *offers))
    return decide([run], {run.id: seen} if seen else {}, scene)[0]


def kinds(decision: Decision) -> list[str]:
    return [event.kind for event in decision.events]


@pytest.fixture
def run(make_run: MakeRun, now: datetime) -> Run:
    """At work on four nodes."""
    waiting = make_run(job={"nodes": "2..4", "on": "cloud"})
    return working(begin(waiting, now, [OFFER] * 4).run, now)


def test_a_run_starts_with_all_nodes_where_it_can(make_run: MakeRun, now: datetime) -> None:
    waiting = make_run(job={"nodes": "2..4", "on": "cloud"})
    after = one_round(waiting, now, OFFER)
    assert after.run.width == 4 and not after.run.attempts[-1].fewer
    assert load(Run, dump(after.run)) == after.run


def test_a_first_start_waits_for_all_and_then_begins_with_as_many_as_there_are(
    make_run: MakeRun, now: datetime
) -> None:
    waiting = make_run(job={"nodes": "2..4", "on": "cloud"})
    narrow = replace(OFFER, slots=3)
    after = one_round(waiting, waiting.submitted_at, narrow)
    assert after.run.state is RunState.QUEUED
    assert "it continues with 3 of 4 nodes at" in after.run.reason
    later = one_round(after.run, waiting.submitted_at + PATIENCE, narrow)
    assert later.run.width == 3 and later.run.attempts[-1].fewer
    assert "fewer-nodes" in kinds(later)
    never = one_round(waiting, waiting.submitted_at + PATIENCE, replace(OFFER, slots=1))
    assert never.run.state is RunState.QUEUED, "one node is fewer than two"


def test_a_fixed_number_never_shrinks(make_run: MakeRun, now: datetime) -> None:
    waiting = make_run(job={"nodes": 4, "on": "cloud"})
    after = one_round(waiting, waiting.submitted_at + timedelta(days=30), replace(OFFER, slots=3))
    assert after.run.state is RunState.QUEUED and "continues with" not in after.run.reason


def test_a_lost_node_is_replaced_where_there_is_another(run: Run, now: datetime) -> None:
    lost, seen = losing(run, now, 1)
    after = one_round(lost, now, OFFER, seen=seen)
    assert [one.offer.again for one in after.run.attempts[-1].members if one.offer] == [
        node_key(run, 1),
        "",
        node_key(run, 1, 2),
        node_key(run, 1, 3),
    ]


def test_another_kind_is_tried_before_the_run_shrinks(run: Run, now: datetime) -> None:
    lost, seen = losing(run, now, 1)
    other = replace(OFFER, size="large", usd_per_hour=Decimal(9))
    after = one_round(lost, now + PATIENCE, other, seen=seen)
    assert after.run.width == 4 and after.run.attempts[-1].members[1].offer == replace(other, gang=run.id)


def test_it_waits_for_a_while_and_then_shrinks_to_the_machines_that_are_left(run: Run, now: datetime) -> None:
    lost, seen = losing(run, now, 0)
    waits = one_round(lost, now, seen=seen)
    assert waits.run.state is RunState.QUEUED and "continues with 3 of 4 nodes" in waits.run.reason
    after = one_round(waits.run, now + PATIENCE, seen=seen)
    newest = after.run.attempts[-1]
    assert [one.offer.again for one in newest.members if one.offer] == [
        node_key(run, 1, 3),  # the machine of the last node is the first node now
        node_key(run, 1, 1),
        node_key(run, 1, 2),
    ]
    assert [one.key for one in newest.members] == [node_key(run, 2), node_key(run, 2, 1), node_key(run, 2, 2)]
    assert "not available" in newest.fewer
    assert after.run.widths == (0, 4, 3)


def test_it_never_shrinks_below_its_least(run: Run, now: datetime) -> None:
    lost, seen = losing(run, now, 0, 1, 2)
    after = one_round(lost, now + PATIENCE, seen=seen)
    assert after.run.state is RunState.QUEUED and after.run.reason


def test_a_deadline_that_leaves_no_time_shrinks_at_once(run: Run, now: datetime) -> None:
    lost, seen = losing(run, now, 3)
    hurried = replace(lost, job=replace(lost.job, deadline=60.0))
    assert one_round(hurried, now, seen=seen).run.attempts[-1].fewer.startswith("its deadline")
    relaxed = replace(lost, job=replace(lost.job, deadline=1e6))
    assert one_round(relaxed, now, seen=seen).run.state is RunState.QUEUED


def test_a_budget_that_pays_for_three_of_four_starts_three_at_once(make_run: MakeRun, now: datetime) -> None:
    offer = replace(OFFER, ready_s=60.0)
    waiting = make_run(job={"nodes": "2..4", "on": "cloud"})
    budget = fuse.least(waiting, offer) * Decimal("3.5")
    after = one_round(replace(waiting, budget=budget), waiting.submitted_at, offer)
    assert after.run.width == 3
    assert after.run.attempts[-1].fewer == "its budget pays for 3 of 4"
    poor = one_round(replace(waiting, budget=budget / 4), waiting.submitted_at, offer)
    assert poor.run.state is RunState.PAUSED and "leaves" in poor.run.reason


def test_a_run_that_cannot_pay_for_all_and_finds_no_fewer_waits_for_machines(make_run: MakeRun, now: datetime) -> None:
    offer = replace(OFFER, ready_s=60.0, slots=1)
    waiting = make_run(job={"nodes": "2..4", "on": "cloud"})
    after = one_round(replace(waiting, budget=fuse.least(waiting, offer) * 3), waiting.submitted_at, offer)
    assert after.run.state is RunState.QUEUED and "requires 3 nodes at once" in after.run.reason


def small(run: Run, now: datetime) -> Run:
    """At work on three of four nodes."""
    lost, seen = losing(run, now, 3)
    return working(one_round(lost, now + PATIENCE, seen=seen).run, now + PATIENCE)


def at_work(run: Run, now: datetime, *growth: NodeSight | None) -> Sighting:
    members = run.attempts[-1].members
    seen = [Sighting(node=NodeSight(one.key, NodeState.UP), report=said(one, now)) for one in members]
    return replace(together(*seen), growth=growth)


def test_a_run_that_shrank_asks_for_the_missing_node_while_the_others_work(run: Run, now: datetime) -> None:
    run = small(run, now)
    soon = now + PATIENCE + timedelta(seconds=5)
    assert not one_round(run, soon, OFFER, seen=at_work(run, soon)).run.attempts[-1].growth, "it has just begun"
    later = now + PATIENCE + SETTLED
    after = one_round(run, later, OFFER, seen=at_work(run, later))
    assert spare_keys(after.run) == (node_key(run, 3, 3),)
    assert set(spare_keys(after.run)) < claimed([after.run])
    assert any(isinstance(one, StartSpare) for one in after.actions)
    assert after.run.state is RunState.RUNNING and not after.run.attempts[-1].notice, "nothing is interrupted yet"


def test_it_grows_when_the_new_node_is_ready_and_keeps_its_machines(run: Run, now: datetime) -> None:
    run = small(run, now)
    later = now + PATIENCE + SETTLED
    asked = one_round(run, later, OFFER, seen=at_work(run, later)).run
    key = spare_keys(asked)[0]
    starting = one_round(asked, later, OFFER, seen=at_work(asked, later, NodeSight(key, NodeState.STARTING))).run
    assert not starting.attempts[-1].notice
    told = one_round(asked, later, OFFER, seen=at_work(asked, later, NodeSight(key, NodeState.UP)))
    assert told.run.attempts[-1].notice and "all 4 nodes are available again" in told.run.attempts[-1].moving
    assert "growing" in kinds(told)
    members = told.run.attempts[-1].members
    up = [NodeSight(one.key, NodeState.UP) for one in members]
    ended = [
        Sighting(node=sight, report=said(one, later, Outcome.EVICTED, stays=True))
        for one, sight in zip(members, up, strict=True)
    ]
    over = advance(told.run, together(*ended), later).run
    assert over.state is RunState.QUEUED and over.attempts[-1].state is AttemptState.MOVED
    seen = Sighting(nodes=(*up, NodeSight(key, NodeState.UP)))
    grown = one_round(over, later, OFFER, seen=seen).run
    newest = grown.attempts[-1]
    assert [one.key for one in newest.members][3] == key and not newest.fewer
    assert sum(bool(one.offer and one.offer.again) for one in newest.members) == 3
    assert not [spell for spell in grown.spells if spell.key == key][1:], "it is paid for once"


def test_a_refused_node_leaves_the_others_at_work_and_is_asked_for_later(run: Run, now: datetime) -> None:
    run = small(run, now)
    later = now + PATIENCE + SETTLED
    asked = one_round(run, later, OFFER, seen=at_work(run, later)).run
    gone = NodeSight(spare_keys(asked)[0], NodeState.GONE, "no capacity")
    after = one_round(asked, later, OFFER, seen=at_work(asked, later, gone))
    assert after.run.state is RunState.RUNNING and not after.run.attempts[-1].growth
    assert StopNode("cloud", gone.key) in after.actions
    again = one_round(after.run, later + timedelta(seconds=31), OFFER, seen=at_work(after.run, later))
    assert again.run.attempts[-1].growth


@pytest.mark.parametrize("change", [{"saved": False}, {"state": AttemptState.ASKED}])
def test_a_run_that_would_lose_by_it_does_not_grow(run: Run, now: datetime, change: dict[str, Any]) -> None:
    run = small(run, now)
    later = now + PATIENCE + SETTLED
    run = run.with_newest(replace(run.attempts[-1], **change))
    assert not elastic.may_grow(run, later)


def test_a_budget_that_does_not_pay_for_all_lets_it_stay_small(run: Run, now: datetime) -> None:
    run, later = small(run, now), now + PATIENCE + SETTLED
    offers, spent = market(run, OFFER), spent_by(run, later)
    assert elastic.asked_more(run, offers, None, Allowance(spent + 1, "its budget"), later)
    whole = fuse.reserve(run) + fuse.least(run, OFFER) * 4
    assert not elastic.asked_more(run, offers, None, Allowance(spent + whole - Decimal("0.001"), "its budget"), later)


def test_where_there_are_slots_it_takes_what_others_leave_and_grows_when_they_end(
    make_run: MakeRun, now: datetime
) -> None:
    other = begin(make_run(1), now).run
    waiting = make_run(2, job={"nodes": "2..4"})
    scene = Scene({"local": 4}, waiting.submitted_at)
    assert not decide([other, waiting], {}, scene), "it waits for all"
    then = waiting.submitted_at + PATIENCE
    begun = next(one.run for one in decide([other, waiting], {}, Scene({"local": 4}, then)) if one.run.id == waiting.id)
    assert begun.width == 3
    running = working(begun, then)
    later = then + SETTLED
    scene = Scene({"local": 4}, later)
    seen = {running.id: at_work(running, later)}
    assert not decide([other, running], seen, scene)[0].run.attempts[-1].notice
    told = decide([running], seen, scene)[0].run
    assert told.attempts[-1].notice and "all 4" in told.attempts[-1].moving
    queued = make_run(3)
    held = next(one for one in decide([running, queued], seen, scene) if one.run.id == running.id)
    assert not held.run.attempts[-1].notice, "what others wait for is theirs"


SILENT = replace(OFFER, slots=None)  # it does not tell how many nodes it has


def refusing(run: Run, now: datetime, *nodes: int) -> Run:
    """The run after these nodes of its new attempt were refused, and the others released."""
    parts = []
    for one in run.attempts[-1].members:
        code, why = ("no-capacity", "no capacity") if one.node in nodes else ("", "released")
        sight = NodeSight(one.key, NodeState.GONE, why)
        parts.append(Sighting(node=sight, trouble=why if code else "", trouble_code=code))
    return advance(run, together(*parts), now).run


def test_a_number_of_nodes_that_a_place_refused_is_not_requested_there_again_soon(
    make_run: MakeRun, now: datetime
) -> None:
    waiting = make_run(job={"nodes": "2..4", "on": "cloud"})
    begun = waiting.submitted_at
    refused = refusing(one_round(waiting, begun, SILENT).run, begun, 3)
    assert refused.state is RunState.QUEUED and refused.attempts[-1].trouble == "no-capacity"
    then = begun + PATIENCE
    fewer = one_round(refused, then, SILENT, seen=Sighting()).run
    assert fewer.width == 3 and "has room for 3" in fewer.attempts[-1].fewer
    again = refusing(fewer, then, 1)
    least = one_round(again, then + PATIENCE * 2, SILENT, seen=Sighting()).run
    assert least.width == 2
    later = refusing(least, then + PATIENCE * 2, 1)
    assert one_round(later, then + timedelta(minutes=5), SILENT, seen=Sighting()).run.width == 2, (
        "never below its least"
    )
    much_later = then + timedelta(seconds=elastic.REMEMBERED_S) + timedelta(minutes=5)
    assert one_round(later, much_later, SILENT, seen=Sighting()).run.width == 4, "there may be room again"


def test_a_single_node_that_was_refused_beside_those_that_it_kept_is_not_requested_again_soon(
    make_run: MakeRun, now: datetime
) -> None:
    waiting = make_run(job={"nodes": "2..4", "on": "cloud"})
    begun = one_round(waiting, waiting.submitted_at, SILENT).run
    kept = [replace(one, offer=replace(OFFER, again=one.key)) for one in begun.attempts[-1].peers[:-1]]
    attempt = replace(begun.attempts[-1], offer=replace(OFFER, again="0"), peers=(*kept, begun.attempts[-1].peers[-1]))
    refused = refusing(begun.with_newest(attempt), waiting.submitted_at, 3)
    then = waiting.submitted_at + PATIENCE
    market = {("cloud", needs(refused.job)[0]): [OFFER]}
    [[left]] = elastic.narrowed(refused, market, then, 4).values()
    assert left.slots == 0
    assert elastic.narrowed(refused, market, then, 2) == market, "its least is always requested"


def test_where_all_nodes_were_refused_half_as_many_are_requested(make_run: MakeRun, now: datetime) -> None:
    waiting = make_run(job={"nodes": "1..8", "on": "cloud"})
    begun = waiting.submitted_at
    refused = refusing(one_round(waiting, begun, SILENT).run, begun, *range(8))
    assert one_round(refused, begun + PATIENCE, SILENT, seen=Sighting()).run.width == 4


def test_a_fixed_number_of_nodes_is_requested_again_after_the_usual_pause(make_run: MakeRun, now: datetime) -> None:
    waiting = make_run(job={"nodes": 4, "on": "cloud"})
    begun = waiting.submitted_at
    refused = refusing(one_round(waiting, begun, SILENT).run, begun, 3)
    assert one_round(refused, begun + PATIENCE, SILENT, seen=Sighting()).run.width == 4


def test_it_grows_by_as_many_nodes_as_were_not_refused(make_run: MakeRun, now: datetime) -> None:
    lost, seen = losing(
        working(begin(make_run(job={"nodes": "2..4", "on": "cloud"}), now, [SILENT] * 4).run, now), now, 2, 3
    )
    run = working(one_round(lost, now + PATIENCE, seen=seen).run, now + PATIENCE)
    later = now + PATIENCE + SETTLED
    asked = one_round(run, later, SILENT, seen=at_work(run, later)).run
    first, second = spare_keys(asked)
    refused = NodeSight(first, NodeState.STARTING), NodeSight(second, NodeState.GONE, "no capacity")
    after = one_round(asked, later, SILENT, seen=at_work(asked, later, *refused)).run
    then = later + PATIENCE
    assert len(one_round(after, then, SILENT, seen=at_work(after, then)).run.attempts[-1].growth) == 1


def test_a_node_that_was_refused_is_not_requested_ahead(make_run: MakeRun, now: datetime) -> None:
    waiting = make_run(job={"nodes": 4, "on": "cloud"})
    begun = waiting.submitted_at
    asked = one_round(waiting, begun, SILENT).run
    parts = [Sighting(node=NodeSight(one.key, NodeState.STARTING)) for one in asked.attempts[-1].members]
    parts[3] = Sighting(
        node=NodeSight(asked.attempts[-1].members[3].key, NodeState.GONE, "full"),
        trouble="full",
        trouble_code="no-capacity",
    )
    after = one_round(asked, begun, SILENT, seen=together(*parts)).run
    assert after.attempts[-1].broken_at and not spare_keys(after), "it would be refused again, or keep half a gang"
