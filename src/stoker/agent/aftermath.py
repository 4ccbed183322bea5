"""What an agent finds on a machine that was switched off or restarted under another: it is brought to its end."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from stoker.agent.machine import Machine
from stoker.agent.orphans import release_data, ship_logs
from stoker.agent.pace import persist
from stoker.errors import Malformed, StokerError
from stoker.model import layout, untrusted
from stoker.model.orders import Orders
from stoker.model.report import Outcome, Phase, Report
from stoker.model.wire import dump
from stoker.stores import Store


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
