"""What earlier requests tell about an offer, also where a gang has nodes of several offers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

import pytest

from stoker.engine.decision import Sighting
from stoker.engine.lifecycle import begin
from stoker.engine.nodes import elastic
from stoker.engine.nodes.gang import advance
from stoker.engine.offers import gathering
from stoker.engine.offers.market import (
    BARRED_S,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    Market,
    barred,
    choose,
    closed_until,
    needs,
    refused_at,
)
from stoker.engine.patience import MOST_CLOSED, verdict
from stoker.model.job.job import Spot
from stoker.model.node import NodeSight, NodeState, Offer
from stoker.model.run.run import Attempt, Run, RunState

CHEAP = Offer("cloud", "small", "here", Decimal("0.10"), spot=True)
OTHER = Offer("cloud", "small", "there", Decimal("0.12"), spot=True)
KEPT = replace(OTHER, again="machine-of-the-last-attempt")
PAUSE = timedelta(seconds=FIRST_PAUSE_S)


@pytest.fixture
def run(make_run: Callable[..., Run]) -> Run:
    made = make_run(job={"nodes": "1..4", "on": "cloud"})
    return replace(made, job=replace(made.job, spot=Spot()))


def market(run: Run, *offers: Offer) -> Market:
    return {("cloud", need): list(offers) for need in needs(run.job)}


def refused(run: Run, offers: Sequence[Offer], node: int, at: datetime, code: str = "no-capacity") -> Run:
    """The run after this node of its new attempt was refused, and the others released."""
    asked = begin(run, at, list(offers), len(offers)).run
    parts = [
        Sighting(
            node=NodeSight(one.key, NodeState.GONE, "released"),
            trouble="nothing there" if one.node == node else "",
            trouble_code=code if one.node == node else "",
        )
        for one in asked.attempts[-1].members
    ]
    after = advance(asked, replace(parts[0], peers=tuple(parts[1:])), at).run
    assert after.state is RunState.QUEUED, after.reason
    return after


def worked(run: Run, at: datetime) -> Run:
    """It has, in an earlier attempt."""
    first = Attempt(1, "first", begin(run, at, [OTHER], 1).run.attempts[-1].state, at, started_at=at, ended_at=at)
    return replace(run, attempts=(first,))


def test_the_offer_of_the_refused_node_pauses_and_not_that_of_the_first_node(run: Run, now: datetime) -> None:
    """A gang that had kept a machine elsewhere requested the refused place again at once, hundreds of times an hour."""
    after = refused(run, [KEPT, CHEAP], 1, now)
    assert closed_until(after, CHEAP, now) == now + PAUSE
    assert closed_until(after, OTHER, now) == now
    assert choose(after, market(run, CHEAP, OTHER), now) == OTHER
    again = refused(after, [KEPT, CHEAP], 1, now + PAUSE)
    assert closed_until(again, CHEAP, now + PAUSE) == now + 3 * PAUSE, "each refusal in a row doubles the pause"


def test_a_gang_that_was_refused_a_node_elsewhere_does_not_tell_that_its_other_offer_has_nodes(
    run: Run, now: datetime
) -> None:
    once = refused(refused(run, [CHEAP], 0, now), [CHEAP, OTHER], 1, now + PAUSE)
    assert closed_until(refused(once, [CHEAP], 0, now + 2 * PAUSE), CHEAP, now + 2 * PAUSE) == now + 4 * PAUSE


def test_a_node_that_is_refused_for_a_reason_of_its_own_closes_its_offer(run: Run, now: datetime) -> None:
    after = refused(run, [OTHER, CHEAP], 1, now, "provider-failed")
    assert (refused_at(after, CHEAP), refused_at(after, OTHER)) == (now, None)
    twice = refused(after, [OTHER, replace(CHEAP, size="large")], 1, now, "provider-failed")
    assert barred(twice, now) == {"here"}


def test_a_place_has_as_much_room_as_its_own_refusals_tell(run: Run, now: datetime) -> None:
    after = refused(run, [OTHER, OTHER, CHEAP, CHEAP], 3, now)
    [[here, there]] = elastic.narrowed(after, market(run, CHEAP, OTHER), now, 4).values()
    assert (here.slots, there.slots) == (1, None)


def test_what_was_requested_in_advance_since_a_refusal_takes_of_the_room_that_is_left(run: Run, now: datetime) -> None:
    after = refused(run, [KEPT, KEPT, CHEAP, CHEAP], 3, now)
    ahead = replace(after.attempts[-1].peers[1], spare=CHEAP)
    [[here]] = elastic.narrowed(after.with_member(ahead), market(run, CHEAP), now, 4).values()
    assert here.slots == 0


def test_nodes_that_are_released_because_another_was_refused_are_not_requested_in_advance(
    run: Run, now: datetime
) -> None:
    """They would keep a place from another gang, or be refused again."""
    asked = begin(run, now, [KEPT, CHEAP, CHEAP], 3).run
    there, full, released = (Sighting(node=NodeSight(one.key, NodeState.UP)) for one in asked.attempts[-1].members)
    assert full.node and released.node
    full = replace(full, node=replace(full.node, state=NodeState.GONE), trouble="full", trouble_code="no-capacity")
    released = replace(released, node=replace(released.node, state=NodeState.GONE, reason="it is being released"))
    broken = advance(asked, replace(there, peers=(full, released)), now).run
    assert broken.attempts[-1].broken_at and not broken.attempts[-1].state.over
    assert list(gathering.leaving(broken)) == []


def test_an_offer_that_was_refused_long_ago_pauses_after_each_further_refusal(run: Run, now: datetime) -> None:
    """It has no capacity by now: it was requested every second."""
    first, later = refused(run, [CHEAP], 0, now, "provider-failed"), now + timedelta(seconds=BARRED_S)
    both = market(run, CHEAP, OTHER)
    full = refused(refused(first, [OTHER], 0, later), [CHEAP], 0, later)
    assert choose(full, both, later) is None
    assert choose(full, both, later + PAUSE) in (CHEAP, OTHER)


@pytest.mark.parametrize("code", ["provider-failed", "not-allowed"])
def test_a_run_that_has_worked_pauses_whatever_the_only_offer_is_refused_for(
    run: Run, now: datetime, code: str
) -> None:
    """It is not ended by that, so it would ask without end."""
    one, seconds, requests = worked(run, now), 0, 0
    while seconds < 3600:
        at = now + timedelta(seconds=seconds)
        if choose(one, market(run, CHEAP), at):
            one, requests = refused(one, [CHEAP], 0, at, code), requests + 1
        seconds += 1
    assert 3600 / LONGEST_PAUSE_S <= requests <= 15


def test_a_first_machine_that_is_refused_five_times_still_ends_the_run_at_once(run: Run, now: datetime) -> None:
    once = refused(run, [CHEAP], 0, now, "provider-failed")
    assert choose(once, market(run, CHEAP), now) == CHEAP


def test_different_offers_of_later_nodes_are_different_offers(run: Run, now: datetime) -> None:
    one = run
    for number in range(MOST_CLOSED - 1):
        one = refused(one, [OTHER, replace(CHEAP, size=f"s{number}")], 1, now, "provider-failed")
    assert verdict(one, "why") is None
