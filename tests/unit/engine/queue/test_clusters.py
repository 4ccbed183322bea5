"""Clusters: which runs get nodes, which idle nodes are kept, and what a run waits for."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from stoker.engine.decision import Decision, Sighting, StartNode, StopNode, TellAgent
from stoker.engine.lifecycle import begin
from stoker.engine.money.meter import cost, spent
from stoker.engine.nodes.lease import last_key
from stoker.engine.nodes.nodes import needed
from stoker.engine.offers.gathering import gang_of
from stoker.engine.offers.market import needs
from stoker.engine.queue import clusters
from stoker.engine.queue.clusters import ClusterFacts
from stoker.engine.queue.placement import placed
from stoker.engine.rounds import Scene, decide
from stoker.model.cause import Cause
from stoker.model.node import Cluster, NodeSight, NodeState, Offer
from stoker.model.run.report import Outcome, Phase, Report
from stoker.model.run.run import AttemptState, Run, RunState

Make = Callable[..., Run]
DEV = Cluster("dev", "cloud", max_nodes=2, idle_s=600.0, owner="anna")
PRICE = Decimal("3.60")
OFFER = Offer("cloud", "small", "here", PRICE)


def facts(cluster: Cluster | None = DEV, **more: Any) -> ClusterFacts:
    known = {cluster.name: cluster} if cluster else {}
    return ClusterFacts(known, **{"warm": {"cloud"}, **more})


def submitted(make_run: Make, number: int = 1, nodes: int = 1, **more: Any) -> Run:
    return make_run(number, job={"on": "cloud", "nodes": nodes}, **{"pool": DEV.pool, **more})


def started(run: Run, now: datetime, offer: Offer = OFFER) -> Run:
    return begin(run, now, [offer] * run.job.most_nodes).run


def up(key: str, **more: Any) -> NodeSight:
    return NodeSight(key, NodeState.UP, usd_per_hour=PRICE, **more)


def decided(
    runs: list[Run], seen: dict[str, Sighting], now: datetime, pools: ClusterFacts, offer: Offer = OFFER
) -> dict[str, Decision]:
    market = {("cloud", need): [offer] for run in runs for need in needs(run.job, run.pool)}
    return {one.run.id: one for one in decide(runs, seen, Scene({"cloud": None}, now, market, clusters=pools))}


def over(run: Run, now: datetime, pools: ClusterFacts, outcome: Outcome = Outcome.SUCCEEDED) -> Decision:
    """The run with its final report, and its node still up."""
    key = run.attempts[-1].key
    ended = Report(1, 0, Phase.DONE, now, 5, started_at=now, ended_at=now, outcome=outcome, exit_code=0)
    seen = Sighting(node=up(key), report=ended, nodes=(up(key),))
    return decided([run], {run.id: seen}, now, pools)[run.id]


def idle(make_run: Make, now: datetime, number: int = 1, offer: Offer = OFFER) -> Run:
    return over(started(submitted(make_run, number), now, offer), now, facts()).run


def starts(runs: list[Run], rooms: dict[str, int], now: datetime) -> list[Run]:
    return list(placed(runs, {"cloud": None}, rooms, now).starts)


def test_runs_of_a_cluster_start_in_their_order_as_far_as_its_nodes_go(make_run: Make, now: datetime) -> None:
    runs = [submitted(make_run, number) for number in (1, 2, 3)]
    assert starts(runs, {"dev": 2}, now) == runs[:2]


def test_a_wide_run_holds_back_the_narrow_ones_after_it_and_no_other_cluster(make_run: Make, now: datetime) -> None:
    busy, wide, narrow = (submitted(make_run, number, nodes) for number, nodes in ((5, 1), (1, 2), (2, 1)))
    elsewhere = submitted(make_run, 3, pool=replace(DEV, name="prod").pool)
    of_none = submitted(make_run, 4, pool=None)
    runs = [started(busy, now), wide, narrow, elsewhere, of_none]
    assert starts(runs, {"dev": 2, "prod": 1}, now) == [elsewhere, of_none]
    assert starts(runs, {"dev": 0, "prod": 1}, now) == [elsewhere, of_none], "a paused cluster starts nothing"


def test_a_run_wider_than_its_cluster_holds_back_nobody(make_run: Make, now: datetime) -> None:
    wide, narrow = submitted(make_run, 1, nodes=3), submitted(make_run, 2)
    assert starts([wide, narrow], {"dev": 2}, now) == [narrow]


def test_people_take_turns_in_a_cluster(make_run: Make, now: datetime) -> None:
    mine = [replace(submitted(make_run, number), person="ada") for number in (1, 2)]
    other = replace(submitted(make_run, 3), person="bob")
    assert starts([*mine, other], {"dev": 2}, now) == [mine[0], other]


def test_the_maximum_bounds_the_nodes_that_are_used_at_once(make_run: Make, now: datetime) -> None:
    runs = [submitted(make_run, number) for number in (1, 2, 3)]
    after = decided(runs, {}, now, facts())
    assert [run.id for run in runs if run.id in after] == [runs[0].id, runs[1].id]


def test_nothing_starts_in_a_paused_cluster(make_run: Make, now: datetime) -> None:
    assert decided([submitted(make_run)], {}, now, facts(replace(DEV, paused=True))) == {}


def test_a_run_that_became_wider_than_its_cluster_holds_back_nobody(make_run: Make, now: datetime) -> None:
    wide, narrow = submitted(make_run, 1, nodes=4), submitted(make_run, 2)
    assert list(decided([wide, narrow], {}, now, facts())) == [narrow.id]


def test_a_waiting_run_says_what_it_waits_for(make_run: Make, now: datetime) -> None:
    def why(run: Run, *others: Run, pools: ClusterFacts | None = None, ahead: int = 0) -> clusters.Blockage:
        pools = pools or facts()
        return clusters.why_waiting(run, ahead, clusters.free([run, *others], pools).get("dev", 0), pools)

    run, wide = submitted(make_run, 9), submitted(make_run, 8, nodes=2)
    busy = started(submitted(make_run, 1), now)
    assert why(run) == ("", "", "")
    paused = why(run, pools=facts(replace(DEV, paused=True)))
    assert (paused.cause, paused.hint) == (Cause.CLUSTER_PAUSED, "stoker cluster resume dev")
    assert why(wide, busy).cause == Cause.NO_ROOM
    assert why(wide, busy).why == "waits for 1 of 2 nodes: 1 of 2 nodes of cluster `dev` are busy, 0 ahead"
    assert why(submitted(make_run, 7, nodes=4)).cause == Cause.CLUSTER_TOO_SMALL
    assert why(run, busy, wide, ahead=1).cause == Cause.NO_ROOM
    gone = why(run, pools=facts(None))
    assert (gone.cause, gone.hint) == (Cause.NO_SUCH_CLUSTER, f"stoker cancel {run.name}")


def test_the_node_of_a_run_that_ended_waits_and_its_cluster_pays(make_run: Make, now: datetime) -> None:
    run = started(submitted(make_run), now)
    done = now + timedelta(seconds=60)
    decision = over(run, done, facts())
    after, key = decision.run, run.attempts[-1].key
    assert after.state is RunState.SUCCEEDED and after.waiting_nodes == (key,) and after.tended
    later = done + timedelta(seconds=100)
    assert spent(after, later) == Decimal("0.06"), "a minute of the run, and nothing since"
    assert cost(after.idle[0], later) == Decimal("0.1")
    assert needed([after], {"cloud": [up(key)]}) == {key}, "it is not a leftover"
    assert TellAgent(after) in decision.actions, "its lease is renewed"


def test_no_node_waits_that_is_evicted_or_cheap_to_start_or_whose_cluster_has_no_use_for_it(
    make_run: Make, now: datetime
) -> None:
    run = started(submitted(make_run), now)
    assert not over(run, now, facts(), Outcome.EVICTED).run.idle
    for pools in (facts(warm=()), facts(replace(DEV, paused=True)), facts(None), facts(spent={"dev"})):
        assert not over(run, now, pools).run.idle, pools
    assert not over(replace(run, pool=None), now, facts()).run.idle


def test_the_next_run_takes_the_idle_node_and_no_other_one_gets_it(make_run: Make, now: datetime) -> None:
    first, key = idle(make_run, now), "000000000001-1"
    second, third = submitted(make_run, 2), submitted(make_run, 3)
    after = decided([first, second, third], {}, now, facts())
    assert [after[run.id].run.attempts[-1].offer for run in (second, third)] == [
        replace(OFFER, again=key, waits=key),
        OFFER,
    ]
    assert after[first.id].run.waiting_nodes == ()
    assert any(isinstance(action, StartNode) for action in after[second.id].actions)
    taken = after[first.id].run
    assert clusters.observed(taken, Sighting(nodes=()), facts(), now).idle[0].until == now, "the node has a new key"


def test_a_run_elsewhere_in_the_store_or_of_another_size_gets_a_new_node(make_run: Make, now: datetime) -> None:
    first = idle(make_run, now)
    other = submitted(make_run, 2, store="another")
    assert decided([first, other], {}, now, facts())[other.id].run.attempts[-1].offer == OFFER
    larger = replace(OFFER, size="large")
    run = submitted(make_run, 3)
    market = {("cloud", need): [larger] for need in needs(run.job, run.pool)}
    after = {
        one.run.id: one.run for one in decide([first, run], {}, Scene({"cloud": None}, now, market, clusters=facts()))
    }
    assert after[run.id].attempts[-1].offer == larger


def test_an_idle_node_makes_room_for_a_gang_before_the_gang_gets_new_ones(make_run: Make, now: datetime) -> None:
    """A machine that was requested alone is in no network with others."""
    apart = replace(OFFER, network="here")
    first, gang = idle(make_run, now, offer=apart), submitted(make_run, 2, nodes=2)
    after = decided([first, gang], {}, now, facts(), apart)
    assert (after[gang.id].run.state, after[gang.id].run.cause) == (RunState.QUEUED, Cause.CLUSTER_FULL)
    going = after[first.id].run
    assert going.idle[0].released == "its cluster needs the room" and going.idling
    assert gang.id not in decided([going, gang], {}, now, facts(), apart), "it is still there: nothing is decided"
    gone = clusters.observed(going, Sighting(), facts(), now)
    assert decided([gone, gang], {}, now, facts(), apart)[gang.id].run.state is RunState.STARTING


def idle_gang(make_run: Make, now: datetime, offer: Offer, outcome: Outcome = Outcome.SUCCEEDED) -> Run:
    """A run with two nodes that has ended, and whose nodes wait."""
    run = started(submitted(make_run, nodes=2), now, offer)
    ends = [Report(1, node, Phase.DONE, now, 5, started_at=now, ended_at=now, outcome=outcome) for node in (0, 1)]
    sights = tuple(up(member.key) for member in run.attempts[-1].members)
    seen = [Sighting(node=sight, report=report) for sight, report in zip(sights, ends, strict=True)]
    whole = replace(seen[0], nodes=sights, peers=(seen[1],))
    return decided([run], {run.id: whole}, now, facts(), offer)[run.id].run


def test_the_nodes_of_a_gang_wait_and_take_the_next_gang_in_their_network(make_run: Make, now: datetime) -> None:
    apart = replace(OFFER, network="here")
    first = idle_gang(make_run, now, apart)
    keys = [member.key for member in first.members]
    assert first.waiting_nodes == tuple(keys) and not first.costing
    gang = submitted(make_run, 2, nodes=2)
    after = decided([first, gang], {}, now, facts(), apart)
    second = after[gang.id].run
    assert sorted(one.offer.waits for one in second.members if one.offer) == sorted(keys)
    assert {one.offer.gang for one in second.members if one.offer} == {first.id} == {gang_of(second)}
    assert after[first.id].run.waiting_nodes == ()


def test_a_gang_takes_the_idle_nodes_that_there_are_and_new_ones_beside_them(make_run: Make, now: datetime) -> None:
    apart, wide = replace(OFFER, network="here"), facts(replace(DEV, max_nodes=3))
    gang = submitted(make_run, 2, nodes=3)
    second = decided([idle_gang(make_run, now, apart), gang], {}, now, wide, apart)[gang.id].run
    assert [bool(one.offer and one.offer.waits) for one in second.members] == [True, True, False]
    assert len({one.offer.gang for one in second.members if one.offer}) == 1, "all reach each other"


def test_warm_nodes_are_taken_although_no_new_one_could_be_had(make_run: Make, now: datetime) -> None:
    first, gang = idle_gang(make_run, now, OFFER), submitted(make_run, 2, nodes=2)
    full = replace(OFFER, slots=0)
    assert decided([first, gang], {}, now, facts(), full)[gang.id].run.state is RunState.STARTING


def test_an_idle_node_is_released_after_its_time_and_costs_until_it_is_gone(make_run: Make, now: datetime) -> None:
    first = idle(make_run, now)
    key, soon, late = first.waiting_nodes[0], now + timedelta(seconds=599), now + timedelta(seconds=601)
    seen = Sighting(nodes=(up(key),), lingers_s=900.0)
    assert decided([first], {first.id: seen}, soon, facts())[first.id].run.waiting_nodes == (key,)
    after = decided([first], {first.id: seen}, late, facts())[first.id].run
    assert after.waiting_nodes == () and after.idling and needed([after], {"cloud": [up(key)]}) == set()
    gone = decided([after], {after.id: Sighting(lingers_s=900.0)}, late, facts())[after.id].run
    assert gone.idle[0].until == late and not gone.tended


def test_the_minimum_is_kept_however_long_it_waits(make_run: Make, now: datetime) -> None:
    runs = [idle(make_run, now, 1), idle(make_run, now + timedelta(seconds=9), 2)]
    late = now + timedelta(days=1)
    released = list(clusters.releasing(runs, facts(replace(DEV, min_nodes=1)), late))
    assert [(run.id, why) for run, _, why in released] == [(runs[0].id, "idle for 86400 s")]


def test_a_busy_node_is_part_of_the_minimum(make_run: Make, now: datetime) -> None:
    runs = [idle(make_run, now, 1), started(submitted(make_run, 2), now)]
    late = now + timedelta(days=1)
    assert [run.id for run, _, _ in clusters.releasing(runs, facts(replace(DEV, min_nodes=1)), late)] == [runs[0].id]


def test_nodes_that_the_minimum_lacks_are_started_ahead_of_any_run(make_run: Make, now: datetime) -> None:
    two = facts(replace(DEV, min_nodes=2))
    there = idle(make_run, now, 1)
    assert clusters.lacking([], two) == {"dev": 2}
    assert clusters.lacking([there], two) == {"dev": 1}
    assert clusters.lacking([there, started(submitted(make_run, 2), now)], two) == {}
    assert clusters.lacking([submitted(make_run, 2)], two) == {"dev": 1}, "the one that waits brings a node"
    assert clusters.lacking([submitted(make_run, 2, warms=True)], two) == {}, "one at a time"
    assert clusters.lacking([], facts(replace(DEV, min_nodes=2, paused=True))) == {}
    assert clusters.lacking([], facts(replace(DEV, min_nodes=2), spent={"dev"})) == {}
    assert clusters.lacking([], facts(replace(DEV, min_nodes=2), warm=())) == {}


def test_a_node_that_is_started_ahead_is_a_new_one_and_then_waits(make_run: Make, now: datetime) -> None:
    """It would take the idle node otherwise, and there would never be two."""
    two, there, ahead = facts(replace(DEV, min_nodes=2)), idle(make_run, now, 1), submitted(make_run, 2, warms=True)
    begun = decided([there, ahead], {}, now, two)[ahead.id].run
    assert begun.attempts[-1].offer == OFFER
    waits = over(begun, now, two).run
    assert waits.waiting_nodes == (begun.attempts[-1].key,) and clusters.lacking([there, waits], two) == {}


def test_a_round_that_starts_a_thousand_of_ten_thousand_runs_asks_each_run_once(make_run: Make, now: datetime) -> None:
    """Not every run for every start: that took 25 s of processor time."""
    wide = replace(DEV, max_nodes=300)

    def took_s(waiting: int) -> float:
        runs = [submitted(make_run, number) for number in range(waiting)]
        began = time.process_time()
        assert len(decided(runs, {}, now, facts(wide))) == 300
        return time.process_time() - began

    few, many = min(took_s(300) for _ in range(2)), min(took_s(3000) for _ in range(2))
    assert many < 5 * few, f"{few:.2f} s with 300 runs, {many:.2f} s with 3,000"


def test_idle_nodes_go_when_their_cluster_is_paused_removed_smaller_or_its_owner_has_no_money(
    make_run: Make, now: datetime
) -> None:
    runs = [idle(make_run, now, 1), idle(make_run, now, 2)]

    def reasons(pools: ClusterFacts) -> list[str]:
        return [why for _, _, why in clusters.releasing(runs, pools, now)]

    assert reasons(facts()) == []
    assert reasons(facts(replace(DEV, paused=True))) == ["its cluster is paused"] * 2
    assert reasons(facts(None)) == ["its cluster was removed"] * 2
    assert reasons(facts(spent={"dev"})) == ["a spending limit is reached"] * 2
    assert reasons(facts(replace(DEV, max_nodes=1))) == ["its cluster has no room for it"]


def test_an_idle_node_that_nobody_looked_at_for_long_costs_no_longer_than_its_lease(
    make_run: Make, now: datetime
) -> None:
    first = idle(make_run, now)
    back = now + timedelta(days=2)
    gone = clusters.observed(first, Sighting(lingers_s=900.0), facts(), back)
    assert gone.idle[0].until == now + timedelta(seconds=960)


PAUSED = replace(DEV, paused=True)


def working(make_run: Make, now: datetime, nodes: int = 1) -> tuple[Run, Sighting]:
    """A run whose script runs on all of its nodes, and what is seen of it."""
    run = started(submitted(make_run, nodes=nodes), now)
    sights = tuple(up(member.key) for member in run.attempts[-1].members)
    reports = [Report(1, node, Phase.RUNNING, now, 5, started_at=now) for node in range(nodes)]
    parts = [Sighting(node=sight, report=report) for sight, report in zip(sights, reports, strict=True)]
    seen = replace(parts[0], nodes=sights, peers=tuple(parts[1:]))
    return decided([run], {run.id: seen}, now, facts())[run.id].run, seen


def test_a_run_of_a_paused_cluster_saves_and_gives_its_nodes_back(make_run: Make, now: datetime) -> None:
    for nodes in (1, 2):
        run, seen = working(make_run, now, nodes)
        assert run.state is RunState.RUNNING
        told = decided([run], {run.id: seen}, now, facts(PAUSED))[run.id]
        notice = told.run.attempts[-1].notice
        assert notice and notice.drill and notice.deadline == now + timedelta(seconds=60)
        assert [event.kind for event in told.events] == ["cluster-paused"]
        again = decided([told.run], {run.id: seen}, now, facts(PAUSED))[run.id]
        assert not again.events, "it is told once"
        saved = [
            replace(part, report=replace(part.report, outcome=Outcome.EVICTED, ended_at=now, stays=True))
            for part in (seen, *seen.peers)
            if part.report
        ]
        ended = replace(saved[0], peers=tuple(saved[1:]))
        after = decided([told.run], {run.id: ended}, now, facts(PAUSED))[run.id].run
        assert after.state is RunState.QUEUED and after.attempts[-1].state is AttemptState.MOVED
        assert not needed([after], {"cloud": seen.nodes}), "none of its machines is kept for it"
        gone = decided([after], {run.id: Sighting()}, now, facts(PAUSED))[run.id].run
        assert gone.state is RunState.QUEUED and not gone.costing
        assert decided([gone], {run.id: Sighting()}, now, facts())[run.id].run.state is RunState.STARTING


def test_what_has_not_started_in_a_paused_cluster_is_released_at_once(make_run: Make, now: datetime) -> None:
    run = started(submitted(make_run, nodes=2), now)
    sights = tuple(NodeSight(member.key, NodeState.STARTING) for member in run.attempts[-1].members)
    seen = Sighting(node=sights[0], nodes=sights, peers=(Sighting(node=sights[1]),))
    told = decided([run], {run.id: seen}, now, facts(PAUSED))[run.id].run
    after = decided([told], {run.id: seen}, now, facts(PAUSED))[run.id]
    assert after.run.state is RunState.QUEUED
    assert {action.key for action in after.actions if isinstance(action, StopNode)} == {one.key for one in sights}


def test_machines_that_a_waiting_or_failed_run_keeps_go_when_its_cluster_is_paused(
    make_run: Make, now: datetime
) -> None:
    run, seen = working(make_run, now, 2)
    members = (replace(run.attempts[-1], stays=True, spare=OFFER), replace(run.attempts[-1].peers[0], stays=True))
    lost = replace(members[0], state=AttemptState.LOST, ended_at=now, peers=(members[1],))
    waiting = replace(run, state=RunState.QUEUED, attempts=(lost,))
    assert needed([waiting], {"cloud": seen.nodes})
    after = decided([waiting], {run.id: seen}, now, facts(PAUSED))[run.id].run
    assert not needed([after], {"cloud": seen.nodes})
    kept = replace(run, state=RunState.FAILED, ended_at=now, kept_until=now + timedelta(hours=1))
    assert needed([kept], {"cloud": seen.nodes})
    assert not needed([decided([kept], {run.id: seen}, now, facts(PAUSED))[run.id].run], {"cloud": seen.nodes})


def test_a_machine_is_told_its_orders_where_its_last_node_looks(make_run: Make, now: datetime) -> None:
    own = "000000000001-1"
    fresh = started(submitted(make_run), now)
    again = begin(replace(fresh, state=RunState.QUEUED), now, [replace(OFFER, again=own)]).run
    assert last_key(again, again.attempts[-1]) == own, "its own machine looks where it was first told"
    warm = started(submitted(make_run, 2), now, replace(OFFER, again=own, waits=own))
    assert last_key(warm, warm.attempts[-1]) == own
    second = begin(replace(warm, state=RunState.QUEUED), now, [replace(OFFER, again=own)]).run
    assert last_key(second, second.attempts[-1]) == warm.attempts[-1].key
    third = begin(replace(second, state=RunState.QUEUED), now, [replace(OFFER, again=own)]).run
    assert last_key(third, third.attempts[-1]) == second.attempts[-1].key
