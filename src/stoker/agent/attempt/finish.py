"""The last phase: nothing of the run is left on the node, and the final report says how it ended."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stoker.agent.attempt.stage import Inputs
from stoker.agent.awaited import Awaited
from stoker.agent.door import Door
from stoker.agent.endings import FAILURES, Ending, broken
from stoker.agent.fuse import NodeFuse
from stoker.agent.machine import Machine
from stoker.agent.masking import Masking
from stoker.agent.noticeboard import NoticeBoard
from stoker.agent.pace import Trouble
from stoker.agent.reporting import Reporter
from stoker.agent.stopping import Stopping
from stoker.model.orders import Orders
from stoker.model.report import Outcome
from stoker.stores import Store

if TYPE_CHECKING:
    from stoker.agent.cloud import CloudListener


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
            from stoker.agent.kept import keep  # here, because few runs fail, and fewer are kept

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
            from stoker.agent.readiness import restart  # here, because most machines need none

            restart(self.machine)
        return True
