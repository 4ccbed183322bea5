"""The phases with the script and after it: runs the ranks until they end, for whatever reason, uploads everything that
they left, and ends the attempt."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from stoker.agent.attempt.endings import FAILURES, Ending, broken, by_itself, exit_code, raised, spell
from stoker.agent.attempt.prepare import Inputs
from stoker.agent.attempt.reporting import Reporter
from stoker.agent.checkpoints.keeper import Keeper
from stoker.agent.environment import python
from stoker.agent.machine import readiness
from stoker.agent.machine.fuse import NodeFuse
from stoker.agent.machine.machine import NodeFolder, NodeMachine
from stoker.agent.notice.noticing import Awaited, Goal, NoticeBoard, Noticing
from stoker.agent.notice.stopping import Stopping
from stoker.agent.processes import launch
from stoker.agent.processes.launch import Workplace, contained
from stoker.agent.processes.launchers import commands
from stoker.agent.processes.ranks import RankProcesses
from stoker.agent.shipping import outputs
from stoker.agent.shipping.logs import Masking
from stoker.agent.shipping.metrics.points import MetricPoint
from stoker.agent.shipping.shipping import Shipping
from stoker.agent.shipping.worker import StoreTrouble, persist
from stoker.agent.visits.visit import VisitDoor
from stoker.model.cause import Cause
from stoker.model.job.job import Job, Launcher
from stoker.model.orders import Orders
from stoker.model.run.report import GOOD, Outcome, Phase
from stoker.stores import Store

if TYPE_CHECKING:
    from stoker.agent.attempt.gang import PeerWatch
    from stoker.agent.container.container import NodeContainer
    from stoker.agent.machine.cloud import CloudListener
    from stoker.agent.processes.doctor import HangDoctor


@dataclass(slots=True)
class ScriptStart:
    """What later phases need to know about the script, however far it got."""

    code: frozenset[str] = frozenset()  # paths of the code snapshot
    started_ns: int = 0  # by the clock of file timestamps; 0: it was not started
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRanks:
    """`worked_s` is how long the script has run on earlier machines of this attempt."""

    ranks: RankProcesses
    shipping: Shipping
    keeper: Keeper
    noticing: Noticing
    inputs: Inputs
    goal: Goal
    awaited: Awaited
    fuse: NodeFuse
    door: VisitDoor
    reporter: Reporter
    begin_figures: Callable[[], None]
    stopping: Stopping
    tell: Callable[[str, str], None]
    script: ScriptStart
    worked_s: float = 0.0
    peers: PeerWatch | None = None  # of a gang
    doctor: Callable[[str, int], HangDoctor | None] = lambda _path, _world: None  # see `Crew.doctor`

    def __call__(self, orders: Orders, place: Workplace) -> None:
        """Returns when every rank has ended and no process of them is left. From here on, their files are uploaded."""
        kills_before = readiness.memory_kills()
        self._start(orders, place)
        started = time.monotonic()
        doctor = self.doctor(launch.path(place), place.processes * orders.nodes)
        if doctor:
            doctor.start()
        self.ranks.watch(self.stopping, lambda: self._each_time(orders.job, started))
        if doctor:
            doctor.finish()
        self.door.shut("the script has ended")
        self.noticing.ended()
        self.inputs.finish()
        ends = tuple(self.ranks.ends[rank] for rank in sorted(self.ranks.ends))
        self.reporter.say(phase=Phase.SAVING, ended_at=_now(), ranks=ends)
        self.script.out_of_memory = readiness.memory_kills() > kills_before
        self._sweep()
        # A script that failed may have left a partial file; one that was asked to stop had time to finish it.
        done = all(end.exit_code == 0 for end in ends)
        self.keeper.trusted = done or (self.noticing.told and not self.ranks.killed)
        self.shipping.end()
        self.shipping.metrics.finish()  # the last point may reach the target

    def _start(self, orders: Orders, place: Workplace) -> None:
        to_start = commands(orders, place)
        if place.entry:
            to_start = [contained(one, place.entry, place) for one in to_start]
        self.script.started_ns = time.time_ns()
        self.ranks.start(to_start)
        self.awaited.begin()
        self.shipping.start([rank for one in to_start for rank in one.ranks or (one.rank,)], self._saw)
        self.keeper.start()
        self.begin_figures()
        self.inputs.watch(self.ranks.script_pids)
        self.reporter.say(phase=Phase.RUNNING, started_at=self.reporter.started_at or _now())

    def _each_time(self, job: Job, started: float) -> None:
        if self.peers and self.ranks.first_failed is not None:
            self.peers.end(Outcome.FAILED, f"rank {self.ranks.first_failed} failed")
        self.goal.act(self.ranks, self.stopping)
        self.noticing.act(self.ranks)
        self.awaited.act()
        if job.time_limit and self.worked_s + time.monotonic() - started >= job.time_limit:
            limit = spell(job.time_limit)
            self.stopping.ask(Outcome.TIMED_OUT, f"the script was stopped after its time limit of {limit}")

    def _saw(self, point: MetricPoint, source: str) -> None:
        self.goal.see(point, source)
        self.awaited.see(point)
        self.fuse.see(point)

    def _sweep(self) -> None:
        left = self.ranks.sweep()
        if left and not self.ranks.asked_to_end:
            what = "1 process" if left == 1 else f"{left} processes"
            self.tell("left-behind", f"the script left {what} running, which had to be killed")


def _now() -> datetime:
    return datetime.now(UTC)


# The outcome of an attempt, from how its ranks ended.

_TAIL_BYTES = 4096
EXPLAIN_S = 5.0  # for another node to say that one of its ranks has failed
ENGINE_ENDS_S = 5.0  # after a signal to everybody: the command of a container engine ends, and is noticed


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    folder: NodeFolder
    ranks: RankProcesses
    goal: Goal
    noticing: Noticing
    notices: NoticeBoard
    fuse: NodeFuse
    stopping: Stopping
    script: ScriptStart
    masked: Callable[[str], str]
    container: NodeContainer | None = None

    def __call__(self, orders: Orders, *, out_of_memory: bool) -> Ending:
        ends, failed = self.ranks.ends, self.ranks.first_failed
        if failed is not None and ends[failed].signal == signal.SIGTERM and self.notices.posted("machine"):
            # Some schedulers, and every shutdown, send it to all processes of the machine.
            return Ending(
                Outcome.EVICTED, exit_code(ends[failed]), "the script was ended by the eviction of its machine"
            )
        if failed is not None and self._is_of_a_peer(orders):
            message = self.stopping.message or "mpirun on the first node ended it"
            return Ending(Outcome.PEER_ENDED, exit_code(ends[failed]), message)
        if failed is not None and self.container and self.container.is_lost():
            what = f"its container was removed, or {self.container.label} was restarted"
            return Ending(Outcome.CANCELLED, exit_code(ends[failed]), what)
        if failed is not None:
            return self._failed(orders, failed, out_of_memory=out_of_memory)
        if self.goal.reached and self.stopping.outcome in (None, Outcome.TARGET_REACHED):
            return Ending(Outcome.TARGET_REACHED, 0, str(self.goal))
        if self.noticing.told and self.stopping.outcome is None:
            return self._told(max(exit_code(end) for end in ends.values()))
        if self.stopping.outcome and self.ranks.asked_to_end:
            code = exit_code(ends[min(ends)])
            return Ending(self.stopping.outcome, code, self.stopping.message, cause=self.stopping.cause)
        if self.container and self._has_just_been_warned():
            # Some schedulers send SIGTERM to every process, and the engine's command may end with 0 at that.
            return self._told(0)
        return Ending(Outcome.SUCCEEDED, 0)

    def _has_just_been_warned(self) -> bool:
        notice = self.notices.posted("machine")
        return bool(notice and not notice.drill and (datetime.now(UTC) - notice.at).total_seconds() < ENGINE_ENDS_S)

    def _is_of_a_peer(self, orders: Orders) -> bool:
        """`mpirun` ends everywhere if a rank fails anywhere, and the node of that rank says which one."""
        if orders.nodes == 1 or orders.job.launcher is not Launcher.MPI or not self.ranks.unexplained:
            return False
        until = time.monotonic() + EXPLAIN_S
        while orders.node == 0 and self.stopping.outcome is None and time.monotonic() < until:
            self.stopping.wait(0.05)
        return orders.node > 0 or self.stopping.outcome is Outcome.PEER_ENDED

    def _failed(self, orders: Orders, failed: int, *, out_of_memory: bool) -> Ending:
        tail, terminal = self._tail(failed), bool(orders.terminal)
        ending = by_itself(self.ranks.ends, failed, tail, out_of_memory=out_of_memory, terminal=terminal)
        ending = ending if ending.hint else replace(ending, hint=self._hint(orders, tail))
        return self._of_several(orders, failed, tail, ending) if orders.nodes * len(self.ranks.ends) > 1 else ending

    def _hint(self, orders: Orders, tail: bytes) -> str:
        from stoker.agent.attempt import endings

        return python.hint(tail, orders) or endings.hint(tail, orders.job, self.folder.work, self.script.code)

    def _of_several(self, orders: Orders, failed: int, tail: bytes, ending: Ending) -> Ending:
        """With its exception, and where to read more: the log ends with the errors of those that waited for it."""
        words = raised(self.masked(tail.decode(errors="replace")))
        message = f"{ending.message}: {words}" if words else ending.message
        read = f"stoker logs {orders.run_name} --rank {failed}"
        return replace(ending, message=message, hint=ending.hint or read)

    def _told(self, code: int) -> Ending:
        """The script was asked to stop, and did."""
        if code == 0 and self.noticing.finished:
            return Ending(Outcome.SUCCEEDED, 0, "the script finished before its node was evicted", cause=Cause.FINISHED)
        if self.fuse.lit_at and not self.notices.posted("machine"):
            return Ending(
                Outcome.BUDGET_REACHED, code, f"the script saved and stopped: {self.fuse.why}", cause=Cause.FUSE_HEEDED
            )
        return Ending(Outcome.EVICTED, code, "the script stopped because of an eviction notice")

    def _tail(self, rank: int) -> bytes:
        with suppress(OSError), self.folder.log(rank).open("rb") as log:
            log.seek(max(log.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
            return log.read()
        return b""


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
        if self.script.started_ns and ending.outcome in outputs.ENDS:
            try:
                self._stray(orders)
            except Exception as error:
                ending = broken(error)
        return ending

    def _stray(self, orders: Orders) -> None:
        found = outputs.find(self.folder.work, orders, self.script.code, self.script.started_ns)
        told = persist(lambda: outputs.ship(self.store, orders, found))
        if told.names:
            names = tuple(self.masking.text(name) for name in told.names)
            self.reporter.say(stray=names, stray_files=told.files, stray_bytes=told.size_bytes)
            self.tell("stray", f"the script left files outside its outputs: {', '.join(names)}")


# The last phase: removes everything of the run from the node and writes the final report.


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
    container: NodeContainer | None = None
    nodes: int = 1  # of the gang

    def __call__(self, orders: Orders, ending: Ending) -> bool:
        """Returns when the final report is in the store: True if the machine is about to restart. Everything that the
        report refers to is already there."""
        self.fuse.finish(over=ending.outcome is Outcome.BUDGET_REACHED)
        kept_s = orders.job.keep_failed if ending.outcome in FAILURES else None
        if kept_s:
            from stoker.agent.visits.visit import keep  # here, because few runs fail, and fewer keep their node

            self.reporter.finish(lambda: self.last_words(ending))
            keep(self.store, orders, self.door, kept_s)
        try:
            if self.container:
                self.container.stop()
            self.inputs.release()
        except Exception as error:
            ending = broken(error)
        self._clear()
        if ending.outcome is Outcome.EVICTED and self.listener:
            self.listener.stay()
        if not kept_s:
            self.reporter.finish(lambda: self.last_words(ending))
        return self._restart(ending)

    def last_words(self, ending: Ending) -> dict[str, Any]:
        """Evaluated again at each try, since it includes the errors of the store."""
        ran_out = ending.outcome in (Outcome.SUCCEEDED, Outcome.TIMED_OUT)
        missing = self.awaited.missing() if ran_out else ""
        message = "; ".join(text for text in (ending.message, missing, str(self.trouble)) if text)
        said = {"message": self.masking.text(message), "hint": self.masking.text(ending.hint)}
        cause = ending.cause or (ending.outcome if ending.outcome not in GOOD else "")
        cause = cause or (Cause.METRIC_MISSING if missing else Cause.STORE_AWAY if str(self.trouble) else "")
        return {
            "outcome": ending.outcome,
            "exit_code": ending.exit_code,
            "cause": cause,
            **said,
            "stays": self._stays(ending),
        }

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
