"""What must hold where runs share clusters: no oversubscription, no starvation, no idle node beyond its time."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from stoker.engine.queue.clusters import busy, is_replaced
from stoker.engine.queue.order import UNDER_WAY, width
from stoker.model.orders import Wish
from stoker.model.run.run import Run, RunState
from stoker.testing.world.scenario import MishapKind

if TYPE_CHECKING:
    from stoker.testing.world.cloud import WorldMachine
    from stoker.testing.world.world import World

SLACK_S = 600.0  # for looks, saves and releases
STARVED_S = 7200.0  # without any node, while there is room: longer than every pause between two requests
RACE_S = 5.0  # what was decided before a cluster was paused may still start
IN_THE_WAY = (  # faults that keep the server from seeing an idle node, or from releasing it
    MishapKind.CRASH,
    MishapKind.CLOCK,
    MishapKind.BLIND,
    MishapKind.LOGGED_OUT,
    MishapKind.STOP_REFUSED,
    MishapKind.UNSEEN,
    MishapKind.STORE_HANGS,
    MishapKind.KEY_ROTATED,
    MishapKind.FULL_STORE,
    MishapKind.CUT_OFF,
    MishapKind.HANG,
    MishapKind.NO_CAPACITY,
    MishapKind.CLUSTER_PAUSED,
)
_HINDERS = tuple(one for one in IN_THE_WAY if one is not MishapKind.CLUSTER_PAUSED)


class PromiseBroken(Exception):
    """A promise was broken. `promise` names it; shrinking looks for the same one."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise


class SharingPromises:
    def __init__(self, world: World) -> None:
        self._world = world
        self._paused_at: dict[str, float] = {}  # by cluster
        self._unused_since: float | None = None  # runs wait, and none has a node

    def paused(self, name: str, *, paused: bool) -> None:
        if paused:
            self._paused_at.setdefault(name, self._world.timeline.now)
        else:
            self._paused_at.pop(name, None)

    def changed(self, before: Run | None, run: Run) -> None:
        """The facts of a run were saved."""
        self._is_idle(run)
        starts = run.state is RunState.STARTING and (before is None or before.state is RunState.QUEUED)
        if starts and self._paused_s(run.cluster) > RACE_S:
            raise PromiseBroken("a paused cluster starts nothing", f"{run.name} starts in {run.cluster}")

    def check(self) -> None:
        """After every event."""
        self._nothing_is_oversubscribed()
        self._nobody_starves()
        for name in self._world.clusters:
            self._nothing_idles_for_long(name)
            self._nothing_is_left_in_a_paused_cluster(name)

    def _is_idle(self, run: Run) -> None:
        """Also one that was released at once, to make room: it is not its run's any more."""
        for key in (one.key for one in run.idle if one.until is None):
            machine = self._world.cloud.machines.get(key)
            if machine and machine.idle_since is None:
                self._world.cloud.rest(machine, run.cluster)

    def _paused_s(self, cluster: str) -> float:
        now = self._world.timeline.now
        return now - self._paused_at.get(cluster, now)

    def _nothing_is_oversubscribed(self) -> None:
        """Neither a cluster nor a place with a known number of slots."""
        runs = self._world.server.saved.values()
        used = busy(list(runs))
        for name, cluster in self._world.clusters.items():
            idle = sum(len(run.waiting_nodes) for run in runs if run.cluster == name)
            if used[name] + idle > cluster.max_nodes:
                raise PromiseBroken("no oversubscription", f"{name} has {used[name]} busy and {idle} idle nodes")
            self._has_no_more_machines(name, cluster.max_nodes)
        room = self._world.slots[self._world.provider]
        under_way = sum(width(run, room) for run in runs if run.state in UNDER_WAY)
        if room is not None and under_way > room:
            raise PromiseBroken("no oversubscription", f"{under_way} of {room} slots are busy")

    def _has_no_more_machines(self, name: str, most: int) -> None:
        """Than its cluster may have, also of those that are being released; a node that is lost or about to be evicted
        has a replacement in its place. On this computer, an agent that has ended takes no room while it clears up."""
        if not self._world.sees_everything or not self._world.scenario.places:
            return
        saved = self._world.server.saved
        there = [
            machine.key
            for machine in self._world.cloud.machines.values()
            if machine.run in saved and saved[machine.run].cluster == name and not machine.off
            if not self._is_replaced(machine, saved[machine.run])
        ]
        if len(there) > most:
            raise PromiseBroken("no more nodes than the maximum", f"{name} may have {most}: {', '.join(there)}")

    def _is_replaced(self, machine: WorldMachine, run: Run) -> bool:
        agent = self._world.agents.get(machine.key)
        if agent and agent.notice and not agent.notice.drill:
            return True
        if run.attempt is None or run.state not in UNDER_WAY:
            return False
        mine = next((one for one in run.attempt.members if one.key == machine.key), None)
        return mine is not None and (machine.releasing or is_replaced(run.attempt, mine))

    def _nobody_starves(self) -> None:
        """While nothing runs, a run that waits for nothing but room gets it."""
        now, runs = self._world.timeline.now, self._world.server.saved.values()
        waits = [run for run in runs if run.state is RunState.QUEUED and run.wish is Wish.GO_ON]
        waits = [run for run in waits if run.cluster not in self._paused_at]
        if not waits or any(run.state in UNDER_WAY for run in runs):
            self._unused_since = None
        elif self._unused_since is None:
            self._unused_since = now
        elif now - self._unused_since > STARVED_S + self._in_the_way_s:
            names = ", ".join(run.name for run in waits)
            raise PromiseBroken("no starvation", f"{names} waits, and nothing runs: {waits[0].reason}")

    def _nothing_idles_for_long(self, name: str) -> None:
        now, cluster = self._world.timeline.now, self._world.clusters[name]
        idle = [one for one in self._world.cloud.machines.values() if one.idle_since is not None and not one.off]
        since = [one.idle_since for one in idle if one.account == name and not one.releasing and one.idle_since]
        slack_s = SLACK_S + self._in_the_way_s
        late = sum(now - one > cluster.idle_s + slack_s for one in since)
        if late > cluster.min_nodes:
            raise PromiseBroken("no idle node beyond its time", f"{late} nodes of {name} have idled for too long")
        if since and min(self._paused_s(name), now - min(since)) > slack_s:
            raise PromiseBroken("no idle node beyond its time", f"{name} is paused, and still has {len(since)} nodes")

    def _nothing_is_left_in_a_paused_cluster(self, name: str) -> None:
        saved, paused_s = self._world.server.saved, self._paused_s(name)
        faults_s = sum(one.seconds for one in self._world.scenario.mishaps if one.fault in _HINDERS)
        if paused_s <= SLACK_S + faults_s:
            return
        there = [
            machine.key
            for machine in self._world.cloud.machines.values()
            if machine.run in saved and saved[machine.run].cluster == name and not machine.off and not machine.releasing
        ]
        if there:
            raise PromiseBroken(
                "a paused cluster has no nodes", f"{name} has {', '.join(there)} after {paused_s:.0f} s"
            )

    @cached_property
    def _in_the_way_s(self) -> float:
        return sum(one.seconds for one in self._world.scenario.mishaps if one.fault in IN_THE_WAY)
