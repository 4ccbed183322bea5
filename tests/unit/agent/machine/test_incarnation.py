"""What a machine that was evicted and restored has left of its attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from stoker.agent.machine.incarnation import Inheritance, standing
from stoker.agent.machine.machine import NodeFolder
from stoker.model.job.job import Job
from stoker.model.node import Lease
from stoker.model.orders import Orders, Wish, Wishes
from stoker.model.run.money import Fuse
from stoker.model.run.report import Effort, Outcome, Phase, Report
from stoker.model.wire import dump
from stoker.model.workspace import layout
from stoker.stores.folder.store import FolderStore

HOUR = 3600.0
ORDERS = Orders("r", "ants-1", 1, 0, "key", Job(name="ants", run="true", time_limit=6 * HOUR), "s", "")


def found(
    folder: Path, ran_s: float, away_s: float, orders: Orders = ORDERS, also: Mapping[str, bytes] | None = None
) -> Inheritance:
    """After the script had run for `ran_s`, and there was no machine for `away_s`. `also` is what else the store
    contains, or contains instead."""
    store, now = FolderStore(folder / "store"), datetime.now(UTC)
    last = now - timedelta(seconds=away_s)
    began = last - timedelta(seconds=ran_s)
    effort = Effort(last, {Phase.RUNNING: ran_s})
    report = Report(1, 0, Phase.RUNNING, last, beat=9, started_at=began, effort=effort)
    store.put(layout.report("r", 1, 0), dump(report))
    store.put(layout.lease("r", 1, 0), dump(Lease(3, 24 * HOUR, began)))
    for key, data in (also or {}).items():
        store.put(key, data)
    left = standing(store, orders, NodeFolder(folder / "empty"))
    assert left
    return left


def test_hours_in_which_no_machine_was_there_are_not_the_time_of_the_script(tmp_path: Path) -> None:
    """Else a run fails at its time limit that its script has not reached."""
    left = found(tmp_path, ran_s=HOUR, away_s=3 * HOUR)
    assert left.worked_s == HOUR and not left.why_not
    assert left.lease_left_s < 20 * HOUR, "the lease goes on all the while"


def test_a_script_that_has_reached_its_time_limit_is_not_begun_again(tmp_path: Path) -> None:
    assert found(tmp_path, ran_s=6 * HOUR - 10, away_s=60).why_not == "its time limit is reached"


def test_a_machine_of_a_gang_does_not_continue_without_the_others(tmp_path: Path) -> None:
    assert not found(tmp_path / "alone", ran_s=HOUR, away_s=60).why_not
    assert found(tmp_path / "gang", ran_s=HOUR, away_s=60, orders=replace(ORDERS, nodes=2)).why_not


SPENT = Fuse(Decimal(1), Decimal(0), Decimal(1), datetime.now(UTC) - timedelta(hours=1))


@pytest.mark.parametrize(
    "also",
    [
        {layout.lease("r", 1, 0): dump(Lease(3, HOUR, datetime.now(UTC) - timedelta(hours=2)))},
        {layout.lease("r", 1, 0): b"not a lease"},
        {layout.wishes("r", 1, 0): dump(Wishes(fuse=SPENT))},
        {layout.wishes("r", 1, 0): dump(Wishes(Wish.CANCEL))},
        {layout.orders("r", 2, 0): b"{}"},
        {layout.report("r", 1, 0): dump(Report(1, 0, Phase.DONE, datetime.now(UTC), 9, outcome=Outcome.SUCCEEDED))},
    ],
    ids=["lease over", "lease unreadable", "money spent", "cancelled", "another attempt", "ended"],
)
def test_a_restored_machine_that_may_not_continue_knows_before_it_starts_anything(
    tmp_path: Path, also: dict[str, bytes]
) -> None:
    assert found(tmp_path, ran_s=HOUR, away_s=60, also=also).why_not
