"""A VM that was evicted and that its provider restored, with an empty disk: may it continue its attempt?

All VMs of an attempt share one lease and one budget: none gets more of either without the server. The age of a value
comes from the store, whose clock knows both moments, and from the wall clock; the longer one counts.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from stoker.agent.checkpoints.sets import fence_marks
from stoker.agent.machine.machine import NodeFolder, NodeMachine
from stoker.agent.notice.stopping import hear
from stoker.agent.processes.family import release_data, ship_logs
from stoker.agent.shipping.worker import persist
from stoker.errors import AlreadyThere, Malformed, Missing, StokerError
from stoker.model import untrusted
from stoker.model.cause import Cause
from stoker.model.node import Lease
from stoker.model.orders import Orders, Wish, Wishes
from stoker.model.run.money import Fuse
from stoker.model.run.report import Outcome, Phase, Report
from stoker.model.snapshot import Fence, claim
from stoker.model.wire import dump, load
from stoker.model.workspace import layout
from stoker.stores import Store

LEAVES = 76  # the exit code of an agent whose VM is not needed
COARSE_S = 1.0  # the resolution of store timestamps
FRESH_S = 120.0  # to boot: older orders may have been given to an earlier VM that never reported
WORTH_S = 30.0  # of lease and budget, at least, to make a new start worthwhile


@dataclass(frozen=True, slots=True)
class Inheritance:
    """What the VMs before this one have left."""

    report: Report
    lease_number: int = 0
    lease_left_s: float = 0.0
    fuse: Fuse | None = None  # the server's last figures
    spend_left_s: float = math.inf  # of those, by date
    begun: bool = True  # an earlier VM has reported
    worked_s: float = 0.0  # by the script, as reported; the lease bounds what was not
    why_not: str = ""  # why it may not continue; empty: it may


def standing(store: Store, orders: Orders, folder: NodeFolder) -> Inheritance | None:
    """None: this is the attempt's first VM, or it still has its disk. Raises errors of the store."""
    key = layout.orders(orders.run_id, orders.attempt, orders.node)
    if folder.has_begun(key):
        return None
    now, said = datetime.now(UTC), layout.report(orders.run_id, orders.attempt, orders.node)
    try:
        report = untrusted.fetch(Report, store, said, untrusted.REPORT_BYTES, now)
    except Missing:
        return None
    except Malformed:  # its progress, and whether it has ended, are unknown
        nothing = Report(orders.attempt, orders.node, Phase.UNPACKING, now, beat=1)
        return Inheritance(nothing, why_not="the report of an earlier VM is unreadable")
    ages = _ages(store, orders)
    number, lease_left_s = _lease(store, orders, ages, now)
    wishes = _wishes(store, orders)
    told = layout.wishes(orders.run_id, orders.attempt, orders.node) if wishes.fuse else key
    fuse = wishes.fuse or orders.fuse
    spend_left_s = fuse.seconds - _age_s(ages.get(told), fuse.as_of, now) if fuse else math.inf
    worked_s = report.effort.running_s if report.effort else 0.0
    why = _why_not(store, orders, report, wishes)
    why = why or ("its lease has expired" if lease_left_s < WORTH_S else "")
    why = why or ("its budget is spent" if spend_left_s < WORTH_S else "")
    why = why or ("its time limit is reached" if _limit_left_s(orders, worked_s) < WORTH_S else "")
    return Inheritance(report, number, lease_left_s, fuse, spend_left_s, worked_s=worked_s, why_not=why)


def unreported(store: Store, orders: Orders, folder: NodeFolder, lease_s: float) -> Inheritance | None:
    """The remaining lease of an attempt that no other VM has reported on. None: it was given just now. This VM may have
    restarted, or replace one that was evicted before its first report."""
    ages, now = _ages(store, orders), datetime.now(UTC)
    key = layout.orders(orders.run_id, orders.attempt, orders.node)
    age_s = ages.get(key, 0.0)
    if age_s < FRESH_S:
        return None
    number, left_s = _lease_by_store(store, orders, ages) or (-1, lease_s - age_s)
    nothing = Report(orders.attempt, orders.node, Phase.UNPACKING, now, beat=0)
    why = ""
    if not folder.has_begun(key):  # else its agent has something to save and report
        why = _why_not(store, orders, nothing, _wishes(store, orders))
        why = why or ("its lease has expired" if left_s <= 0 else "")
    return Inheritance(nothing, number, left_s, begun=False, why_not=why)


def take_over(store: Store, orders: Orders) -> int:
    """The number of this VM within its attempt. From here on an earlier one cannot commit."""
    mine = os.urandom(16).hex()
    while True:
        taken = [number for attempt, number in fence_marks(store, orders) if attempt == orders.attempt]
        number = max(taken, default=1) + 1
        key = layout.incarnation(orders.run_id, orders.attempt, number, orders.node)
        try:
            store.put(key, dump(claim(orders.attempt, number, mine)), only_new=True)
            return number
        except AlreadyThere:
            if load(Fence, store.get(key)).id == mine:  # it was created, and the response was lost
                return number


def is_superseded(store: Store, orders: Orders) -> bool:
    """The server has started a later attempt."""
    try:
        store.get(layout.orders(orders.run_id, orders.attempt + 1, orders.node), 0, 1)
        return True
    except Missing:
        return any(attempt > orders.attempt for attempt, _ in fence_marks(store, orders))


def _why_not(store: Store, orders: Orders, report: Report, wishes: Wishes) -> str:
    if report.outcome not in (None, Outcome.EVICTED):
        return f"its run has ended: {report.outcome}"
    if wishes.wish is Wish.CANCEL:
        return "the run was cancelled"
    if orders.nodes > 1:
        return "the other nodes of its gang have ended: the server must start another attempt"
    return "the server has started another attempt" if is_superseded(store, orders) else ""


def _ages(store: Store, orders: Orders) -> dict[str, float]:
    """The age of every object of this attempt, by the store's clock: an object is written now to compare."""
    mark = layout.boot(orders.run_id, orders.attempt, orders.node)
    store.put(mark, b"{}")
    times = {one.key: one.changed_at for one in store.list(layout.attempt(orders.run_id, orders.attempt))}
    return {key: max(times[mark] - at, 0.0) + COARSE_S for key, at in times.items()} if times.get(mark) else {}


def _age_s(by_store: float | None, as_of: datetime, now: datetime) -> float:
    return max(by_store or 0.0, (now - as_of).total_seconds(), 0.0)


def _lease(store: Store, orders: Orders, ages: Mapping[str, float], now: datetime) -> tuple[int, float]:
    """The number of the newest one, and how much of it is left."""
    key = layout.lease(orders.run_id, orders.attempt, orders.node)
    try:
        found = load(Lease, hear(store, key))
    except (Missing, ValueError, KeyError, TypeError):
        return 0, 0.0
    if found.given_at is None:
        return found.number, 0.0
    return found.number, found.seconds - _age_s(ages.get(key), found.given_at, now)


def _lease_by_store(store: Store, orders: Orders, ages: Mapping[str, float]) -> tuple[int, float] | None:
    """The same by the store's clock alone: this one could not extend the lease of any other VM of the attempt."""
    key = layout.lease(orders.run_id, orders.attempt, orders.node)
    try:
        found = load(Lease, hear(store, key))
    except (Missing, ValueError, KeyError, TypeError):
        return None
    return found.number, found.seconds - ages.get(key, 0.0)


def _wishes(store: Store, orders: Orders) -> Wishes:
    try:
        return load(Wishes, hear(store, layout.wishes(orders.run_id, orders.attempt, orders.node)))
    except Missing:
        return Wishes()
    except (ValueError, KeyError, TypeError) as error:
        raise StokerError("the wishes of the server are unreadable") from error


def _limit_left_s(orders: Orders, worked_s: float) -> float:
    return orders.job.time_limit - worked_s if orders.job.time_limit else math.inf


# What an agent finds on a machine that was switched off or restarted under its predecessor: it ends that attempt.


def ship(machine: NodeMachine) -> None:
    """Everything that was printed is on the disk, whichever attempt it belongs to."""
    with suppress(StokerError, OSError, ValueError, KeyError, TypeError):  # best effort
        ship_logs(machine.folder, machine.variables)


def conclude(store: Store, orders: Orders, machine: NodeMachine) -> None:
    """Writes the final report that its predecessor could not. Nobody else does: these were the orders of this folder,
    and its lock is held."""
    key = layout.report(orders.run_id, orders.attempt, orders.node)
    before = _said(store, orders, key)
    if before.outcome:
        return
    sizes = {log.stem: log.stat().st_size for log in machine.folder.spool.glob("*.log")}
    release_data(machine.folder)
    machine.folder.clear()
    last = replace(
        before,
        phase=Phase.DONE,
        at=datetime.now(UTC),
        beat=before.beat + 1,
        outcome=Outcome.EVICTED,
        message="its machine was restarted",
        cause=Cause.MACHINE_RESTARTED,
        log_bytes={**before.log_bytes, **sizes},
        stays=True,
    )
    persist(lambda: store.put(key, dump(last)))


def _said(store: Store, orders: Orders, key: str) -> Report:
    """The predecessor's report. Empty where it is unreadable, for example because a script has overwritten it."""
    try:
        return untrusted.load(
            Report, persist(lambda: untrusted.fetch_bytes(store, key, untrusted.REPORT_BYTES)), datetime.now(UTC)
        )
    except Malformed:
        return Report(orders.attempt, orders.node, Phase.RUNNING, datetime.now(UTC), beat=1)
