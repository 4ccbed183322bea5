"""A machine that was evicted and that its provider made again, with an empty disk: may it continue its attempt?

All its machines together have one lease and one budget: no machine gets more of either without the server. How long ago
something was given is asked of the store, whose clock knows both moments, and of the calendar; the longer counts.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from stoker.agent.checkpoints.restoring import fence_marks
from stoker.agent.machine.machine import Machine, NodeFolder
from stoker.agent.notice.stopping import hear
from stoker.agent.processes.orphans import release_data, ship_logs
from stoker.agent.shipping.worker import persist
from stoker.errors import AlreadyThere, Malformed, Missing, StokerError
from stoker.model import untrusted
from stoker.model.checkpoint import Fence, claim
from stoker.model.node.node import Lease
from stoker.model.node.orders import Orders, Wish, Wishes
from stoker.model.run.money import Fuse
from stoker.model.run.report import Outcome, Phase, Report
from stoker.model.wire import dump, load
from stoker.model.workspace import layout
from stoker.stores import Store

LEAVES = 76  # the exit code of an agent whose machine is not needed
COARSE_S = 1.0  # stores count in seconds
FRESH_S = 120.0  # to boot: orders that are older may have been given to an earlier machine, which never said a word
WORTH_S = 30.0  # of lease and money, for which it is worth beginning again


@dataclass(frozen=True, slots=True)
class Standing:
    """What the machines before it have left."""

    report: Report
    lease_number: int = 0
    lease_left_s: float = 0.0
    fuse: Fuse | None = None  # what the server said last
    spend_left_s: float = math.inf  # of that, by date
    begun: bool = True  # an earlier machine has reported
    worked_s: float = 0.0  # by the script, as far as it was reported; the lease bounds what was not
    why_not: str = ""  # why it may not continue; empty: it may


def standing(store: Store, orders: Orders, folder: NodeFolder) -> Standing | None:
    """None: this is the attempt's first machine, or has its disk. Raises what the store raises."""
    key = layout.orders(orders.run_id, orders.attempt, orders.node)
    if folder.has_begun(key):
        return None
    now, said = datetime.now(UTC), layout.report(orders.run_id, orders.attempt, orders.node)
    try:
        report = untrusted.fetch(Report, store, said, untrusted.REPORT_BYTES, now)
    except Missing:
        return None
    except Malformed:  # nobody knows how far it came, nor whether it has ended
        nothing = Report(orders.attempt, orders.node, Phase.UNPACKING, now, beat=1)
        return Standing(nothing, why_not="what an earlier machine reported cannot be read")
    ages = _ages(store, orders)
    number, lease_left_s = _lease(store, orders, ages, now)
    wishes = _wishes(store, orders)
    told = layout.wishes(orders.run_id, orders.attempt) if wishes.fuse else key
    fuse = wishes.fuse or orders.fuse
    spend_left_s = fuse.seconds - _age_s(ages.get(told), fuse.as_of, now) if fuse else math.inf
    worked_s = report.effort.running_s if report.effort else 0.0
    why = _why_not(store, orders, report, wishes)
    why = why or ("its lease is over" if lease_left_s < WORTH_S else "")
    why = why or ("its money is spent" if spend_left_s < WORTH_S else "")
    why = why or ("its time limit is over" if _limit_left_s(orders, worked_s) < WORTH_S else "")
    return Standing(report, number, lease_left_s, fuse, spend_left_s, worked_s=worked_s, why_not=why)


def unreported(store: Store, orders: Orders, folder: NodeFolder, lease_s: float) -> Standing | None:
    """What is left of the lease of an attempt that no other machine has reported of. None: it was given just now. This
    machine may have restarted, or stand in for one that was evicted before its first word."""
    ages, now = _ages(store, orders), datetime.now(UTC)
    key = layout.orders(orders.run_id, orders.attempt, orders.node)
    age_s = ages.get(key, 0.0)
    if age_s < FRESH_S:
        return None
    number, left_s = _lease_by_store(store, orders, ages) or (-1, lease_s - age_s)
    nothing = Report(orders.attempt, orders.node, Phase.UNPACKING, now, beat=0)
    why = ""
    if not folder.has_begun(key):  # else its agent has things to save and to say
        why = _why_not(store, orders, nothing, _wishes(store, orders))
        why = why or ("its lease is over" if left_s <= 0 else "")
    return Standing(nothing, number, left_s, begun=False, why_not=why)


def take_over(store: Store, orders: Orders) -> int:
    """The number of this machine among those of its attempt. From here on an earlier one can commit nothing."""
    mine = os.urandom(16).hex()
    while True:
        taken = [number for attempt, number in fence_marks(store, orders) if attempt == orders.attempt]
        number = max(taken, default=1) + 1
        key = layout.incarnation(orders.run_id, orders.attempt, number, orders.node)
        try:
            store.put(key, dump(claim(orders.attempt, number, mine)), only_new=True)
            return number
        except AlreadyThere:
            if load(Fence, store.get(key)).id == mine:  # it was made, and the answer got lost
                return number


def is_superseded(store: Store, orders: Orders) -> bool:
    """The server has begun a later attempt."""
    try:
        store.get(layout.orders(orders.run_id, orders.attempt + 1, orders.node), 0, 1)
        return True
    except Missing:
        return any(attempt > orders.attempt for attempt, _ in fence_marks(store, orders))


def _why_not(store: Store, orders: Orders, report: Report, wishes: Wishes) -> str:
    if report.outcome not in (None, Outcome.EVICTED):
        return f"its run has ended: {report.outcome}"
    if wishes.wish is Wish.CANCEL:
        return "somebody cancelled the run"
    return "the server has begun another attempt" if is_superseded(store, orders) else ""


def _ages(store: Store, orders: Orders) -> dict[str, float]:
    """How long ago everything of this attempt was written, by the store's clock: something is written now."""
    mark = layout.boot(orders.run_id, orders.attempt, orders.node)
    store.put(mark, b"{}")
    times = {one.key: one.changed_at for one in store.list(layout.attempt(orders.run_id, orders.attempt))}
    return {key: max(times[mark] - at, 0.0) + COARSE_S for key, at in times.items()} if times.get(mark) else {}


def _age_s(by_store: float | None, as_of: datetime, now: datetime) -> float:
    return max(by_store or 0.0, (now - as_of).total_seconds(), 0.0)


def _lease(store: Store, orders: Orders, ages: Mapping[str, float], now: datetime) -> tuple[int, float]:
    """The number of the newest, and what is left of it."""
    key = layout.lease(orders.run_id, orders.attempt, orders.node)
    try:
        found = load(Lease, hear(store, key))
    except (Missing, ValueError, KeyError, TypeError):
        return 0, 0.0
    if found.given_at is None:
        return found.number, 0.0
    return found.number, found.seconds - _age_s(ages.get(key), found.given_at, now)


def _lease_by_store(store: Store, orders: Orders, ages: Mapping[str, float]) -> tuple[int, float] | None:
    """The same by the store's clock alone: nobody else of this attempt is known whose lease this one could prolong."""
    key = layout.lease(orders.run_id, orders.attempt, orders.node)
    try:
        found = load(Lease, hear(store, key))
    except (Missing, ValueError, KeyError, TypeError):
        return None
    return found.number, found.seconds - ages.get(key, 0.0)


def _wishes(store: Store, orders: Orders) -> Wishes:
    try:
        return load(Wishes, hear(store, layout.wishes(orders.run_id, orders.attempt)))
    except Missing:
        return Wishes()
    except (ValueError, KeyError, TypeError) as error:
        raise StokerError("the wishes of the server cannot be read") from error


def _limit_left_s(orders: Orders, worked_s: float) -> float:
    return orders.job.time_limit - worked_s if orders.job.time_limit else math.inf


# What an agent finds on a machine that was switched off or restarted under another: it is brought to its end.


def ship(machine: Machine) -> None:
    """Whatever was printed up to the last moment is on the disk, whichever attempt it is of."""
    with suppress(StokerError, OSError, ValueError, KeyError, TypeError):  # as much as there is
        ship_logs(machine.folder, machine.variables)


def conclude(store: Store, orders: Orders, machine: Machine) -> None:
    """Gives the report that its predecessor here could not. Nobody else does: these were the orders of this folder, and
    its lock is held."""
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
        log_bytes={**before.log_bytes, **sizes},
        stays=True,
    )
    persist(lambda: store.put(key, dump(last)))


def _said(store: Store, orders: Orders, key: str) -> Report:
    """By its predecessor. Where that cannot be read, as after a script has written to it, nothing was said."""
    try:
        return untrusted.load(
            Report, persist(lambda: untrusted.fetch_bytes(store, key, untrusted.REPORT_BYTES)), datetime.now(UTC)
        )
    except Malformed:
        return Report(orders.attempt, orders.node, Phase.RUNNING, datetime.now(UTC), beat=1)
