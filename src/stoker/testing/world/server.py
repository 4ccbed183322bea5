"""The server: looks, lets the engine decide, saves, then acts. A crash loses what it has not saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

from stoker.engine import looking, rounds
from stoker.engine.decision import Action, Decision, Land, Sighting, StartNode, StartSpare, StopNode, TellAgent
from stoker.engine.looking import Heard, Requests, gone_keys
from stoker.engine.money import fuse
from stoker.engine.nodes import lease, nodes
from stoker.engine.nodes.lease import node_of
from stoker.engine.nodes.nodes import GRACE_S
from stoker.engine.queue.clusters import ClusterFacts
from stoker.errors import Conflict, ProviderFailed, StokerError, StoreDenied
from stoker.model.node import Cluster, Need, NodeSight, Offer
from stoker.model.orders import Wish
from stoker.model.run.money import Fuse
from stoker.model.run.report import Report
from stoker.model.run.run import Attempt, Member, Run, RunState
from stoker.testing.world.gang import Word
from stoker.testing.world.scenario import moment

if TYPE_CHECKING:
    from stoker.testing.world.world import World

LOOK_S = 1.0  # from an event to the round that sees it
PATIENCE_S = 15.0
SOON_S, LATE_S = 5.0, 120.0  # between rounds while waiting for something without an event
RECOVERY_S = 60.0  # after a failure of the store, until silence counts again
REFUSED = StoreDenied("its store refuses the key")


class Crashed(Exception):
    """The process is gone, in the middle of its work."""


class WorldServer:
    def __init__(self, world: World) -> None:
        self._world = world
        self._timeline = world.timeline
        self._cloud = world.cloud
        self.saved: dict[str, Run] = {}  # the database
        self.up = True
        self.crash_in: int | None = None  # remaining steps of the next round before it dies
        self._wrong_s = 0.0  # error of the computer's clock when this server started
        self.clock_wrong_s = 0.0  # the same, now
        self._planned = float("inf")
        self._pause_s = SOON_S
        self._deaf = 0  # how many faults make the store unusable
        self._heard_from = 0.0  # silence counts from then on
        self._grace_s = 0.0 if world.scenario.lease_s else GRACE_S
        self._forget()

    def deafen(self, by: int) -> None:
        """The store becomes unusable from here, or usable again."""
        self._deaf += by
        self._heard_from = self._timeline.now + RECOVERY_S
        self.wake(LOOK_S if by > 0 else RECOVERY_S + PATIENCE_S + 1.0)
        self._world.stirred()

    def _forget(self) -> None:
        self._said: dict[str, Report | None] = {}  # by node key: the last report read
        self._unasked: dict[str, StokerError] = {}  # by node key: why its orders could not be written
        self._since = self._timeline.now
        self._wrong_s = self.clock_wrong_s
        self._told: dict[str, float] = {}
        self._trouble: dict[str, StokerError] = {}
        self._unclaimed: dict[str, float] = {}

    @property
    def now(self) -> datetime:
        return moment(self._timeline.now + self._wrong_s)

    def add(self, run: Run) -> None:
        self.saved[run.id] = run

    def change(self, run_id: str, how: Callable[[Run], Decision]) -> None:
        """A user's request; refused where it is not possible."""
        with suppress(Conflict):
            self.saved[run_id] = how(self.saved[run_id]).run

    def cluster_changed(self, cluster: Cluster) -> None:
        """It is looked up in every round."""

    def crash_soon(self, where: int, seconds: float) -> None:
        """After so many steps of its next round."""
        self._world.crash_s, self.crash_in = seconds, where
        self.wake(0.0)

    def wake(self, seconds: float = LOOK_S) -> None:
        """A round, no later than this."""
        when = self._timeline.now + seconds
        if self.up and when < self._planned:
            self._planned = when
            self._timeline.at(when, lambda: self._round(when))

    def catch_up(self) -> None:
        """What a server with a round every few seconds has seen and saved by now. The world skips rounds in which
        nothing happens until the time of the last one matters."""
        if self.up and self.crash_in is None:
            self._look_decide_save_act()

    def crash(self, seconds: float) -> None:
        self._world.note(f"the server crashes, and is back in {seconds:.0f} s")
        self.up, self.crash_in, self._planned = False, None, float("inf")
        self._world.leases.renew({})
        self._timeline.after(seconds, self._start)

    def _start(self) -> None:
        self.up = True
        self._forget()
        self.wake(0.0)

    def _step(self) -> None:
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in < 0:
                raise Crashed

    def _round(self, when: float) -> None:
        if not self.up or when != self._planned:
            return None
        self._planned = float("inf")
        try:
            changed = self._look_decide_save_act()
        except Crashed:
            return self.crash(self._world.crash_s)
        if self.crash_in is not None:
            return self.crash(self._world.crash_s)
        return self._plan(changed=changed)

    def _look_decide_save_act(self) -> bool:
        try:
            sights = self._cloud.look()
        except ProviderFailed:
            self._world.leases.renew({})
            return False
        self._step()
        runs = [run for run in self.saved.values() if run.tended]
        seen = {run.id: self._sighting(run, sights) for run in runs if not rounds.untouched(run)}
        market: dict[tuple[str, Need], Sequence[Offer]] = {}
        for run in runs:
            market.update(self._cloud.market(run.job, run.pool))
        pools = ClusterFacts(self._world.clusters, {self._world.provider} if self._world.features.warm else ())
        decisions = rounds.decide(runs, seen, rounds.Scene(self._world.slots, self.now, market, clusters=pools))
        self._step()
        return self._carry_out(decisions, sights)

    def _carry_out(self, decisions: list[Decision], sights: list[NodeSight]) -> bool:
        """Saves first, then acts."""
        changed = self._save(decisions)
        self._step()
        actions = [action for decision in decisions for action in decision.actions]
        self._act([*actions, *self._leftovers(sights)])
        return changed

    def _save(self, decisions: list[Decision]) -> bool:
        """True if there is an event; a node that still exists is none."""
        for decision in decisions:
            if decision.run != self.saved[decision.run.id]:
                self.saved[decision.run.id] = decision.run
                for event in decision.events:
                    self._world.note(f"{decision.run.name}: {event.text}")
        return any(decision.events for decision in decisions)

    def _act(self, actions: list[Action]) -> None:
        told = [one for one in actions if isinstance(one, TellAgent)]
        self._world.leases.renew(
            {
                member.key: self._lease_s(one.run, member, one.fuse)
                for one in told
                for member in _newest(one.run).members
            }
        )
        for action in actions:
            self._perform(action)
            self._step()

    def _perform(self, action: Action) -> None:
        match action:
            case StopNode(_, key):
                self._stop(key)
            case Land():
                raise AssertionError("no run here has outputs")
            case StartSpare(run):
                for ahead in lease.ahead(run):
                    self._start_ahead(ahead, run, action.fuse)
            case StartNode(run) | TellAgent(run):
                for member in _newest(run).members:
                    self._address(run, member, action)

    def _start_ahead(self, ahead: Member, run: Run, fuse: Fuse | None) -> None:
        if self._deaf:
            self._unasked[ahead.key] = REFUSED
            return
        self._unasked.pop(ahead.key, None)
        self._start_node(run, ahead, fuse, lease.idle(self._world.features))

    def _address(self, run: Run, member: Member, action: StartNode | TellAgent) -> None:
        """One node of an action for all."""
        match action:
            case StartNode() if self._deaf:
                self._unasked[member.key] = REFUSED
            case TellAgent() if self._deaf:
                if run.wish is Wish.CANCEL:
                    self._told.setdefault(member.key, self._timeline.now)
            case StartNode():
                self._unasked.pop(member.key, None)
                self._order(run, member)
                self._start_node(run, member, action.fuse, self._lease_s(run, member, action.fuse))
            case TellAgent():
                self._tell(run, member, action)

    def _order(self, run: Run, member: Member) -> None:
        self._world.shelf(run.id, member.node).orders.add(member.number)
        if agent := self._world.agents.get(member.key):
            agent.begin()

    def _lease_s(self, run: Run, member: Member, fuse: Fuse | None) -> float:
        told = fuse or self._world.shelf(run.id, member.node).word(member.number).fuse
        return lease.lease_s(run, member, told, self._world.features, self.now)

    def _start_node(self, run: Run, attempt: Member, fuse: Fuse | None, lease_s: float) -> None:
        try:
            self._cloud.start(attempt.key, run.id, attempt.offer, fuse, lease_s)
        except ProviderFailed as error:
            self._world.note(f"{attempt.key} could not be started: {error.message}")
            self._trouble[attempt.key] = error
            self.wake()

    def _tell(self, run: Run, attempt: Member, action: TellAgent) -> None:
        gang = _newest(run)
        heard = [one.notice for one in gang.members if one.notice and (one.notice.drill or one.node != attempt.node)]
        notice = min(heard, key=lambda one: one.deadline, default=None)
        shelf = self._world.shelf(run.id, attempt.node)
        word = Word(run.wish, notice, action.fuse, broken=gang.broken_at is not None)
        if run.wish is Wish.CANCEL:
            self._told.setdefault(attempt.key, self._timeline.now)
        before = shelf.word(attempt.number)
        word.fuse = word.fuse or before.fuse
        if word.fuse != before.fuse:
            shelf.told_at[attempt.number] = self._timeline.now
        if word != before:
            shelf.words[attempt.number] = word
            if agent := self._world.agents.get(attempt.key):
                agent.hear()

    def _stop(self, key: str) -> None:
        try:
            self._cloud.stop(key)
        except ProviderFailed:
            if self._is_over(key):
                self._world.leases.cut(key)
            return
        self._told.pop(key, None)
        self._trouble.pop(key, None)

    def _is_over(self, key: str) -> bool:
        attempts = self.saved[node_of(key)[0]].attempts
        return any(member.key == key and member.state.over for one in attempts for member in one.members)

    def _sighting(self, run: Run, sights: list[NodeSight]) -> Sighting:
        now = self._timeline.now
        heard = {one.key: self._heard(one.key) for one in (run.attempt.members if run.attempt else ())}
        requests = Requests(self._trouble, self._unasked, (), {key: now - told for key, told in self._told.items()})
        return looking.sighting(run, sights, gone_keys([run], sights), heard, requests, self._world.features)

    def _heard(self, key: str) -> Heard:
        agent, deaf = self._world.agents.get(key), bool(self._deaf)
        return Heard(
            report=self._read(key),
            silent_s=self._silent_s(agent.reports.silent_since if agent else None),
            deaf=deaf or self._timeline.now < self._heard_from,
            said_at=moment(agent.ended_at + self._wrong_s) if agent and agent.ended_at is not None else None,
            in_full=not deaf,
            trouble="the store refuses the key" if deaf else "",
        )

    def _read(self, key: str) -> Report | None:
        agent = self._world.agents.get(key)
        if not self._deaf:
            self._said[key] = agent.reports.said() if agent else None
        return self._said.get(key)

    def _silent_s(self, since: float | None) -> float:
        """Silence counts only while the store answers."""
        if since is None or self._deaf:
            return 0.0
        return max(self._timeline.now - max(since, self._since, self._heard_from), 0.0)

    def _leftovers(self, sights: list[NodeSight]) -> list[StopNode]:
        seen = {self._world.provider: sights}
        needed = nodes.needed([run for run in self.saved.values() if run.tended], seen)
        now = self._timeline.now
        self._unclaimed = {one.key: self._unclaimed.get(one.key, now) for one in sights if one.key not in needed}
        if not self._unclaimed:
            return []
        ages = {key: now - since for key, since in self._unclaimed.items()}
        return nodes.release_unneeded(seen, needed, ages, seen if self._world.scenario.lease_s else ())

    def _plan(self, *, changed: bool) -> None:
        """The next round: soon after a change, later and later without one."""
        self._pause_s = SOON_S if changed else min(2 * self._pause_s, LATE_S)
        if waits := list(self._waits()):
            self.wake(min(waits))

    def _waits(self) -> Iterator[float]:
        """How long until something is due that has no event."""
        if self._unclaimed:
            unclaimed_s = self._timeline.now - min(self._unclaimed.values())
            yield max(self._grace_s - unclaimed_s, LOOK_S) if unclaimed_s < self._grace_s else self._pause_s
        for run in self.saved.values():
            yield from self._idle_waits(run)
            if not run.open or run.state is RunState.PAUSED:
                continue
            attempt = run.attempt
            warned = attempt and any(one.notice for one in attempt.members)
            calm = run.state is RunState.RUNNING and attempt and not warned and not attempt.fused
            calm = calm and not attempt.broken_at and run.width == run.job.most_nodes if attempt else False
            if not calm or run.wish is Wish.CANCEL or run.job.deadline or run.budget is not None:
                yield self._pause_s
            if attempt and (due := attempt.fused or attempt.notice):
                yield max((due.deadline - self.now).total_seconds(), SOON_S)
            if run.costing and (allowance := fuse.own(run)):
                left_s = fuse.left_s(run, allowance, self.now) - fuse.save_s(run)
                yield left_s + LOOK_S if left_s > 0 else self._pause_s

    def _idle_waits(self, run: Run) -> Iterator[float]:
        for one in run.idle:
            cluster = self._world.clusters.get(run.cluster)
            if one.until is None and cluster:
                left_s = cluster.idle_s - (self.now - one.since).total_seconds()
                yield left_s + LOOK_S if left_s > 0 and not one.released else self._pause_s


def _newest(run: Run) -> Attempt:
    return run.attempts[-1]
