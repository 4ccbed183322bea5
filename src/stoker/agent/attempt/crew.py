"""All workers of an attempt, created once, in order of their dependencies."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from stoker.agent.attempt.prepare import Inputs
from stoker.agent.attempt.reporting import EffortMeter, EventQueue, Reporter, Witnesses
from stoker.agent.checkpoints.commits import Checkpoints
from stoker.agent.checkpoints.keeper import Keeper
from stoker.agent.machine.fuse import NodeFuse
from stoker.agent.machine.machine import NodeMachine
from stoker.agent.notice.noticing import Awaited, Goal, NoticeBoard, Noticing
from stoker.agent.notice.stopping import Stopping, WishWatch
from stoker.agent.processes import launch
from stoker.agent.processes.ranks import LAST_GRACE_S, RankProcesses
from stoker.agent.shipping.logs import Masking
from stoker.agent.shipping.shipping import Shipping
from stoker.agent.shipping.worker import StoreTrouble
from stoker.agent.visits.visit import VisitDoor
from stoker.model.cause import Cause
from stoker.model.orders import Notice, Orders
from stoker.model.run.report import Outcome
from stoker.model.run.stacks import RankStacks, Standstill
from stoker.model.wire import dump
from stoker.stores import Store

if TYPE_CHECKING:
    from stoker.agent.attempt.gang import PeerWatch
    from stoker.agent.container.container import NodeContainer
    from stoker.agent.machine.cloud import CloudListener
    from stoker.agent.processes.doctor import HangDoctor

PEER_GRACE_S = 1.0  # for ranks to end whose peers are gone


class Crew:
    """None of them has started yet. The phases take what they need from here, so that each can be tested with
    replacements."""

    def __init__(self, store: Store, orders: Orders, machine: NodeMachine, ranks: RankProcesses | None = None) -> None:
        self.store, self.orders, self.machine = store, orders, machine
        self.folder = folder = machine.folder
        folder.deepen(launch.levels_above(orders.job))
        self.trouble = StoreTrouble()
        self.masking = Masking(machine.variables[name] for name in orders.job.secrets if name in machine.variables)
        events = EventQueue(self.masking)
        self.tell = tell = events.tell
        self.stopping = Stopping()
        self.inputs = Inputs(store, machine, self.stopping, tell)
        self.shipping = Shipping(store, orders, folder, self.masking, self.trouble, tell)
        self.checkpoints = Checkpoints(
            store, orders, folder, self.shipping.progress, tell, first=self.shipping.catch_up
        )
        self.keeper = Keeper(self.checkpoints, self.trouble, tell, self._fenced_off)
        self.noticing = Noticing(folder, self.keeper, tell, hasten=self.shipping.hasten)
        self.notices = NoticeBoard(self.noticing.see)
        self.container = self._container()
        self.ranks = ranks or RankProcesses(folder, orders.key, machine.library, self._helpers, self._container_is_up)
        self.fuse = NodeFuse(folder.fuse, self.keeper, partial(self.notices.post, "fuse"), self._blow, tell)
        self.effort = EffortMeter(folder.toll, self._witnesses())
        self.figures = ReportFigures(self.shipping, self.checkpoints, self.inputs, self.fuse)
        self.reporter = Reporter(store, orders, events, self.trouble, self.effort, self.figures.now)
        self.door = VisitDoor(store, orders, folder, self.masking, self._stacks)
        heed = partial(self.notices.post, "server")
        self.wishes = WishWatch(store, orders, self.stopping, heed, self.door.see, self.fuse.hear)
        self.peers = self._peers() if orders.nodes > 1 else None
        self.goal = Goal(orders.rung or orders.job.stop_when, folder.stop, tell)
        self.awaited = Awaited(orders.job, tell, time.monotonic)
        self.listener = self._listener()

    def _container_is_up(self) -> bool:
        return self.container is None or self.container.is_up

    def _container(self) -> NodeContainer | None:
        if not self.orders.job.environment.contained:
            return None
        from stoker.agent.container.container import NodeContainer  # here, because most runs have none

        return NodeContainer(self.machine, self.orders.key)

    def _helpers(self) -> set[int]:
        """Processes of the node that do not belong to the script."""
        return self.inputs.helpers | self.container.helpers if self.container else self.inputs.helpers

    def doctor(self, path: str, world: int) -> HangDoctor | None:
        """Watches the ranks once they run; None where nobody is to. `path` is the script's, `world` the number of ranks
        of the run. A script on a terminal may wait for a person."""
        job = self.orders.job
        if not job.hang or self.orders.terminal or sys.platform != "linux":
            return None
        from stoker.agent.processes.doctor import HangDoctor, Watched  # here, because the ranks already run by then
        from stoker.agent.processes.stacks import StackTaker

        watched = Watched(
            processes=self.ranks.pids_by_rank,
            marks=self._marks,
            at_rest=lambda: self.noticing.resting,
            take=StackTaker(self.folder.work, self.masking.text, path).take,
            ended=self._ended,
        )
        return HangDoctor(job.hang.after, watched, lambda seen: self.reporter.say(standstill=seen), alone=world == 1)

    def _stacks(self, path: str) -> bytes:
        """Where the ranks of this node are now, for `stoker stacks`."""
        from stoker.agent.processes.stacks import StackTaker  # here, because few people ask

        ranks = StackTaker(self.folder.work, self.masking.text, path).take(self.ranks.pids_by_rank())
        return dump(Standstill(datetime.now(UTC), 0.0, (*ranks, *self._ended())))

    def _ended(self) -> tuple[RankStacks, ...]:
        """The ranks of this node that have; any thread may ask."""
        return tuple(one.stacks for one in list(self.ranks.ends.values()))

    def _marks(self) -> object:
        """What changes whenever a rank prints, reports or saves something."""
        printed = {one.name: one.stat().st_size for one in self.folder.spool.glob("*.log")}
        reported = sum(one.count for one in self.shipping.metrics.summaries.now().values())
        return printed, reported, self.keeper.last_at

    def _listener(self) -> CloudListener | None:
        if not self.machine.events:
            return None
        from stoker.agent.machine.cloud import load_cloud  # here, because only a cloud's node has a plug-in

        return load_cloud(self.machine.cloud).listen(self.machine.events, self._warned, self.tell)

    def _peers(self) -> PeerWatch:
        from stoker.agent.attempt.gang import Channel, PeerWatch  # here, because most runs have one node

        return PeerWatch(Channel(self.store, self.orders), self.store, self.notices.post, self._left_alone)

    def _left_alone(self, why: str) -> None:
        """Its ranks wait for others that are gone: whatever they can save, they have saved."""
        self.ranks.grace_s = min(self.ranks.grace_s, PEER_GRACE_S)
        self.stopping.ask(Outcome.PEER_ENDED, why)

    def _witnesses(self) -> Witnesses:
        return Witnesses(
            newest=lambda: self.keeper.last,
            step=lambda: self.shipping.progress()[0],
            climbs=self.shipping.counters.climbs,
            waited_s=self.inputs.waited_s,
            idle_since=lambda: self.noticing.idle_since,
        )

    def _warned(self, notice: Notice | None) -> None:
        """The VM received an eviction notice: the server learns of it with the next report and requests another
        node."""
        if notice != self.notices.posted("machine"):
            self.notices.post("machine", notice)
            self.reporter.say(notice=notice)
            if self.peers:
                self.peers.warned(notice)

    def _blow(self, why: str) -> None:
        """The script has had its notice: kill what is still running."""
        self.ranks.grace_s = LAST_GRACE_S
        self.stopping.ask(Outcome.BUDGET_REACHED, f"stopped in time: {why}", Cause.FUSE_BLOWN)

    def _fenced_off(self) -> None:
        self.stopping.ask(
            Outcome.CANCELLED, "a later attempt has taken over: this one may not commit any more", Cause.FENCED
        )


class ReportFigures:
    """The fields of a report that change all the time, once they have values."""

    def __init__(self, shipping: Shipping, checkpoints: Checkpoints, inputs: Inputs, fuse: NodeFuse) -> None:
        self._shipping = shipping
        self._checkpoints = checkpoints
        self._inputs = inputs
        self._fuse = fuse
        self._begun = False  # until then the figures of an earlier VM of this attempt count

    def begin(self) -> None:
        self._begun = True

    def now(self) -> dict[str, Any]:
        if not self._begun:
            return {}
        shipped, kept = self._shipping.figures(), self._checkpoints.amounts()
        return {**shipped, **kept, **self._inputs.said(), "save_s": round(self._fuse.measured_s, 3)}
