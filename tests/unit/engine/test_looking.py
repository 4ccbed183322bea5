"""Looks become facts: what is concluded from what a provider shows, a store tells and requests came to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

import pytest

from stoker.engine.decision import StartNode
from stoker.engine.lifecycle import advance, begin
from stoker.engine.looking import Heard, Requests, goes_on, gone_keys, heard_out, outlives_s, sighting, vanished
from stoker.engine.nodes.nodes import needed, release_unneeded
from stoker.errors import NoCapacity, StoreDenied
from stoker.model.cause import Cause
from stoker.model.node import Features, NodeSight, NodeState, Offer
from stoker.model.orders import Wish
from stoker.model.run.money import Spell
from stoker.model.run.report import Outcome, Phase, Report
from stoker.model.run.run import Attempt, AttemptState, Run, RunState

Make = Callable[..., Run]
FEATURES = Features(lease_s=86_400.0, idle_s=600.0, patience_s=15.0)


@pytest.fixture
def run(make_run: Make, now: datetime) -> Run:
    made = make_run(1)
    first = Attempt(1, f"{made.id}-1", AttemptState.LOST, now)
    second = Attempt(2, f"{made.id}-2", AttemptState.RUNNING, now)
    return replace(made, state=RunState.RUNNING, attempts=(first, second))


def seen(run: Run, number: int, state: NodeState = NodeState.UP, *, still: bool = False) -> NodeSight:
    return NodeSight(f"{run.id}-{number}", state, still=still)


def test_its_node_is_distinguished_from_those_of_earlier_attempts_and_of_other_runs(run: Run) -> None:
    sights = [seen(run, 1, still=True), seen(run, 2), NodeSight(f"{run.id}0-2", NodeState.UP)]
    found = sighting(run, sights, set(), {}, Requests(), FEATURES)
    assert found.node == sights[1]
    assert (found.leftovers, found.still) == ((f"{run.id}-1",), (f"{run.id}-1",))
    assert found.nodes == tuple(sights[:2])


def test_a_node_that_is_gone_counts_as_up_until_its_last_words_are_heard(run: Run) -> None:
    gone, key = [seen(run, 2, NodeState.GONE)], f"{run.id}-2"
    unheard = sighting(run, gone, {key}, {key: Heard(in_full=False)}, Requests(), FEATURES)
    heard = sighting(run, gone, {key}, {key: Heard(in_full=True)}, Requests(), FEATURES)
    assert unheard.node is not None
    assert unheard.node.state is NodeState.UP
    assert heard.node == gone[0]


def test_a_cancelled_run_ends_without_waiting_for_an_unavailable_store(run: Run) -> None:
    away = Heard(in_full=False, trouble="it does not answer")
    assert not heard_out(run, away)
    assert heard_out(replace(run, wish=Wish.CANCEL), away)


def test_a_node_that_was_seen_and_of_which_there_is_no_trace_has_vanished(run: Run, now: datetime) -> None:
    key = f"{run.id}-2"
    spell = Spell(key, since=now, until=None, usd_per_hour=Decimal(1), seen_at=now)
    paid = replace(run, spells=(spell,))
    assert vanished([paid], [seen(run, 1)]) == {key}
    assert vanished([paid], [seen(run, 2)]) == set()
    assert vanished([replace(run, spells=(replace(spell, seen_at=None),))], []) == set()
    assert vanished([replace(run, spells=(replace(spell, until=now),))], []) == set()
    found = sighting(paid, [], gone_keys([paid], []), {}, Requests(), FEATURES)
    assert found.node is not None
    assert (found.node.state, found.node.still) == (NodeState.GONE, True)


def test_a_machine_that_reports_before_it_bears_its_new_key_is_not_gone(run: Run, now: datetime) -> None:
    """Its orders reach it through the store; its provider may be slow to write the new key down."""
    offer = Offer("cloud", "small", "here", Decimal("0.10"), spot=True, again=f"{run.id}-1")
    run = replace(run.with_newest(replace(run.attempts[-1], offer=offer)), state=RunState.STARTING)
    heard = {f"{run.id}-2": Heard(Report(2, 0, Phase.RUNNING, now, 1))}
    for gone in (set(), {f"{run.id}-2"}):  # the provider's list may also be older than the one before
        unmarked = sighting(run, [seen(run, 1)], gone, heard, Requests(), FEATURES)
        assert (unmarked.node, unmarked.unmarked) == (None, True)
        decision = advance(run, unmarked, now)
        assert (decision.run, decision.actions) == (run, (StartNode(run),)), "asked for again, until it is seen"
    nowhere = advance(run, sighting(run, [], set(), heard, Requests(), FEATURES), now)
    assert nowhere.run.attempts[-1].cause == Cause.NODE_GONE


def test_a_node_that_reports_before_a_slow_look_can_have_seen_it_is_not_gone(run: Run, now: datetime) -> None:
    key = f"{run.id}-2"
    heard = {key: Heard(Report(2, 0, Phase.RUNNING, now, beat=1))}
    for requests, state in ((Requests(begun={key}), AttemptState.RUNNING), (Requests(), AttemptState.LOST)):
        decision = advance(run, sighting(run, [], set(), heard, requests, FEATURES), now)
        assert decision.run.attempts[-1].state is state


def test_a_spare_that_could_not_be_asked_for_is_as_good_as_gone(run: Run) -> None:
    newest = replace(run.attempts[-1], spare=Offer("cloud", "small", "here", Decimal(1)))
    ahead, key = replace(run, attempts=(run.attempts[0], newest)), f"{run.id}-3"
    there = sighting(ahead, [seen(run, 3)], set(), {}, Requests(), FEATURES)
    refused = sighting(ahead, [], set(), {}, Requests(trouble={key: NoCapacity("sold out")}), FEATURES)
    assert there.spare == seen(run, 3)
    assert there.leftovers == ()
    assert refused.spare == NodeSight(key, NodeState.GONE, "sold out", "no-capacity")


def test_what_requests_came_to_is_reported_the_newest_attempt(run: Run) -> None:
    key = f"{run.id}-2"
    requests = Requests(unasked={key: StoreDenied("key refused", hint="new key")}, copying=["x-1"], wished_s={key: 7.0})
    found = sighting(run, [], set(), {key: Heard(silent_s=3.0, deaf=True)}, requests, FEATURES)
    assert (found.waits, found.waits_hint, found.wished_s) == ("key refused", "new key", 7.0)
    assert found.unasked == (key, "x-1")
    assert (found.silent_s, found.deaf, found.patience_s) == (3.0, True, 15.0)


def test_a_node_that_is_still_starting_outlives_its_servers_word_by_its_start_and_its_lease(run: Run) -> None:
    """It counts its lease from its own start, which the server may not have seen."""
    slow = Offer("cloud", "small", "here", Decimal(1), ready_s=200.0)
    starting = replace(run, attempts=(replace(run.attempts[-1], offer=slow),))
    assert outlives_s(starting, FEATURES) == outlives_s(run, FEATURES) + 200.0


def test_a_node_whose_provider_is_out_of_sight_continues_until_it_says_how_it_ended(run: Run, now: datetime) -> None:
    report = Report(2, 0, Phase.RUNNING, now, 1)
    ended = replace(report, outcome=Outcome.FAILED)
    kept = replace(run, kept_until=now + timedelta(seconds=60))
    assert goes_on(run, report, now)
    assert not goes_on(run, None, now)
    assert not goes_on(run, ended, now)
    assert goes_on(kept, ended, now)
    assert not goes_on(kept, ended, now + timedelta(seconds=61))


def test_what_nobody_needs_is_released_at_once_where_it_costs_and_after_a_while_where_not(run: Run) -> None:
    sights = {"cloud": [seen(run, 1), seen(run, 2)], "local": [NodeSight("x-1", NodeState.UP)]}
    claims = needed([run], sights)
    ages = {f"{run.id}-1": 0.0, "x-1": 5.0}
    released = release_unneeded(sights, claims, ages, {"cloud"})
    assert [(one.provider, one.key) for one in released] == [("cloud", f"{run.id}-1")]
    later = release_unneeded(sights, claims, {**ages, "x-1": 21.0}, {"cloud"})
    assert [one.key for one in later] == [f"{run.id}-1", "x-1"]


def test_the_node_of_a_run_that_is_over_and_kept_is_needed(run: Run, now: datetime) -> None:
    over = replace(run, state=RunState.FAILED, kept_until=now)
    assert needed([over], {}) == {f"{run.id}-2"}
    assert needed([replace(over, kept_until=None)], {}) == set()


def test_a_machine_that_the_next_attempt_may_take_over_is_needed(run: Run, now: datetime) -> None:
    newest = replace(run.attempts[-1], state=AttemptState.EVICTED, started_at=now)
    waiting = replace(run, state=RunState.QUEUED, attempts=(run.attempts[0], newest))
    off = replace(seen(run, 2, NodeState.GONE), resumable=True)
    assert needed([waiting], {"cloud": [off]}) == {off.key}


def test_an_idle_node_that_was_taken_is_seen_although_its_provider_still_shows_the_old_key(
    make_run: Make, now: datetime
) -> None:
    offer = Offer("cloud", "small", "here", Decimal(1), again="machine-1", waits="idle-1")
    run = begin(make_run(), now, [offer]).run
    key, shown = run.attempts[-1].key, [NodeSight("idle-1", NodeState.UP)]
    report = Report(1, 0, Phase.RUNNING, now, 1)
    found = sighting(run, shown, set(), {key: Heard(report=report)}, Requests(), Features())
    assert found.node == NodeSight(key, NodeState.UP, machine="machine-1")
    assert sighting(run, shown, set(), {}, Requests(), Features()).node is None, "it may not have got its orders"


@pytest.mark.parametrize(("other", "patience_s"), [(1.0, 30.0), (29.0, 120.0)])
def test_a_silent_node_whose_peer_is_heard_is_waited_for_less_long(
    make_run: Make, now: datetime, other: float, patience_s: float
) -> None:
    offer = Offer("cloud", "small", "here", Decimal(1))
    run = begin(make_run(job={"nodes": 2, "on": "cloud"}), now, [offer, offer]).run
    first, second = (one.key for one in run.attempts[-1].members)
    report = Report(1, 0, Phase.RUNNING, now, 1)
    heard = {first: Heard(report=report, silent_s=other), second: Heard(report=report, silent_s=29.0)}
    features = Features(patience_s=120.0, peer_patience_s=30.0)
    found = sighting(run, [], set(), heard, Requests(), features)
    assert found.peers[0].patience_s == patience_s
    assert sighting(run, [], set(), heard, Requests(), FEATURES).peers[0].patience_s == FEATURES.patience_s
