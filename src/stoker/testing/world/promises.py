"""What must always hold: the promises of the engine, also where runs share clusters, checked after every step."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from stoker.engine.money import meter
from stoker.engine.nodes.lease import spare_key, spare_keys
from stoker.engine.patience import MOST_LOST, was_lost, without_progress
from stoker.engine.queue.clusters import busy, is_replaced
from stoker.engine.queue.order import UNDER_WAY, width
from stoker.model import snapshot
from stoker.model.orders import Wish
from stoker.model.run.report import Outcome
from stoker.model.run.run import Attempt, AttemptState, Member, Run, RunState
from stoker.testing.world.cloud import DEAR, WorldMachine
from stoker.testing.world.gang import Set, WorldShelf
from stoker.testing.world.pacing import RequestPace
from stoker.testing.world.scenario import MishapKind

if TYPE_CHECKING:
    from stoker.testing.world.agent import Agent
    from stoker.testing.world.gang import WorldGang
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


LEAP_S = 5.0  # until a changed price is seen
LEAVING_S = 60.0  # for a node whose lease has expired to save and be gone
SMALLEST_USD = 1e-5  # a thousandth of a cent: clocks count microseconds


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
        if run.attempt is None or run.state not in (*UNDER_WAY, RunState.QUEUED):
            return False
        mine = next((one for one in run.attempt.members if one.key == machine.key), None)
        if run.state is RunState.QUEUED:  # its next attempt begins with the node that was requested for a lost one
            return mine is not None and mine.spare is not None and is_replaced(run.attempt, mine)
        if machine.key in {spare_key(run, one) for one in run.attempt.members if one.notice is None}:
            return True  # the notice that it was requested at was withdrawn just now
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


class Promises:
    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[str, Run] = {}  # at the last check
        self._keys: dict[str, set[str]] = {}  # by run: of all nodes that its facts have ever named
        self.sharing = SharingPromises(world)
        self._pacing = RequestPace(len(world.scenario.places), len(world.scenario.mishaps))

    def check(self) -> None:
        """After every event."""
        for run in self._world.server.saved.values():
            if self._known.get(run.id) is not run:
                self._changed(run)
                self._known[run.id] = run
            if run.budget is not None and self._world.sees_everything:  # hidden costs cannot be counted
                self._within_budget(run)
        if self._world.sees_everything:
            self._one_at_a_time()
        if self._world.clusters:
            self.sharing.check()

    def made(self, machine: WorldMachine) -> None:
        """A billed resource is recorded before it is requested."""
        run = self._world.server.saved[machine.run]
        if machine.key not in self._named(run):
            raise PromiseBroken(
                "saved before it acts", f"{machine.key} was created, but {run.name} has no record of it"
            )

    def goes_on(self, run: str, shelf: WorldShelf, found: Set | None) -> None:
        """An attempt takes over: from what the newest attempt with the right to commit had committed."""
        if found != shelf.head:
            promise = "one writer" if found and found.position not in _up_to(shelf) else "nothing is lost"
            raise PromiseBroken(promise, f"an attempt of {run} resumes from {found} instead of {shelf.head}")

    def gang_resumes(self, agents: Collection[Agent], found: Mapping[int, Set | None]) -> None:
        """All nodes resume from one step: the newest that all of them had committed."""
        steps = {one.done_s if one else 0.0 for one in found.values()}
        common = set.intersection(*({one.done_s for one in agent.shelf.rightful} for agent in agents))
        if steps != {max(common, default=0.0)}:
            raise PromiseBroken("same bits", f"nodes resume from {steps} s of work, of {sorted(common)} in common")

    def committed(self, run: str, shelf: WorldShelf, made: Set) -> None:
        """A commit of an attempt after another has taken over must never count."""
        if shelf.head is not made and made.position in snapshot.visible(shelf.sets, shelf.fences):
            raise PromiseBroken("one writer", f"{made} of {run} counts, though a later attempt has taken over")

    def lease_is_over(self, machine: WorldMachine) -> None:
        until = machine.lease_until
        self._world.timeline.after(LEAVING_S, lambda: self._has_left(machine, until))

    def at_the_end(self) -> None:
        """There have been no faults for a long time."""
        for run in self._world.server.saved.values():
            if not run.state.ended:
                raise PromiseBroken("one end", f"{run.name} is still {run.state}: {run.reason}")
            if run.state is RunState.SUCCEEDED:
                self._all_is_done(run)
            if not _right(run):
                raise PromiseBroken("the right end", f"{run.name} ended as {run.state} ({run.reason}): {run.attempts}")
            bill, reckoned = self._world.cloud.bill(run.id), float(meter.spent(run, self._world.server.now))
            if self._world.sees_everything and reckoned < bill - self._hidden_usd(run):
                raise PromiseBroken("the meter", f"{run.name} cost ${bill:.9f}, but the meter shows ${reckoned:.9f}")
        if self._world.cloud.machines:
            raise PromiseBroken("nothing is left", f"{', '.join(self._world.cloud.machines)} still exist")

    def _changed(self, run: Run) -> None:
        before = self._known.get(run.id)
        if before and before.state.ended and _end(before) != _end(run):
            raise PromiseBroken("one end", f"{run.name} had ended as {before.state} and is now {run.state}")
        self._keys.setdefault(run.id, set()).update(self._named(run))
        self._has_a_wanted_width(run)
        self._waits_between_requests(run)
        self.sharing.changed(before, run)
        self._no_healthy_node_is_lost(before, run)
        if run.state is RunState.PAUSED:
            self._world.paused(run)

    def _has_a_wanted_width(self, run: Run) -> None:
        """Never below the minimum or above the maximum of its job, also with the nodes that it asks for to grow."""
        if run.attempt is None:
            return
        nodes, more = len(run.attempt.members), len(run.attempt.growth)
        if not run.job.least_nodes <= nodes <= nodes + more <= run.job.most_nodes:
            what = f"{run.name} has {nodes} nodes and asks for {more} more: nodes {run.job.nodes}"
            raise PromiseBroken("as many nodes as the job says", what)

    def _waits_between_requests(self, run: Run) -> None:
        """What is refused again and again brings no work, and a cloud throttles whoever asks too often."""
        if refused := self._pacing.too_many(run, self._world.timeline.now):
            what = f"{refused} requests of {run.name} were refused within an hour, at most {self._pacing.most} are due"
            raise PromiseBroken("paced requests", what)

    def _all_is_done(self, run: Run) -> None:
        """Whatever the number of nodes was: the same work is saved."""
        plan, made = self._world.scenario.plans[int(run.id, 16)], self._world.shelf(run.id).head
        if made is None or abs(made.done_s - plan.work_s) > 1e-6:
            raise PromiseBroken("the whole work", f"{run.name} succeeded with {made}, of {plan.work_s} s")

    def _no_healthy_node_is_lost(self, before: Run | None, run: Run) -> None:
        """Whatever the store does: a node whose reports only the store prevents is not given up for silence."""
        for newest in run.attempt.members if run.attempt else ():
            was = next((one for one in (before.members if before else ()) if one.key == newest.key), None)
            self._is_not_lost(was, run, newest)

    def _is_not_lost(self, was: Member | None, run: Run, newest: Member) -> None:
        agent = self._world.agents.get(newest.key)
        if not agent or not agent.reports.healthy:
            return
        shelf = self._world.shelves[run.id]
        if shelf.full > shelf.hung:  # it cannot even write its first report
            return
        if was and was.state.over:
            return
        if newest.state is AttemptState.LOST and newest.message.startswith(("no heartbeat", "its node was there")):
            raise PromiseBroken("no healthy node is lost", f"{newest.key} of {run.name}: {newest.message}")

    def _named(self, run: Run) -> set[str]:
        named = {member.key for member in run.members} | set(spare_keys(run))
        return named | self._keys.get(run.id, set())

    def _within_budget(self, run: Run) -> None:
        bill = self._world.cloud.bill(run.id)
        if run.budget is not None and bill > float(run.budget) and bill > float(run.budget) + self._hidden_usd(run):
            raise PromiseBroken("the budget", f"{run.name} may cost ${run.budget}, but has cost ${bill:.6f}")

    def _hidden_usd(self, run: Run) -> float:
        """What cannot be known in time, of each of its nodes: how long a server was down whose clock was changed
        meanwhile, and a price that changes between looks, or while a machine saves and is released."""
        return SMALLEST_USD + run.job.most_nodes * self._hidden_of_a_node_usd

    @cached_property
    def _hidden_of_a_node_usd(self) -> float:
        scenario = self._world.scenario
        dearest = max((float(place.usd_per_hour) for place in scenario.places), default=0.0) * float(DEAR)
        away = {fault: sum(one.seconds for one in scenario.mishaps if one.fault is fault) for fault in MishapKind}
        leaving_s = max(plan.save_s for plan in scenario.plans) + scenario.release_s + LEAP_S
        blind_s = sum(
            away[one]
            for one in (MishapKind.BLIND, MishapKind.LOGGED_OUT, MishapKind.STORE_HANGS, MishapKind.KEY_ROTATED)
        )
        unseen_s = blind_s + away[MishapKind.CRASH] + leaving_s if away[MishapKind.DEAR] else 0.0
        handed_over_s = LEAP_S if scenario.clusters else 0.0  # until it is saved that a machine is idle
        return (away[MishapKind.CLOCK] + unseen_s + handed_over_s) * dearest / 3600

    def _one_at_a_time(self) -> None:
        """No two attempts of a run work, nor two nodes in one place of a gang."""
        busy: dict[str, tuple[int, set[int]]] = {}
        for agent in self._world.agents.values():
            if agent.alive and agent.script.works and not agent.machine.releasing:
                number, nodes = busy.setdefault(agent.machine.run, (agent.number, set()))
                if number != agent.number or agent.node in nodes:
                    raise PromiseBroken("one at a time", f"{agent.machine.run} runs twice")
                nodes.add(agent.node)
        for gang in self._world.gangs:
            if gang.script.works:
                self._is_whole(gang)

    def _is_whole(self, gang: WorldGang) -> None:
        """A step needs every node, on a machine that is there, in the same attempt."""
        there = {
            agent.node
            for agent in gang.agents.values()
            if agent.alive and not agent.hung and agent.outcome is None and not agent.machine.off
        }
        numbers = {agent.number for agent in gang.agents.values()}
        if len(there) < gang.nodes or len(numbers) > 1:
            raise PromiseBroken("no half gang works", f"nodes {sorted(there)} of {gang.nodes} work without the others")

    def _has_left(self, machine: WorldMachine, until: float) -> None:
        if machine.lease_until == until and not machine.off:
            late_s = self._world.timeline.now - until
            raise PromiseBroken(
                "nothing outlives its lease", f"{machine.key} is still billed {late_s:.0f} s after its lease"
            )


def _end(run: Run) -> tuple[RunState, list[Attempt]]:
    """Everything but the bill: how an attempt spent its time may be reported later, by an unreachable machine."""
    return run.state, [replace(one, effort=None) for one in run.attempts]


def _up_to(shelf: WorldShelf) -> set[tuple[int, int]]:
    """Positions of sets that were committed before the newest one with the right to commit."""
    return {position for position in shelf.sets if shelf.head and position <= shelf.head.position}


def _right(run: Run) -> bool:
    """The end follows from the reports of the attempts."""
    outcomes = [attempt.outcome for attempt in run.attempts if attempt.outcome]
    lost = sum(was_lost(attempt) for attempt in without_progress(run))
    match run.state:
        case RunState.SUCCEEDED:
            return outcomes[-1:] == [Outcome.SUCCEEDED] and run.exit_code == 0
        case RunState.CANCELLED:
            return run.wish is Wish.CANCEL and Outcome.SUCCEEDED not in outcomes
        case RunState.FAILED:
            failures = outcomes.count(Outcome.FAILED)
            tried = failures > run.job.retries or run.wish is Wish.CANCEL
            return run.exit_code != 0 and (lost >= MOST_LOST or (failures > 0 and tried))
    return False
