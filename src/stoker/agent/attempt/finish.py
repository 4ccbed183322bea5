"""The fifth phase: uploads everything that the script left, however it ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stoker.agent.attempt.endings import FAILURES, Ending, broken
from stoker.agent.attempt.reporting import Reporter
from stoker.agent.attempt.run import ScriptStart
from stoker.agent.attempt.stage import Inputs
from stoker.agent.checkpoints.keeper import Keeper
from stoker.agent.machine.fuse import NodeFuse
from stoker.agent.machine.machine import NodeFolder, NodeMachine
from stoker.agent.notice.goal import Awaited
from stoker.agent.notice.noticing import NoticeBoard, Noticing
from stoker.agent.notice.stopping import Stopping
from stoker.agent.processes.ranks import RankProcesses
from stoker.agent.shipping import stray
from stoker.agent.shipping.logs import Masking
from stoker.agent.shipping.shipping import Shipping
from stoker.agent.shipping.worker import StoreTrouble, persist
from stoker.agent.visits.door import VisitDoor
from stoker.model.node.orders import Orders
from stoker.model.run.report import Outcome
from stoker.stores import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Ship:
    store: Store
    folder: NodeFolder
    ranks: RankProcesses
    keeper: Keeper
    noticing: Noticing
    shipping: Shipping
    reporter: Reporter
    masking: Masking
    script: ScriptStart
    tell: Callable[[str, str], None]

    def __call__(self, orders: Orders, ending: Ending) -> Ending:
        """The ending, or the error that prevented this. Returns when everything is in the store."""
        for step in (self.ranks.sweep, self.keeper.finish, self.noticing.conclude, *self.shipping.steps()):
            try:
                step()
            except Exception as error:  # the others are still done
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


# The last phase: removes everything of the run from the node and writes the final report.

if TYPE_CHECKING:
    from stoker.agent.machine.cloud import CloudListener

_SURVIVED = (Outcome.PEER_ENDED, Outcome.EVICTED, Outcome.FAILED)  # by the machine of a node of a gang


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    store: Store
    machine: NodeMachine
    inputs: Inputs
    fuse: NodeFuse
    door: VisitDoor
    reporter: Reporter
    awaited: Awaited
    trouble: StoreTrouble
    masking: Masking
    notices: NoticeBoard
    stopping: Stopping
    listener: CloudListener | None
    nodes: int = 1  # of the gang

    def __call__(self, orders: Orders, ending: Ending) -> bool:
        """Returns when the final report is in the store: True if the machine is about to restart. Everything that the
        report refers to is already there."""
        self.fuse.finish(over=ending.outcome is Outcome.BUDGET_REACHED)
        kept_s = orders.job.keep_failed if ending.outcome in FAILURES else None
        if kept_s:
            from stoker.agent.visits.door import keep  # here, because few runs fail, and fewer keep their node

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
        """Evaluated again at each try, since it includes the errors of the store."""
        ran_out = ending.outcome in (Outcome.SUCCEEDED, Outcome.TIMED_OUT)
        missing = self.awaited.missing() if ran_out else ""
        message = "; ".join(text for text in (ending.message, missing, str(self.trouble)) if text)
        said = {"message": self.masking.text(message), "hint": self.masking.text(ending.hint)}
        return {"outcome": ending.outcome, "exit_code": ending.exit_code, **said, "stays": self._stays(ending)}

    def _clear(self) -> None:
        folder = self.machine.folder
        os.chdir("/")  # leave the folder that is about to be removed
        with suppress(OSError):
            folder.clear()
            folder.access.unlink(missing_ok=True)

    def _stays(self, ending: Ending) -> bool:
        """The run can resume on this machine: it only restarts, or another node of the gang is gone."""
        return self._restarts(ending) or self._survives(ending)

    def _survives(self, ending: Ending) -> bool:
        """Nothing has happened to this machine of a gang, whatever has become of its ranks."""
        if self.nodes == 1 or self.stopping.outcome not in (None, Outcome.PEER_ENDED):
            return False
        return ending.outcome in _SURVIVED and self.notices.posted("machine") is None

    def _restarts(self, ending: Ending) -> bool:
        if ending.outcome is not Outcome.EVICTED:
            return False
        told = self.notices.posted("machine")
        return self.stopping.stays or (self.stopping.outcome is None and told is not None and told.returns)

    def _restart(self, ending: Ending) -> bool:
        """The run no longer delays a restart that the machine needs."""
        if not self._restarts(ending) or self.listener is None:
            return False
        told = self.notices.posted("machine")
        if told and told.returns:
            self.listener.approve()
        elif ending.needs_restart:
            from stoker.agent.machine.readiness import restart  # here, because most machines need none

            restart(self.machine)
        return True
