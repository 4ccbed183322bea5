"""The fourth phase: runs the ranks to their end, whatever ends them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from stoker.agent import memory
from stoker.agent.attempt.stage import Inputs
from stoker.agent.awaited import Awaited
from stoker.agent.door import Door
from stoker.agent.endings import spell
from stoker.agent.fuse import NodeFuse
from stoker.agent.goal import Goal
from stoker.agent.keeper import Keeper
from stoker.agent.launch import Place, commands
from stoker.agent.noticing import Noticing
from stoker.agent.points import Point
from stoker.agent.ranks import Ranks
from stoker.agent.reporting import Reporter
from stoker.agent.shipping import Shipping
from stoker.agent.stopping import Stopping
from stoker.model.job import Job
from stoker.model.orders import Orders
from stoker.model.report import Outcome, Phase


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
        kills_before = memory.kills()
        self._start(orders, place)
        started = time.monotonic()
        self.ranks.watch(self.stopping, lambda: self._each_time(orders.job, started))
        self.door.shut("the script has ended")
        self.noticing.ended()
        self.inputs.finish()
        ends = tuple(self.ranks.ends[rank] for rank in sorted(self.ranks.ends))
        self.reporter.say(phase=Phase.SAVING, ended_at=_now(), ranks=ends)
        self.script.out_of_memory = memory.kills() > kills_before
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
