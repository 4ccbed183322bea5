"""Runs an attempt from its orders: started once, or continued on a VM that its provider restored."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import UTC, datetime

from stoker.agent.attempt.attempt import AttemptRunner
from stoker.agent.attempt.crew import Crew
from stoker.agent.checkpoints.restoring import is_fenced
from stoker.agent.machine.machine import NodeMachine
from stoker.agent.notice.stopping import hear
from stoker.agent.shipping.worker import persist
from stoker.errors import Missing
from stoker.model.node.orders import Orders
from stoker.model.run.report import Report
from stoker.model.wire import load
from stoker.model.workspace import layout
from stoker.stores import Store

_ORDERS_EVERY_S = 0.5
RESTARTS = 75  # the exit code of an agent whose machine is about to restart


def carry_out(store: Store, orders_key: str, machine: NodeMachine) -> int:
    """Returns when the final report is in the store, or at once where this attempt was started before. The exit code
    says whether the machine is about to restart."""
    orders = load(Orders, await_orders(store, orders_key, patient=bool(machine.events)))
    if machine.restored:
        return _continue(store, orders, orders_key, machine)
    machine.folder.note_begun(orders_key)
    crew = Crew(store, orders, machine)
    if machine.events and machine.folder.errand.exists():
        from stoker.agent.machine.incarnation import ship  # here, because VMs are seldom restarted under an agent

        ship(machine)
    if persist(crew.reporter.claim):
        return _finish(AttemptRunner(crew), crew, orders_key)
    if machine.events and machine.folder.errand.exists():
        from stoker.agent.machine.incarnation import conclude  # likewise

        conclude(store, orders, machine)
    return 0


def await_orders(store: Store, key: str, *, patient: bool) -> bytes:
    """A cloud node may be requested before an eviction: it then runs before its orders exist, and has a lease."""
    while True:
        try:
            return persist(lambda: hear(store, key))
        except Missing:
            if not patient:
                raise
            time.sleep(_ORDERS_EVERY_S)


def _continue(store: Store, orders: Orders, orders_key: str, machine: NodeMachine) -> int:
    """On a VM that its provider restored. It claims the attempt first: its fence stops commits of an earlier VM, as the
    fence of a later attempt would stop this one."""
    from stoker.agent.machine import incarnation  # here, because VMs are seldom restored

    found = persist(lambda: incarnation.standing(store, orders, machine.folder))
    if found is None or found.why_not:
        return incarnation.LEAVES
    mine = persist(lambda: incarnation.take_over(store, orders))
    orders = replace(orders, incarnation=mine, fuse=found.fuse)
    if persist(lambda: incarnation.is_superseded(store, orders) or is_fenced(store, orders)):
        return incarnation.LEAVES
    machine.folder.note_begun(orders_key)
    crew = Crew(store, orders, machine)
    _continue_from(found.report, crew)
    # Wishes that are read again have not changed; only this code knows how old they are.
    age_s = found.fuse.seconds - found.spend_left_s if found.fuse else None
    return _finish(AttemptRunner(crew, worked_s=found.worked_s, fuse_age_s=age_s), crew, orders_key)


def _finish(attempt: AttemptRunner, crew: Crew, orders_key: str) -> int:
    crew.stopping.heed_signals()
    secrets = crew.orders.job.secrets
    errand = {"store": crew.store.url, "orders": orders_key, "secrets": secrets, "agent": os.getpid()}
    return RESTARTS if attempt.carry_out(errand) else 0


def _continue_from(before: Report, crew: Crew) -> None:
    """The work and reports of earlier VMs of this attempt stay valid; new ones are added."""
    orders, store = crew.orders, crew.store
    crew.effort.continue_from(before.effort)
    prefix = layout.attempt(orders.run_id, orders.attempt)
    sizes = persist(lambda: {one.key: one.size_bytes for one in store.list(prefix)})
    persist(lambda: crew.shipping.continue_from(sizes))
    events = layout.events(orders.run_id, orders.attempt, orders.node)
    persist(lambda: crew.reporter.continue_from(before, sizes.get(events, 0)))
    away_s = max((datetime.now(UTC) - before.at).total_seconds(), 0.0)
    text = f"the VM was evicted while no server was running, and restored {away_s:.0f} s after its last report"
    crew.tell("machine-restored", f"{text}: attempt {orders.attempt} resumes on it")
