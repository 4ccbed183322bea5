"""The fifth phase: everything that the script left goes into the store, however it ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stoker.agent.attempt.endings import FAILURES, Ending, broken
from stoker.agent.attempt.reporting import Reporter
from stoker.agent.attempt.run import Script
from stoker.agent.attempt.stage import Inputs
from stoker.agent.checkpoints.keeper import Keeper
from stoker.agent.machine.fuse import NodeFuse
from stoker.agent.machine.machine import Machine, NodeFolder
from stoker.agent.notice.goal import Awaited
from stoker.agent.notice.noticing import NoticeBoard, Noticing
from stoker.agent.notice.stopping import Stopping
from stoker.agent.processes.ranks import Ranks
from stoker.agent.shipping import stray
from stoker.agent.shipping.logs import Masking
from stoker.agent.shipping.shipping import Shipping
from stoker.agent.shipping.worker import Trouble, persist
from stoker.agent.visits.door import Door
from stoker.model.node.orders import Orders
from stoker.model.run.report import Outcome
from stoker.stores import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Ship:
    store: Store
    folder: NodeFolder
    ranks: Ranks
    keeper: Keeper
    noticing: Noticing
    shipping: Shipping
    reporter: Reporter
    masking: Masking
    script: Script
    tell: Callable[[str, str], None]

    def __call__(self, orders: Orders, ending: Ending) -> Ending:
        """The ending, or what kept this from being done. Returns when everything is in the store."""
        for step in (self.ranks.sweep, self.keeper.finish, self.noticing.conclude, *self.shipping.steps()):
            try:
                step()
            except Exception as error:  # the others are carried out all the same
                ending = broken(error)
        if self.script.started_ns and ending.outcome in stray.ENDS:
            try:
                self._stray(orders)
            except Exception as error:
                ending = broken(error)
        return ending

    def _stray(self, orders: Orders) -> None:
        found = stray.find(self.folder.work, orders, self.script.code, self.script.started_ns)
        told = persist(lambda: stray.ship(self.store, orders, found))
        if told.names:
            names = tuple(self.masking.text(name) for name in told.names)
            self.reporter.say(stray=names, stray_files=told.files, stray_bytes=told.size_bytes)
            self.tell("stray", f"the script left files outside its outputs: {', '.join(names)}")


# The last phase: nothing of the run is left on the node, and the final report says how it ended.

if TYPE_CHECKING:
    from stoker.agent.machine.cloud import CloudListener


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    store: Store
    machine: Machine
    inputs: Inputs
    fuse: NodeFuse
    door: Door
    reporter: Reporter
    awaited: Awaited
    trouble: Trouble
    masking: Masking
    notices: NoticeBoard
    stopping: Stopping
    listener: CloudListener | None

    def __call__(self, orders: Orders, ending: Ending) -> bool:
        """Returns when the final report is in the store: whether the machine is about to restart. Whoever reads the
        report finds all that it speaks of."""
        self.fuse.finish(over=ending.outcome is Outcome.BUDGET_REACHED)
        kept_s = orders.job.keep_failed if ending.outcome in FAILURES else None
        if kept_s:
            from stoker.agent.visits.door import keep  # here, because few runs fail, and fewer are kept

            self.reporter.finish(lambda: self.last_words(ending))
            keep(self.store, orders, self.door, kept_s)
        try:
            self.inputs.release()
        except Exception as error:
            ending = broken(error)
        self._clear()
        if not kept_s:
            self.reporter.finish(lambda: self.last_words(ending))
        return self._restart(ending)

    def last_words(self, ending: Ending) -> dict[str, Any]:
        """Asked again at each try, since the trouble with the store belongs to it."""
        ran_out = ending.outcome in (Outcome.SUCCEEDED, Outcome.TIMED_OUT)
        missing = self.awaited.missing() if ran_out else ""
        message = "; ".join(text for text in (ending.message, missing, str(self.trouble)) if text)
        said = {"message": self.masking.text(message), "hint": self.masking.text(ending.hint)}
        return {"outcome": ending.outcome, "exit_code": ending.exit_code, **said, "stays": self._stays(ending)}

    def _clear(self) -> None:
        folder = self.machine.folder
        os.chdir("/")  # out of the folder that is about to go
        with suppress(OSError):
            folder.clear()
            folder.access.unlink(missing_ok=True)

    def _stays(self, ending: Ending) -> bool:
        """The machine is only restarted: the run can resume here."""
        if ending.outcome is not Outcome.EVICTED:
            return False
        told = self.notices.posted("machine")
        return self.stopping.stays or (self.stopping.outcome is None and told is not None and told.returns)

    def _restart(self, ending: Ending) -> bool:
        """Whatever the machine has to be restarted for need wait no longer."""
        if not self._stays(ending) or self.listener is None:
            return False
        told = self.notices.posted("machine")
        if told and told.returns:
            self.listener.approve()
        elif ending.needs_restart:
            from stoker.agent.machine.readiness import restart  # here, because most machines need none

            restart(self.machine)
        return True
