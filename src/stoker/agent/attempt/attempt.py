"""One attempt on one node, from its orders: phase by phase, with every failure turned into an ending."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from stoker.agent.attempt.crew import Crew
from stoker.agent.attempt.endings import Ending, broken
from stoker.agent.attempt.prepare import Prepare, Stage, Unpack
from stoker.agent.attempt.run import Finish, Judge, RunRanks, ScriptStart, Ship
from stoker.agent.checkpoints.sets import is_fenced
from stoker.agent.machine.fuse import age_by_date
from stoker.agent.machine.machine import NodeMachine
from stoker.agent.notice.stopping import NeedsRestart, Stopped, hear
from stoker.agent.processes import launch
from stoker.agent.processes.launch import Workplace, environment
from stoker.agent.shipping.worker import persist
from stoker.errors import Missing
from stoker.model.job.job import Environment
from stoker.model.orders import Orders
from stoker.model.run.report import Outcome, Report
from stoker.model.wire import load
from stoker.model.workspace import layout
from stoker.stores import Store

if TYPE_CHECKING:
    from stoker.agent.attempt.gang import Meet


class AttemptRunner:
    """`worked_s` is how long the script has run on earlier machines of this attempt. `fuse_age_s` is the age of the
    budget limit in the orders, where it should not be estimated from the boot time."""

    def __init__(self, crew: Crew, *, worked_s: float = 0.0, fuse_age_s: float | None = None) -> None:
        self._crew = crew
        self._fuse_age_s = fuse_age_s
        self.script = ScriptStart()
        self.unpack = _unpack(crew)
        self.stage = _stage(crew)
        self.prepare = _prepare(crew)
        self.run = _run(crew, self.script, worked_s)
        self.meet = self._meeting() if crew.orders.nodes > 1 else None
        self.judge = _judge(crew, self.script)
        self.ship = _ship(crew, self.script)
        self.finish = _finish(crew)

    def carry_out(self, errand: Mapping[str, Any]) -> bool:
        """Returns when the final report is in the store: True if the machine is about to restart."""
        ending = self.ending(errand)
        if self._crew.peers:
            self._crew.peers.end(ending.outcome, ending.message)
        self._hear_no_more()
        return self.finish(self._crew.orders, self.ship(self._crew.orders, ending))

    def ending(self, errand: Mapping[str, Any]) -> Ending:
        """Runs the phases up to the end of the script, and turns any failure into an ending."""
        stopping = self._crew.stopping
        try:
            self._begin(errand)
            return self._work()
        except Stopped as why:
            return Ending(
                stopping.outcome or Outcome.CANCELLED,
                None,
                stopping.message,
                cause=stopping.cause,
                needs_restart=isinstance(why, NeedsRestart),
            )
        except Exception as error:
            return broken(error)

    def _begin(self, errand: Mapping[str, Any]) -> None:
        crew = self._crew
        crew.folder.make(errand)
        if fuse := crew.orders.fuse:
            age_s = age_by_date(fuse.as_of, datetime.now(UTC)) if self._fuse_age_s is None else self._fuse_age_s
            crew.fuse.hear(fuse, age_s)
        crew.wishes.start()
        if crew.peers:
            crew.peers.start()
        if crew.listener:
            crew.listener.start()

    def _work(self) -> Ending:
        crew, orders = self._crew, self._crew.orders
        unpacked = self.unpack(orders)
        self.script.code = unpacked.code
        crew.door.open(environment(orders, self._bare_place()))
        orders = self.stage(orders)
        launch.place_inputs(crew.folder.work, orders)
        place = self.prepare(orders, unpacked.newest, unpacked.code)
        crew.door.open(environment(orders, place), place.entry)
        self.prepare.await_ready(orders)
        if self.meet:
            orders, place = self.meet(orders, place)
        self.run(orders, place)
        return self.judge(orders, out_of_memory=self.script.out_of_memory)

    def _hear_no_more(self) -> None:
        crew = self._crew
        crew.wishes.finish()
        if crew.peers:
            crew.peers.finish()
        crew.door.shut("the run has ended")
        if crew.listener:
            crew.listener.finish()

    def _meeting(self) -> Meet:
        from stoker.agent.attempt.gang import Channel, Meet
        from stoker.agent.checkpoints.restoring import saved_sets  # here, because most runs have one node

        crew = self._crew
        channel = Channel(crew.store, crew.orders)
        return Meet(
            channel=channel,
            stopping=crew.stopping,
            tell=crew.tell,
            resumed=lambda: crew.checkpoints.last,
            saved=partial(saved_sets, crew.store),
            restore=self.unpack.again,
        )

    def _bare_place(self) -> Workplace:
        """Before the environment exists: a visitor may want to know why it does not."""
        machine = self._crew.machine
        return Workplace(machine.folder, sys.executable, "", "", "", machine.library, machine.variables, 1, 0)


def _unpack(crew: Crew) -> Unpack:
    return Unpack(
        store=crew.store,
        folder=crew.folder,
        checkpoints=crew.checkpoints,
        shipping=crew.shipping,
        effort=crew.effort,
        stopping=crew.stopping,
        tell=crew.tell,
    )


def _stage(crew: Crew) -> Stage:
    return Stage(inputs=crew.inputs, reporter=crew.reporter, begin_figures=crew.figures.begin, stopping=crew.stopping)


def _prepare(crew: Crew) -> Prepare:
    return Prepare(
        store=crew.store,
        machine=crew.machine,
        shipping=crew.shipping,
        reporter=crew.reporter,
        stopping=crew.stopping,
        tell=crew.tell,
        container=crew.container,
    )


def _run(crew: Crew, script: ScriptStart, worked_s: float) -> RunRanks:
    return RunRanks(
        ranks=crew.ranks,
        shipping=crew.shipping,
        keeper=crew.keeper,
        noticing=crew.noticing,
        inputs=crew.inputs,
        goal=crew.goal,
        awaited=crew.awaited,
        fuse=crew.fuse,
        door=crew.door,
        reporter=crew.reporter,
        begin_figures=crew.figures.begin,
        stopping=crew.stopping,
        tell=crew.tell,
        script=script,
        worked_s=worked_s,
        peers=crew.peers,
        doctor=crew.doctor,
    )


def _judge(crew: Crew, script: ScriptStart) -> Judge:
    return Judge(
        folder=crew.folder,
        ranks=crew.ranks,
        goal=crew.goal,
        noticing=crew.noticing,
        notices=crew.notices,
        fuse=crew.fuse,
        stopping=crew.stopping,
        script=script,
        masked=crew.masking.text,
        container=crew.container,
    )


def _ship(crew: Crew, script: ScriptStart) -> Ship:
    return Ship(
        store=crew.store,
        folder=crew.folder,
        ranks=crew.ranks,
        keeper=crew.keeper,
        noticing=crew.noticing,
        shipping=crew.shipping,
        reporter=crew.reporter,
        masking=crew.masking,
        script=script,
        tell=crew.tell,
    )


def _finish(crew: Crew) -> Finish:
    return Finish(
        store=crew.store,
        machine=crew.machine,
        inputs=crew.inputs,
        fuse=crew.fuse,
        door=crew.door,
        reporter=crew.reporter,
        awaited=crew.awaited,
        trouble=crew.trouble,
        masking=crew.masking,
        notices=crew.notices,
        stopping=crew.stopping,
        listener=crew.listener,
        container=crew.container,
        nodes=crew.orders.job.most_nodes,
    )


_ORDERS_EVERY_S = 0.5
RESTARTS = 75  # the exit code of an agent whose machine is about to restart


def carry_out(store: Store, orders_key: str, machine: NodeMachine) -> int:
    """Returns when the final report is in the store, or at once where this attempt was started before. The exit code
    says whether the machine is about to restart."""
    orders = load(Orders, await_orders(store, orders_key, patient=bool(machine.events)))
    if machine.within_image:  # its software is what is here
        orders = replace(orders, python="", software=None, job=replace(orders.job, environment=Environment()))
    if machine.restored:
        return _continue(store, orders, orders_key, machine)
    machine.folder.note_begun(orders_key)
    crew = Crew(store, orders, machine)
    if machine.events and machine.folder.errand.exists():
        from stoker.agent.machine.incarnation import ship  # here, because VMs are seldom restarted under an agent

        ship(machine)
    if persist(crew.reporter.claim):
        return _carry_out(AttemptRunner(crew), crew, orders_key)
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
    return _carry_out(AttemptRunner(crew, worked_s=found.worked_s, fuse_age_s=age_s), crew, orders_key)


def _carry_out(attempt: AttemptRunner, crew: Crew, orders_key: str) -> int:
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
