"""Allocations of engines with a queue of their own: how nodes of several are released."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from stoker.providers.allocations import Allocation, Allocations, GangGathering


def never(one: Allocation, key: str) -> None:
    raise AssertionError(f"{key} was stopped alone")


def test_allocations_are_released_side_by_side(tmp_path: Path) -> None:
    records = Allocations(tmp_path)
    gathering = GangGathering(records)
    meeting = threading.Barrier(3, timeout=30)

    def stop_all(one: Allocation) -> None:
        meeting.wait()
        records.forget(one.key)

    for key in "abc":
        records.keep(Allocation(key, key, (key,), job="1"))
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda key: gathering.stop(key, never, stop_all), "abc"))
    assert records.all() == []


def test_one_allocation_is_released_by_one_thread_at_a_time(tmp_path: Path) -> None:
    records = Allocations(tmp_path)
    gathering = GangGathering(records)
    both = threading.Barrier(2)
    met: list[bool] = []

    def stop_all(one: Allocation) -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(timeout=0.2)
            met.append(True)
        records.forget(one.key)

    records.keep(Allocation("a", "a", ("a",), job="1"))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: gathering.stop("a", never, stop_all), range(2)))
    assert met == []
    assert records.all() == []


def test_a_node_of_several_is_stopped_alone_and_the_last_one_releases_all(tmp_path: Path) -> None:
    records = Allocations(tmp_path)
    gathering, stopped = GangGathering(records), list[str]()

    def stop_one(one: Allocation, key: str) -> None:
        stopped.append(key)

    records.keep(Allocation("a", "a", ("a", "b"), job="1"))
    for key in ("b", "b", "a"):
        gathering.stop(key, stop_one, lambda _: stopped.append("all"))
    assert stopped == ["b", "b", "all"]
