"""What starts now: a reservation for the first that does not fit, backfill that does not delay it, and pauses."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.engine.queue.order import HIGH, LOW, Active, QueuedRun, expected, ordered, pack

ROOM = 8
WAITING = st.builds(
    QueuedRun,
    id=st.text("0123456789abcdef", min_size=6, max_size=6),
    nodes=st.integers(1, ROOM),
    rank=st.sampled_from([0, 1, 2]),
    seconds=st.none() | st.integers(1, 1000).map(float),
)
ACTIVE = st.builds(
    Active,
    id=st.text("ghij", min_size=5, max_size=5),
    nodes=st.integers(1, 3),
    ends_in_s=st.none() | st.integers(0, 1000).map(float),
    yields=st.booleans(),
)


def test_what_fits_starts_in_its_order() -> None:
    found = pack([QueuedRun("1", 2), QueuedRun("2", 3), QueuedRun("3", 4)], [], ROOM)
    assert (found.starts, found.first) == (("1", "2"), "3")


def test_the_first_that_does_not_fit_has_a_reservation_that_nothing_behind_it_delays() -> None:
    busy = [Active("a", 4, 100.0)]
    queue = [QueuedRun("wide", 8), QueuedRun("long", 1, seconds=101.0), QueuedRun("short", 1, seconds=100.0)]
    found = pack(queue, busy, ROOM)
    assert (found.starts, found.first, found.first_in_s) == (("short",), "wide", 100.0)


def test_a_long_run_may_use_nodes_that_the_first_one_leaves_over() -> None:
    busy = [Active("a", 5, 100.0)]
    found = pack([QueuedRun("wide", 6), QueuedRun("long", 2), QueuedRun("other", 1)], busy, ROOM)
    assert found.starts == ("long",), "of eight nodes two are left over"


def test_nothing_starts_behind_one_whose_turn_nobody_knows() -> None:
    found = pack([QueuedRun("wide", 8), QueuedRun("short", 1, seconds=1.0)], [Active("a", 1)], ROOM)
    assert (found.starts, found.first_in_s) == ((), None)


def test_a_run_of_high_priority_pauses_the_newest_that_may_be_paused() -> None:
    busy = [Active("1", 4, yields=True), Active("2", 2, yields=True), Active("3", 2)]
    assert pack([QueuedRun("wide", 2, rank=HIGH)], busy, ROOM).pauses == ("2",)
    assert pack([QueuedRun("wide", 4, rank=HIGH)], busy, ROOM).pauses == ("1",), "the narrow one is not needed"
    assert pack([QueuedRun("wide", 2, rank=LOW)], busy, ROOM).pauses == ()
    assert pack([QueuedRun("wide", 7, rank=HIGH)], busy, ROOM).pauses == (), "it would not be enough"


def test_nobody_else_is_paused_while_one_leaves() -> None:
    busy = [Active("1", 4, yields=True), Active("2", 4, ends_in_s=30.0, leaving=True)]
    found = pack([QueuedRun("wide", 4, rank=HIGH)], busy, ROOM)
    assert (found.pauses, found.first_in_s) == ((), 30.0)


def test_a_start_is_expected_after_those_before_it_or_unknown() -> None:
    busy = [Active("a", 8, 100.0)]
    queue = [QueuedRun("1", 8, seconds=50.0), QueuedRun("2", 4), QueuedRun("3", 8)]
    assert expected(queue, busy, ROOM) == {"1": 100.0, "2": 150.0, "3": None}


def reserved_s(queue: list[QueuedRun], first: str, busy: list[Active]) -> float | None:
    return expected([one for one in queue if one.id == first], busy, ROOM)[first]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(WAITING, max_size=12, unique_by=lambda one: one.id),
    st.lists(ACTIVE, max_size=4, unique_by=lambda one: one.id),
)
def test_room_is_never_exceeded_and_the_first_is_never_delayed(waiting: list[QueuedRun], busy: list[Active]) -> None:
    while sum(one.nodes for one in busy) > ROOM:
        busy = busy[1:]
    queue = ordered(waiting, {})
    found = pack(queue, busy, ROOM)
    begun = [one for one in queue if one.id in found.starts]
    assert sum(one.nodes for one in busy) + sum(one.nodes for one in begun) <= ROOM
    if not found.first or found.pauses:
        return
    position = [one.id for one in queue].index(found.first)
    ahead = [Active(one.id, one.nodes, one.seconds) for one in queue[:position]]
    together = [*busy, *(Active(one.id, one.nodes, one.seconds) for one in begun)]
    assert reserved_s(queue, found.first, [*busy, *ahead]) == reserved_s(queue, found.first, together)


def test_a_round_over_ten_thousand_runs_and_a_thousand_nodes_takes_less_than_a_second() -> None:
    waiting = [
        QueuedRun(
            f"{number:06}", 1 + number % 16, number % 3, f"person {number % 40}", seconds=float(60 + number % 7000)
        )
        for number in range(10_000)
    ]
    busy = [Active(f"busy {number}", 4, float(number * 10)) for number in range(240)]
    began = time.process_time()
    found = pack(ordered(waiting, {}), busy, 1000)
    assert time.process_time() - began < 1.0
    assert found.starts
