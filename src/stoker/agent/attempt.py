"""The whole story of one attempt on one node, in the order in which it happens."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.agent import absent, gpus, meeting, memory, placing, stray
from stoker.agent.awaited import Awaited
from stoker.agent.carryover import carry_over
from stoker.agent.door import Door
from stoker.agent.effort import EffortMeter
from stoker.agent.endings import FAILURES, Broken, Ending, by_itself, exit_code, spell
from stoker.agent.fuse import NodeFuse, age_by_date
from stoker.agent.goal import Goal
from stoker.agent.hearing import hear
from stoker.agent.interpreter import interpreter
from stoker.agent.keeper import Keeper
from stoker.agent.keeping import Checkpoints
from stoker.agent.launch import Place, commands, environment
from stoker.agent.machine import Machine
from stoker.agent.masking import Masking
from stoker.agent.nodefolder import remove_tree
from stoker.agent.noticeboard import NoticeBoard
from stoker.agent.noticing import Noticing
from stoker.agent.pace import Trouble, persist
from stoker.agent.points import Point
from stoker.agent.ranks import LAST_GRACE_S, Ranks
from stoker.agent.reporting import Reporter
from stoker.agent.restoring import is_fenced, put_back
from stoker.agent.shipping import Shipping
from stoker.agent.stopping import Stopped, Stopping, WishWatch
from stoker.errors import Missing, StokerError, StoreDenied, StoreUnavailable
from stoker.model import layout
from stoker.model.checkpoint import CheckpointSet
from stoker.model.checkpointpaths import CheckpointPaths
from stoker.model.job import Environment
from stoker.model.orders import Notice, Orders
from stoker.model.report import Outcome, Phase, Report
from stoker.model.snapshot import Snapshot
from stoker.model.wire import load
from stoker.stores import Store
from stoker.stores.manifest import verified
from stoker.stores.unpack import unpack

if TYPE_CHECKING:
    from stoker.agent.data.staging import Staging
    from stoker.agent.scheduledevents import ScheduledEvents

_ORDERS_EVERY_S = 0.5
RESTARTS = 75  # the exit code of an agent whose machine is about to restart


def carry_out(store: Store, orders_key: str, machine: Machine) -> int:
    """Returns when the final report is in the store, or at once where this attempt has been begun before. The exit code
    says whether the machine is about to restart."""
    orders = load(Orders, _await_orders(store, orders_key, patient=bool(machine.events)))
    if machine.restored:
        return _continue(store, orders, orders_key, machine)
    machine.folder.note_begun(orders_key)
    attempt = Attempt(store, orders, machine)
    if machine.events and attempt.folder.errand.exists():
        from stoker.agent.aftermath import ship  # here, because machines are seldom restarted under an agent

        ship(machine)
    if persist(attempt.reporter.claim):
        attempt.finish(attempt.ending(_errand(store, orders, orders_key)))
    elif machine.events and attempt.folder.errand.exists():
        from stoker.agent.aftermath import conclude  # likewise

        conclude(store, orders, machine)
    return RESTARTS if attempt.restarts else 0


def _continue(store: Store, orders: Orders, orders_key: str, machine: Machine) -> int:
    """On a machine that its provider made again. Whoever continues has claimed the attempt first: its fence keeps an
    earlier machine out, as that of a later attempt would keep out this one."""
    from stoker.agent import incarnation  # here, because machines are seldom made again

    found = persist(lambda: incarnation.standing(store, orders, machine.folder))
    if found is None or found.why_not:
        return incarnation.LEAVES
    mine = persist(lambda: incarnation.take_over(store, orders))
    orders = replace(orders, incarnation=mine, fuse=found.fuse)
    if persist(lambda: incarnation.is_superseded(store, orders) or is_fenced(store, orders)):
        return incarnation.LEAVES
    machine.folder.note_begun(orders_key)
    attempt = Attempt(store, orders, machine)
    attempt.worked_s = found.worked_s
    attempt.continue_from(found.report)
    # Wishes that are read again say the same, which is no news: how old it is, is known here only.
    age_s = found.fuse.seconds - found.spend_left_s if found.fuse else None
    attempt.finish(attempt.ending(_errand(store, orders, orders_key), fuse_age_s=age_s))
    return RESTARTS if attempt.restarts else 0


def _errand(store: Store, orders: Orders, orders_key: str) -> dict[str, Any]:
    return {"store": store.url, "orders": orders_key, "secrets": orders.job.secrets, "agent": os.getpid()}


def _await_orders(store: Store, key: str, *, patient: bool) -> bytes:
    """A node of a cloud may be asked for ahead of an eviction: it is there before its orders are, and has a lease."""
    while True:
        try:
            return persist(lambda: hear(store, key))
        except Missing:
            if not patient:
                raise
            time.sleep(_ORDERS_EVERY_S)


class Attempt:
    def __init__(self, store: Store, orders: Orders, machine: Machine) -> None:
        self.store = store
        self.orders = orders
        self.machine = machine
        self.folder = machine.folder
        self.folder.deepen(placing.levels_above(orders.job))
        self.trouble = Trouble()
        self.masking = Masking(machine.variables[name] for name in orders.job.secrets if name in machine.variables)
        self.stopping = Stopping()
        self.effort = EffortMeter(self.folder.toll)
        self.reporter = Reporter(store, orders, self.masking, self.trouble, self.effort)
        self.shipping = Shipping(store, orders, self.folder, self.masking, self.trouble)
        kept = self.folder.copies
        self.checkpoints = Checkpoints(
            store, orders, self.folder.work, self.shipping.progress, self.reporter.tell, copies=kept
        )
        self.keeper = Keeper(self.checkpoints, self.trouble, self.reporter.tell, self._fenced_off)
        self.effort.keeper, self.effort.step = self.keeper, lambda: self.shipping.progress()[0]
        self.effort.climbs = self.shipping.counters.climbs
        self.noticing = Noticing(self.folder, self.keeper, self.reporter.tell)
        self.noticing.hasten = self.shipping.hasten
        self.effort.idle_since = lambda: self.noticing.idle_since
        self.notices = NoticeBoard(self.noticing.see)
        self.door = Door(store, orders, self.folder, self.masking)
        self.fuse = NodeFuse(
            self.folder.fuse, self.keeper, partial(self.notices.post, "fuse"), self._blow, self.reporter.tell
        )
        heed = partial(self.notices.post, "server")
        self.wishes = WishWatch(store, orders, self.stopping, heed, self.door.see, self.fuse.hear)
        self.events = self._listen() if machine.events else None
        self.ranks = Ranks(self.folder, orders.key, machine.library)
        self.goal = Goal(orders.job.stop_when, self.folder.stop, self.reporter.tell)
        self.awaited: Awaited | None = None  # from the script's start
        self.out_of_memory = False
        self.needs_restart = False  # the machine, before it can be used
        self.restarts = False  # it does, as soon as everything is safe
        self.data: Staging | None = None
        self.code = frozenset[str]()  # paths that came with the snapshot
        self.started_ns = 0  # when the script was, by the clock that files are stamped with
        self.worked_s = 0.0  # on earlier machines of this attempt
        self.newest = ""  # of the restored checkpoints, in the working directory

    def continue_from(self, before: Report) -> None:
        """What an earlier machine of this attempt has done and said stands; what comes is added to it."""
        self.effort.continue_from(before.effort)
        prefix = layout.attempt(self.orders.run_id, self.orders.attempt)
        sizes = persist(lambda: {one.key: one.size_bytes for one in self.store.list(prefix)})
        self.shipping.continue_from(sizes)
        events = layout.events(self.orders.run_id, self.orders.attempt, self.orders.node)
        persist(lambda: self.reporter.continue_from(before, sizes.get(events, 0)))
        away_s = max((_now() - before.at).total_seconds(), 0.0)
        text = f"the machine was evicted while no server was there, and restored {away_s:.0f} s after its last word"
        self.reporter.tell("machine-restored", f"{text}: attempt {self.orders.attempt} resumes on it")

    def ending(self, errand: dict[str, Any], *, fuse_age_s: float | None = None) -> Ending:
        """Goes through the phases, and turns whatever happens on the way into an ending. `fuse_age_s` is how old the
        fuse of the orders is, where that is not to be guessed from the time a machine takes to boot."""
        try:
            self.folder.make(errand)
            self.stopping.heed_signals()
            if self.orders.fuse:
                age_s = age_by_date(self.orders.fuse.as_of, _now()) if fuse_age_s is None else fuse_age_s
                self.fuse.hear(self.orders.fuse, age_s)
            self.wishes.start()
            if self.events:
                self.events.start()
            self.unpack()
            self.door.open(environment(self.orders, self._bare_place()))
            self.stage()
            placing.place(self.folder.work, self.orders)
            place = self.prepare()
            self.door.open(environment(self.orders, place))
            self.await_ready()
            self.train(place)
            return self.judge()
        except Stopped:
            return Ending(self.stopping.outcome or Outcome.CANCELLED, None, self.stopping.message)
        except Exception as error:
            return _broken(error)

    def unpack(self) -> None:
        persist(self._unpack_code, self.stopping.check)
        job = self.orders.job
        for name in (job.outputs, *CheckpointPaths(job.checkpoints).folders):
            (self.folder.work / name).mkdir(parents=True, exist_ok=True)
        begun = time.monotonic()
        found = put_back(self.store, self.orders, self.folder, self.reporter.tell)
        self.checkpoints.begin_from(found)
        self.checkpoints.first = self.shipping.catch_up
        if found:
            self.shipping.begin_from(persist(self._carry_over, self.stopping.check))
        self.effort.restored(found, time.monotonic() - begun)
        self.newest = self._newest(found) if found and job.resume else ""
        self.stopping.check()

    def _newest(self, found: CheckpointSet) -> str:
        """What the script is told to resume from; it is told nothing where that is empty."""
        from stoker.agent.newest import newest  # here, because most scripts look for themselves

        path = newest(found, CheckpointPaths(self.orders.job.checkpoints), self.folder.work)
        if path:
            self.reporter.tell("resume", f"the script is told to resume from `{path}`")
        return path

    def _carry_over(self) -> Snapshot:
        return carry_over(self.store, self.orders, self.folder, self.reporter.tell)

    def _unpack_code(self) -> None:
        """Into an empty folder, whatever an earlier try left there."""
        remove_tree(self.folder.work)
        id, access = self.orders.snapshot, getattr(self.store, "access", None)
        route = access.route(layout.code(id)) if access else None
        if route and route.one:  # over a network it is one object, with a token of its own
            from stoker.stores.bundle import Bundle  # here, because most nodes are near their store

            bundle = Bundle(self.store, id)
            unpack(bundle, bundle.snapshot, self.folder.work)
            snapshot = bundle.snapshot
        else:
            snapshot = verified(self.store.get(layout.snapshot(id)), id)
            unpack(self.store, snapshot, self.folder.work)
        self.code = frozenset(entry.path for entry in snapshot.entries)

    def stage(self) -> None:
        """Brings the data that is not on this machine, and has the script told where it is."""
        if not self.orders.inputs:
            return
        from stoker.agent.data.staging import at_node  # here, because it is slow to import and most runs do without

        self.reporter.say(phase=Phase.STAGING)
        self.data = at_node(self.store, self.orders, self.machine, self.stopping, self.reporter.tell)
        self.folder.data.symlink_to(self.data.folder)
        self.ranks.helpers = lambda: self.data.helpers if self.data else set()
        self.reporter.live = self._figures
        places = placing.chosen(self.orders.job, self.data.stage())
        self.orders = replace(self.orders, data={**self.orders.data, **places})
        self.stopping.check()

    def await_ready(self) -> None:
        """A machine of a cloud may still be busy with itself when its agent has long begun."""
        if self.machine.ready_s:
            from stoker.agent import readiness  # here, because nodes nearby are always ready

            try:
                readiness.await_ready(self.orders.job, self.machine, self.stopping, self.reporter.tell)
            except readiness.NeedsRestart:
                self.needs_restart = True
                raise

    def prepare(self) -> Place:
        """Finds or builds the environment, and counts the ranks."""
        self.reporter.say(phase=Phase.PREPARING)
        orders, environ = self.orders, self.machine.variables
        processes = self._processes()
        self.shipping.start_log(orders.node * processes)
        python, imports = self._environment(self.folder.log(orders.node * processes))
        found = interpreter(python, self.folder, environ.get("PATH", ""))
        self.stopping.check()
        port = meeting.port(orders, processes)
        library = self.machine.library
        return Place(
            self.folder, python, found.bin, found.venv, imports, library, environ, processes, port, self.newest
        )

    def train(self, place: Place) -> None:
        """Runs the ranks to their end, whatever ends them."""
        job = self.orders.job
        to_start = commands(self.orders, place)
        kills_before = memory.kills()
        self.started_ns = time.time_ns()
        self.ranks.start(to_start)
        started = time.monotonic()
        self.awaited = awaited = Awaited(job, self.reporter.tell, time.monotonic)
        self.shipping.metrics.seen = self._saw
        self.shipping.start([command.rank for command in to_start], self.reporter.tell)
        self.keeper.start()
        self.reporter.live = self._figures
        if self.data:
            self.data.watch(self.ranks.script_pids)
            self.effort.waited_s = self._waited_s
        self.reporter.say(phase=Phase.RUNNING, started_at=self.reporter.started_at or _now())

        def each_time() -> None:
            self.goal.act(self.ranks, self.stopping)
            self.noticing.act(self.ranks)
            awaited.act()
            if job.time_limit and self.worked_s + time.monotonic() - started >= job.time_limit:
                limit = spell(job.time_limit)
                self.stopping.ask(Outcome.TIMED_OUT, f"the script was stopped after its time limit of {limit}")

        self.ranks.watch(self.stopping, each_time)
        self.door.shut("the script has ended")
        self.noticing.ended()
        if self.data:
            self.data.finish()
        ends = tuple(self.ranks.ends[rank] for rank in sorted(self.ranks.ends))
        self.reporter.say(phase=Phase.SAVING, ended_at=_now(), ranks=ends)
        self.out_of_memory = memory.kills() > kills_before
        left = self.ranks.sweep()
        if left and not self.ranks.asked_to_end:
            what = "1 process" if left == 1 else f"{left} processes"
            self.reporter.tell("left-behind", f"the script left {what} behind, which had to be ended")
        # What a script was writing when it failed may be half written; one that was told to end has had its say.
        done = all(end.exit_code == 0 for end in ends)
        self.keeper.trusted = done or (self.noticing.told and not self.ranks.killed)
        self.shipping.end()

    def judge(self) -> Ending:
        """How the ranks ended, once they have."""
        self.shipping.metrics.finish()  # the last point may be the one that reaches the target
        ends, failed = self.ranks.ends, self.ranks.first_failed
        if failed is not None:
            terminal, memory_ran_out = bool(self.orders.terminal), self.out_of_memory
            ending = by_itself(ends, failed, self._tail(failed), out_of_memory=memory_ran_out, terminal=terminal)
            return ending if ending.hint else replace(ending, hint=absent.hint(self._tail(failed), self.orders))
        if self.goal.reached and self.stopping.outcome in (None, Outcome.TARGET_REACHED):
            return Ending(Outcome.TARGET_REACHED, 0, str(self.goal))
        if self.noticing.told and self.stopping.outcome is None:
            code = max(exit_code(end) for end in ends.values())
            if code == 0 and self.noticing.finished:
                return Ending(Outcome.SUCCEEDED, 0, "the script finished before its node was taken away")
            if self.fuse.lit_at and not self.notices.posted("machine"):
                return Ending(Outcome.BUDGET_REACHED, code, f"the script saved and ended: {self.fuse.why}")
            return Ending(Outcome.EVICTED, code, "the script ended because of a notice of eviction")
        if self.stopping.outcome and self.ranks.asked_to_end:
            return Ending(self.stopping.outcome, exit_code(ends[min(ends)]), self.stopping.message)
        return Ending(Outcome.SUCCEEDED, 0)

    def finish(self, ending: Ending) -> None:
        """Everything into the store, then the final report: whoever reads it finds all that it speaks of."""
        self.wishes.finish()
        self.door.shut("the run has ended")
        if self.events:
            self.events.finish()
        for step in (self.ranks.sweep, self.keeper.finish, self.noticing.conclude, *self.shipping.steps()):
            try:
                step()
            except Exception as error:  # the others are carried out all the same
                ending = _broken(error)
        if self.started_ns and ending.outcome in stray.ENDS:
            ending = self._ship_stray(ending)
        self.fuse.finish(over=ending.outcome is Outcome.BUDGET_REACHED)
        kept_s = self.orders.job.keep_failed if ending.outcome in FAILURES else None

        def last_words() -> dict[str, Any]:
            ran_out = ending.outcome in (Outcome.SUCCEEDED, Outcome.TIMED_OUT)
            missing = self.awaited.missing() if self.awaited and ran_out else ""
            message = "; ".join(text for text in (ending.message, missing, str(self.trouble)) if text)
            said = {"message": self.masking.text(message), "hint": self.masking.text(ending.hint)}
            stays = {"stays": self._stays(ending)}
            return {"outcome": ending.outcome, "exit_code": ending.exit_code, **said, **stays}

        if kept_s:
            from stoker.agent.kept import keep  # here, because few runs fail, and fewer are kept

            self.reporter.finish(last_words)
            keep(self.store, self.orders, self.door, kept_s)
        try:
            self._release_data()
        except Exception as error:
            ending = _broken(error)
        os.chdir("/")  # out of the folder that is about to go
        with suppress(OSError):
            self.folder.clear()
            self.folder.access.unlink(missing_ok=True)
        if not kept_s:
            self.reporter.finish(last_words)
        self._restart(ending)

    def _ship_stray(self, ending: Ending) -> Ending:
        try:
            found = stray.find(self.folder.work, self.orders, self.code, self.started_ns)
            told = persist(lambda: stray.ship(self.store, self.orders, found))
        except Exception as error:
            return _broken(error)
        if told.names:
            names = tuple(self.masking.text(name) for name in told.names)
            self.reporter.say(stray=names, stray_files=told.files, stray_bytes=told.size_bytes)
            self.reporter.tell("stray", f"the script left files outside its outputs: {', '.join(names)}")
        return ending

    def _stays(self, ending: Ending) -> bool:
        """The machine is only restarted: the run can go on here."""
        if ending.outcome is not Outcome.EVICTED:
            return False
        told = self.notices.posted("machine")
        return self.stopping.stays or (self.stopping.outcome is None and told is not None and told.returns)

    def _restart(self, ending: Ending) -> None:
        """Whatever the machine has to be restarted for need wait no longer."""
        if not self._stays(ending) or self.events is None:
            return
        told = self.notices.posted("machine")
        self.restarts = True
        if told and told.returns:
            self.events.approve()
        elif self.needs_restart:
            from stoker.agent.readiness import restart  # here, because most machines need none

            restart(self.machine)

    def _release_data(self) -> None:
        if self.data:
            self.data.release()
            self.folder.data.unlink(missing_ok=True)

    def _figures(self) -> dict[str, Any]:
        """What a report says of what goes on all the time."""
        data = {"data": self.data.figures()} if self.data else {}
        kept = self.checkpoints.amounts()
        return {**self.shipping.figures(), **kept, **data, "save_s": round(self.fuse.measured_s, 3)}

    def _waited_s(self) -> float:
        """For its data, since the script started. Inputs share the moments in which it waited for any of them."""
        figures = self.data.figures().values() if self.data else ()
        return max((one.wait_s - one.stage_s for one in figures), default=0.0)

    def _bare_place(self) -> Place:
        """Before the environment is there: whoever looks in wants to know why it is not."""
        machine = self.machine
        return Place(self.folder, sys.executable, "", "", "", machine.library, machine.variables, 1, 0)

    def _listen(self) -> ScheduledEvents:
        from stoker.agent.scheduledevents import ScheduledEvents  # here, because only a cloud's node needs HTTP for it

        return ScheduledEvents(self.machine.events, self._warned, self.reporter.tell)

    def _warned(self, notice: Notice | None) -> None:
        """The machine itself was told: the server hears of it with the next report, and asks for another node."""
        if notice != self.notices.posted("machine"):
            self.notices.post("machine", notice)
            self.reporter.say(notice=notice)

    def _saw(self, point: Point, source: str) -> None:
        self.goal.see(point, source)
        if self.awaited:
            self.awaited.see(point)
        self.fuse.see(point)
        self.shipping.counters.see(point)

    def _blow(self, why: str) -> None:
        """The script has had its notice: what has not ended by now is killed."""
        self.ranks.grace_s = LAST_GRACE_S
        self.stopping.ask(Outcome.BUDGET_REACHED, f"stopped in time: {why}")

    def _fenced_off(self) -> None:
        self.stopping.ask(Outcome.CANCELLED, "a later attempt has taken over: this one may commit nothing more")

    def _processes(self) -> int:
        wanted = self.orders.job.processes
        if wanted != "gpus":
            return wanted
        found = gpus.count({**self.machine.variables, **self.orders.job.env})
        if not found:
            self.reporter.tell("gpus", "`processes: gpus` found no GPU on this node: one process is started")
        return found or 1

    def _environment(self, log: Path) -> tuple[str, str]:
        """The Python to use, and a folder to import from besides."""
        if self.orders.job.environment == Environment() and self.orders.software is None:
            return self.orders.python or sys.executable, ""
        from stoker.agent import preparing  # here, because it is slow to import and the other runs do without

        python, imports = preparing.prepare(self.orders, self.machine, log, self.stopping, self.reporter.tell)
        self.reporter.say(packages=preparing.packages(python))
        return python, imports

    def _tail(self, rank: int) -> bytes:
        with suppress(OSError), self.folder.log(rank).open("rb") as log:
            log.seek(max(log.seek(0, os.SEEK_END) - 4096, 0))
            return log.read()
        return b""


def _broken(error: Exception) -> Ending:
    """Of what was foreseen, the message; of anything else, a bug, the traceback too: in the agent's own log. A store
    that cannot be used is somebody's to repair: the run is tried again, on a machine that it gets once that is done."""
    if isinstance(error, StoreUnavailable | StoreDenied):
        return Ending(Outcome.CANCELLED, None, f"its store cannot be used: {error.message}", error.hint)
    if isinstance(error, Broken | StokerError):
        return Ending(Outcome.BROKEN, None, error.message, error.hint)
    sys.excepthook(type(error), error, error.__traceback__)
    if isinstance(error, OSError):
        return Ending(Outcome.BROKEN, None, f"the run could not be carried out on its node: {error}")
    return Ending(Outcome.BROKEN, None, f"the agent failed: {type(error).__name__}: {error}")


def _now() -> datetime:
    return datetime.now(UTC)
