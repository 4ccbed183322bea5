"""The nodes of a gang are where they reach each other: a replacement comes to those that are left, or all move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from stoker.engine.decision import Sighting
from stoker.engine.lifecycle import begin
from stoker.engine.offers import gathering
from stoker.engine.offers.market import needs
from stoker.engine.rounds import _spare
from stoker.model.job.job import Job, Spot
from stoker.model.node import NodeSight, NodeState, Offer
from stoker.model.orders import Notice
from stoker.model.run.report import Outcome
from stoker.model.run.run import AttemptState, Run, RunState

CHEAP = Offer("cloud", "small", "there", Decimal("0.10"), spot=True, network="there")
MINE = Offer("cloud", "small", "here", Decimal("0.20"), spot=True, network="here")
LARGE = Offer("cloud", "large", "here", Decimal("0.15"), spot=True, network="here")


@pytest.fixture
def run(make_run: Callable[..., Run], now: datetime) -> Run:
    """Three nodes here, of which the second is lost."""
    job = Job(name="job", run="true", on="cloud", spot=Spot(), nodes=3)
    begun = begin(replace(make_run(), job=job), now, [MINE, MINE, MINE]).run
    peers = [replace(one, stays=one.node == 2, started_at=now) for one in begun.attempts[-1].peers]
    over = replace(begun.attempts[-1], state=AttemptState.LOST, stays=True, started_at=now, peers=tuple(peers))
    return replace(begun.with_newest(over), state=RunState.QUEUED)


def market(run: Run, *offers: Offer) -> dict[Any, list[Offer]]:
    (spot,) = needs(run.job)
    return {("cloud", spot): list(offers)}


def seen(run: Run) -> Sighting:
    keys = [one.key for one in run.attempts[-1].members if one.stays]
    return Sighting(nodes=tuple(NodeSight(key, NodeState.UP) for key in keys))


def test_a_replacement_is_of_the_size_and_in_the_network_of_those_that_are_left(run: Run, now: datetime) -> None:
    taken, waits = gathering.offers(run, seen(run), market(run, CHEAP, LARGE, MINE), [run], now)
    assert not waits
    first, _, third = (one.key for one in run.attempts[-1].members)
    assert [(one.place, one.size, one.again) for one in taken] == [
        ("here", "small", first),
        ("here", "small", ""),
        ("here", "small", third),
    ]


def test_a_replacement_may_be_of_another_size(run: Run, now: datetime) -> None:
    taken, _ = gathering.offers(run, seen(run), market(run, CHEAP, LARGE), [run], now)
    assert [(one.size, bool(one.again)) for one in taken] == [("small", True), ("large", False), ("small", True)]


def test_where_nothing_is_left_in_that_network_all_nodes_move(run: Run, now: datetime) -> None:
    taken, _ = gathering.offers(run, seen(run), market(run, CHEAP), [run], now)
    assert taken == [CHEAP, CHEAP, CHEAP]


def test_survivors_that_are_all_there_do_not_move_to_a_cheaper_place(run: Run, now: datetime) -> None:
    whole = tuple(replace(one, stays=True) for one in run.attempts[-1].peers)
    run = run.with_newest(replace(run.attempts[-1], peers=whole))
    taken, _ = gathering.offers(run, seen(run), market(run, CHEAP), [run], now)
    assert [one.again for one in taken] == [one.key for one in run.attempts[-1].members]


def test_what_is_asked_for_at_a_notice_is_in_the_network_of_the_others(run: Run, now: datetime) -> None:
    warned = replace(run.attempts[-1].peers[0], notice=Notice(now, now + timedelta(seconds=30), drill=False))
    run = replace(run.with_member(warned), state=RunState.RUNNING)
    assert _spare(run, warned, seen(run), market(run, CHEAP, LARGE, MINE), now) == MINE
    assert _spare(run, warned, seen(run), market(run, CHEAP), now) is None


def test_nothing_is_asked_for_ahead_in_the_place_of_a_machine_that_stays(run: Run, now: datetime) -> None:
    over = [replace(one, state=AttemptState.ENDED) for one in run.attempts[-1].peers]
    broken = replace(
        run.attempts[-1], state=AttemptState.RUNNING, lead=AttemptState.ENDED, peers=tuple(over), broken_at=now
    )
    run = replace(run.with_newest(broken), state=RunState.RUNNING)
    assert list(gathering.leaving(run)) == [1]


@pytest.mark.parametrize(
    ("outcome", "asked"),
    [(None, [1]), (Outcome.EVICTED, [1]), (Outcome.BUDGET_REACHED, []), (Outcome.TIMED_OUT, []), (Outcome.BROKEN, [])],
)
def test_nothing_is_asked_for_ahead_where_the_run_may_not_start_again(
    run: Run, now: datetime, outcome: Outcome | None, asked: list[int]
) -> None:
    """A node whose own fuse has ended it before the budget was spent: the next one would spend it."""
    first, second = run.attempts[-1].peers
    peers = replace(first, state=AttemptState.ENDED, outcome=outcome), replace(second, stays=True)
    broken = replace(run.attempts[-1], state=AttemptState.RUNNING, peers=peers, broken_at=now)
    run = replace(run.with_newest(broken), state=RunState.RUNNING)
    assert list(gathering.leaving(run)) == asked
