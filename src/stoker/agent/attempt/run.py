"""The fourth phase: runs the ranks to their end, whatever ends them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from stoker.agent.attempt.endings import Ending, by_itself, exit_code, spell
from stoker.agent.attempt.reporting import Reporter
from stoker.agent.attempt.stage import Inputs
from stoker.agent.checkpoints.keeper import Keeper
from stoker.agent.environment import absent
from stoker.agent.machine import hardware
from stoker.agent.machine.fuse import NodeFuse
from stoker.agent.machine.machine import NodeFolder
from stoker.agent.notice.goal import Awaited, Goal
from stoker.agent.notice.noticing import NoticeBoard, Noticing
from stoker.agent.notice.stopping import Stopping
from stoker.agent.processes.launch import Place, commands
from stoker.agent.processes.ranks import Ranks
from stoker.agent.shipping.points import Point
from stoker.agent.shipping.shipping import Shipping
from stoker.agent.visits.door import Door
from stoker.model.job.job import Job
from stoker.model.node.orders import Orders
from stoker.model.run.report import Outcome, Phase


@dataclass(slots=True)
class Script:
    """What later phases have to know of the script, however far it came."""

    code: frozenset[str] = frozenset()  # paths that came with the snapshot
    started_ns: int = 0  # by the clock that files are stamped with; 0: it was not
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRanks:
    """`worked_s` is how long the script has run on earlier machines of this attempt."""

    ranks: Ranks
    shipping: Shipping
    keeper: Keeper
    noticing: Noticing
    inputs: Inputs
    goal: Goal
    awaited: Awaited
    fuse: NodeFuse
    door: Door
    reporter: Reporter
    begin_figures: Callable[[], None]
    stopping: Stopping
    tell: Callable[[str, str], None]
    script: Script
    worked_s: float = 0.0

    def __call__(self, orders: Orders, place: Place) -> None:
        """Returns when every rank has ended and nothing of them is left. What they left is shipped from here on."""
        kills_before = hardware.memory_kills()
        self._start(orders, place)
        started = time.monotonic()
        self.ranks.watch(self.stopping, lambda: self._each_time(orders.job, started))
        self.door.shut("the script has ended")
        self.noticing.ended()
        self.inputs.finish()
        ends = tuple(self.ranks.ends[rank] for rank in sorted(self.ranks.ends))
        self.reporter.say(phase=Phase.SAVING, ended_at=_now(), ranks=ends)
        self.script.out_of_memory = hardware.memory_kills() > kills_before
        self._sweep()
        # What a script was writing when it failed may be half written; one that was told to end has had its say.
        done = all(end.exit_code == 0 for end in ends)
        self.keeper.trusted = done or (self.noticing.told and not self.ranks.killed)
        self.shipping.end()
        self.shipping.metrics.finish()  # the last point may be the one that reaches the target

    def _start(self, orders: Orders, place: Place) -> None:
        to_start = commands(orders, place)
        self.script.started_ns = time.time_ns()
        self.ranks.start(to_start)
        self.awaited.begin()
        self.shipping.start([command.rank for command in to_start], self._saw)
        self.keeper.start()
        self.begin_figures()
        self.inputs.watch(self.ranks.script_pids)
        self.reporter.say(phase=Phase.RUNNING, started_at=self.reporter.started_at or _now())

    def _each_time(self, job: Job, started: float) -> None:
        self.goal.act(self.ranks, self.stopping)
        self.noticing.act(self.ranks)
        self.awaited.act()
        if job.time_limit and self.worked_s + time.monotonic() - started >= job.time_limit:
            limit = spell(job.time_limit)
            self.stopping.ask(Outcome.TIMED_OUT, f"the script was stopped after its time limit of {limit}")

    def _saw(self, point: Point, source: str) -> None:
        self.goal.see(point, source)
        self.awaited.see(point)
        self.fuse.see(point)

    def _sweep(self) -> None:
        left = self.ranks.sweep()
        if left and not self.ranks.asked_to_end:
            what = "1 process" if left == 1 else f"{left} processes"
            self.tell("left-behind", f"the script left {what} behind, which had to be ended")


def _now() -> datetime:
    return datetime.now(UTC)


# How the ranks ended, once they have: what the attempt is said to have come to.

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
