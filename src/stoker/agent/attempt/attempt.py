"""One attempt on one node, phase by phase, with every failure turned into an ending."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from stoker.agent.attempt.crew import Crew
from stoker.agent.attempt.endings import Ending, broken
from stoker.agent.attempt.finish import Finish, Ship
from stoker.agent.attempt.prepare import Prepare
from stoker.agent.attempt.run import Judge, RunRanks, ScriptStart
from stoker.agent.attempt.stage import Stage
from stoker.agent.attempt.unpack import Unpack
from stoker.agent.machine.fuse import age_by_date
from stoker.agent.notice.stopping import NeedsRestart, Stopped
from stoker.agent.processes import launch
from stoker.agent.processes.launch import Workplace, environment
from stoker.model.run.report import Outcome

if TYPE_CHECKING:
    from stoker.agent.gang.meeting import Meet


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
        self.judge = _judge(crew)
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
        place = self.prepare(orders, unpacked.newest)
        crew.door.open(environment(orders, place))
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
        from stoker.agent.checkpoints.restoring import saved_sets  # here, because most runs have one node
        from stoker.agent.gang.channel import Channel
        from stoker.agent.gang.meeting import Meet

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
        machine=crew.machine,
        shipping=crew.shipping,
        reporter=crew.reporter,
        stopping=crew.stopping,
        tell=crew.tell,
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


def _judge(crew: Crew) -> Judge:
    return Judge(
        folder=crew.folder,
        ranks=crew.ranks,
        goal=crew.goal,
        noticing=crew.noticing,
        notices=crew.notices,
        fuse=crew.fuse,
        stopping=crew.stopping,
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
        nodes=crew.orders.nodes,
    )
