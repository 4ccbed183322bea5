"""What a machine that was evicted and restored has left of its attempt."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from stoker.agent.machine.incarnation import Inheritance, standing
from stoker.agent.machine.machine import NodeFolder
from stoker.model.job.job import Job
from stoker.model.node import Lease
from stoker.model.orders import Orders
from stoker.model.run.report import Effort, Phase, Report
from stoker.model.wire import dump
from stoker.model.workspace import layout
from stoker.stores.folder.store import FolderStore

HOUR = 3600.0
ORDERS = Orders("r", "ants-1", 1, 0, "key", Job(name="ants", run="true", time_limit=6 * HOUR), "s", "")


def found(folder: Path, ran_s: float, away_s: float, orders: Orders = ORDERS) -> Inheritance:
    """After the script had run for `ran_s`, and there was no machine for `away_s`."""
    store, now = FolderStore(folder / "store"), datetime.now(UTC)
    last = now - timedelta(seconds=away_s)
    began = last - timedelta(seconds=ran_s)
    effort = Effort(last, {Phase.RUNNING: ran_s})
    report = Report(1, 0, Phase.RUNNING, last, beat=9, started_at=began, effort=effort)
    store.put(layout.report("r", 1, 0), dump(report))
    store.put(layout.lease("r", 1, 0), dump(Lease(3, 24 * HOUR, began)))
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
