"""How the ranks ended, once they have: what the attempt is said to have come to."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace

from stoker.agent import absent
from stoker.agent.endings import Ending, by_itself, exit_code
from stoker.agent.fuse import NodeFuse
from stoker.agent.goal import Goal
from stoker.agent.nodefolder import NodeFolder
from stoker.agent.noticeboard import NoticeBoard
from stoker.agent.noticing import Noticing
from stoker.agent.ranks import Ranks
from stoker.agent.stopping import Stopping
from stoker.model.orders import Orders
from stoker.model.report import Outcome

_TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    folder: NodeFolder
    ranks: Ranks
    goal: Goal
    noticing: Noticing
    notices: NoticeBoard
    fuse: NodeFuse
    stopping: Stopping

    def __call__(self, orders: Orders, *, out_of_memory: bool) -> Ending:
        ends, failed = self.ranks.ends, self.ranks.first_failed
        if failed is not None:
            return self._failed(orders, failed, out_of_memory=out_of_memory)
        if self.goal.reached and self.stopping.outcome in (None, Outcome.TARGET_REACHED):
            return Ending(Outcome.TARGET_REACHED, 0, str(self.goal))
        if self.noticing.told and self.stopping.outcome is None:
            return self._told(max(exit_code(end) for end in ends.values()))
        if self.stopping.outcome and self.ranks.asked_to_end:
            return Ending(self.stopping.outcome, exit_code(ends[min(ends)]), self.stopping.message)
        return Ending(Outcome.SUCCEEDED, 0)

    def _failed(self, orders: Orders, failed: int, *, out_of_memory: bool) -> Ending:
        tail, terminal = self._tail(failed), bool(orders.terminal)
        ending = by_itself(self.ranks.ends, failed, tail, out_of_memory=out_of_memory, terminal=terminal)
        return ending if ending.hint else replace(ending, hint=absent.hint(tail, orders))

    def _told(self, code: int) -> Ending:
        """The script was asked to end, and has."""
        if code == 0 and self.noticing.finished:
            return Ending(Outcome.SUCCEEDED, 0, "the script finished before its node was taken away")
        if self.fuse.lit_at and not self.notices.posted("machine"):
            return Ending(Outcome.BUDGET_REACHED, code, f"the script saved and ended: {self.fuse.why}")
        return Ending(Outcome.EVICTED, code, "the script ended because of a notice of eviction")

    def _tail(self, rank: int) -> bytes:
        with suppress(OSError), self.folder.log(rank).open("rb") as log:
            log.seek(max(log.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
            return log.read()
        return b""
