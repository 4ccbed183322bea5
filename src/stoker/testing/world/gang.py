"""What agents share: the store of a run, the script, how the nodes of a gang meet, and what each has reported."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from stoker import stores
from stoker.model import snapshot
from stoker.model.orders import Notice, Wish
from stoker.model.run.money import Fuse
from stoker.model.run.report import GOOD, Effort, Kept, Outcome, Phase, Report
from stoker.model.snapshot import Fence, Position
from stoker.testing.world.scenario import RunPlan, Timeline

if TYPE_CHECKING:
    from stoker.testing.world.agent import Agent
    from stoker.testing.world.world import World


HEARD_S = 1.0  # until a message of a peer is read
FAILED_S = 0.1  # until the ranks of its peers fail, where they notice
STALE_S = stores.FAR.lazy_s + 1.0  # the oldest reading that a server decides upon: a look, and the round after it


class WorldScript:
    def __init__(self, timeline: Timeline, work_s: float) -> None:
        self._timeline = timeline
        self.work_s = work_s
        self._base_s = 0.0  # work done when it last started or changed
        self._since: float | None = None  # None: it is stopped
        self._speed = 1.0

    @property
    def works(self) -> bool:
        return self._since is not None

    @property
    def done_s(self) -> float:
        if self._since is None:
            return self._base_s
        return min(self._base_s + (self._timeline.now - self._since) * self._speed, self.work_s)

    @property
    def ends_in_s(self) -> float:
        return (self.work_s - self.done_s) / self._speed

    def restore(self, done_s: float) -> None:
        self._base_s = done_s

    def go(self) -> None:
        self._base_s, self._since = self.done_s, self._timeline.now

    def stop(self) -> None:
        self._base_s, self._since = self.done_s, None

    def slow_down(self, factor: float) -> None:
        """Also of a stopped one: it is slower when it continues."""
        done_s, going = self.done_s, self.works
        self._base_s, self._since = done_s, self._timeline.now if going else None
        self._speed *= factor


@dataclass(frozen=True, slots=True)
class Set:
    """A checkpoint: the amount of work in it."""

    position: Position
    done_s: float


@dataclass(slots=True)
class Word:
    """The server's message to a node of an attempt."""

    wish: Wish = Wish.GO_ON
    notice: Notice | None = None
    fuse: Fuse | None = None
    broken: bool = False  # another node of its gang has ended


class RunShelf:
    """One for each run, with a part for each of its nodes."""

    def __init__(self, nodes: int = 1) -> None:
        self.full = 0  # how many faults prevent writes
        self.hung = 0  # how many of those prevent reads, too
        self.failures = 0  # attempts that ended with the script's own failure
        self.parts = [WorldShelf(self) for _ in range(nodes)]


@dataclass(slots=True)
class WorldShelf:
    run: RunShelf
    orders: set[int] = field(default_factory=set)  # of attempts
    words: dict[int, Word] = field(default_factory=dict)
    told_at: dict[int, float] = field(default_factory=dict)  # by attempt: when its budget was sent
    begun: set[int] = field(default_factory=set)  # attempts with a first report: each starts once
    sets: dict[Position, Set] = field(default_factory=dict)
    fences: list[Fence] = field(default_factory=list)
    head: Set | None = None  # the true newest set of an attempt with the right to commit
    rightful: list[Set] = field(default_factory=list)  # all of those, up to the one that was last resumed from

    @property
    def full(self) -> int:
        return self.run.full

    def is_fenced(self, attempt: int, incarnation: int = 1) -> bool:
        return snapshot.fenced(attempt, self.fences, incarnation)

    def is_superseded(self, attempt: int) -> bool:
        """A later one has taken over."""
        return any(fence.attempt > attempt for fence in self.fences)

    def take_over(self, attempt: int, incarnation: int = 1) -> Set | None:
        """Raises the fence of an attempt: what it resumes from, as `agent/checkpoints/restoring.py` does."""
        self.fences.append(snapshot.claim(attempt, incarnation))
        return self.restore(attempt, incarnation)

    def restore(self, attempt: int, incarnation: int = 1, until: float = math.inf) -> Set | None:
        """The newest set with no more work than that. Nodes of a gang agree on one that all have."""
        known = [one for one in snapshot.visible(self.sets, self.fences) if self.sets[one].done_s <= until]
        found = self.sets[known[0]] if known else None
        mine = Fence(attempt, *(found.position if found else (0, 0)), incarnation)
        self.fences = [mine if one.author == mine.author else one for one in self.fences]
        return found

    def resumed(self, found: Set | None) -> None:
        """Every node of a gang resumes from this one, or from nothing: what lies behind it no longer counts."""
        self.head = found
        self.rightful = [one for one in self.rightful if found and one.done_s <= found.done_s]

    def commit(self, made: Set) -> None:
        self.sets[made.position] = made
        if not snapshot.fenced(made.position[0], self.fences, snapshot.author(made.position)[1]):
            self.head = made
            self.rightful.append(made)

    def word(self, attempt: int) -> Word:
        return self.words.get(attempt) or Word()


class WorldGang:
    def __init__(self, world: World, plan: RunPlan, run: str, number: int) -> None:
        self._world = world
        self._timeline = world.timeline
        self.plan = plan
        self._run, self._number = run, number
        self.script = WorldScript(world.timeline, plan.work_s)
        self.agents: dict[int, Agent] = {}  # by node: those that are ready
        self.at_work: set[int] = set()  # nodes whose ranks run
        self.went = False  # all have met
        self._ended: dict[int, Outcome] = {}  # as they told each other
        self._warned: set[int] = set()  # nodes with a notice
        self._life = 0

    @property
    def nodes(self) -> int:
        """Known once its attempt is: a node may be requested before."""
        return len(self._world.server.saved[self._run].attempts[self._number - 1].members)

    def ready(self, agent: Agent) -> None:
        """A node has its checkpoint. When the last one is ready, they agree on one and start."""
        self.agents[agent.node] = agent
        if self.went:
            return agent.start_ranks()
        if len(self.agents) < self.nodes:
            return None
        done_s = self._agreed()
        self.went = True
        self.script.restore(done_s)
        self.script.slow_down(self.nodes / self.plan.job.most_nodes)  # fewer nodes do the same steps
        self._world.note(f"the {self.nodes} nodes of {agent.machine.run} resume from {done_s:.0f} s of work")
        for one in self.agents.values():
            one.start_ranks()
        return None

    def join(self, node: int) -> None:
        self.at_work.add(node)
        if len(self.at_work) == self.nodes:
            self.script.go()
            self._plan()

    def leave(self, node: int) -> None:
        """Its ranks do nothing for now, or for good: nobody does a step."""
        self.at_work.discard(node)
        self.script.stop()
        self._life += 1

    def slow_down(self, factor: float) -> None:
        """All wait for the slowest."""
        self.script.slow_down(factor)
        self._life += 1
        if self.script.works:
            self._plan()

    def died(self, node: int) -> None:
        """Its machine is gone: ranks of its peers notice, or wait for it."""
        if self.plan.peers_fail and node in self.agents:
            self._timeline.after(FAILED_S, partial(self._fail, node))

    def ended(self, node: int, outcome: Outcome) -> None:
        """It tells its peers why it has ended. They need not be told of a good end."""
        if outcome in (*GOOD, Outcome.PEER_ENDED):
            return
        self._ended[node] = outcome
        self._timeline.after(HEARD_S, self._tell)
        self.died(node)

    def warned(self, node: int, *, given: bool) -> None:
        (self._warned.add if given else self._warned.discard)(node)
        self._timeline.after(HEARD_S, self._tell)

    def hear(self, agent: Agent) -> None:
        """What its peers have told it, if it can read that."""
        if not agent.reads:
            return
        if self._warned - {agent.node}:
            agent.heed()
        if self._ended.keys() - {agent.node}:
            agent.end(Outcome.PEER_ENDED)

    def _tell(self) -> None:
        for agent in list(self.agents.values()):
            self.hear(agent)

    def _fail(self, node: int) -> None:
        for one in list(self.agents.values()):
            if one.node != node and one.node in self.at_work:
                one.lose_peer()

    def _agreed(self) -> float:
        """The newest checkpoint that every node has which saves any; the others read those of the first."""
        savers = [one for one in self.agents.values() if one.saves]
        found: dict[int, Set | None] = {one.node: one.parent for one in savers}
        while len({one and one.done_s for one in found.values()}) > 1:
            least = None if None in found.values() else min(one.done_s for one in found.values() if one)
            found = {one.node: one.restore(least) for one in savers}
        self._world.promises.gang_resumes(savers, found)
        for one in savers:
            one.parent = found[one.node]
            one.shelf.resumed(found[one.node])
        first = found[0]
        return first.done_s if first else 0.0

    def _plan(self) -> None:
        life, ends_in_s = self._life, self.script.ends_in_s
        last = ends_in_s <= self.plan.save_every_s
        seconds = ends_in_s if last else self.plan.save_every_s
        self._timeline.after(seconds, lambda: self._reached(last=last) if life == self._life else None)

    def _reached(self, *, last: bool) -> None:
        agents = [self.agents[node] for node in sorted(self.agents)]
        done_s = self.script.done_s
        if not last:
            for one in agents:
                one.save_step(done_s)
            return self._plan()
        self.script.stop()
        self._life += 1
        self.at_work.clear()
        shelf = agents[0].shelf.run
        if shelf.failures < self.plan.failures:
            shelf.failures += 1
            return agents[agents[0].number % self.nodes].fail()
        for one in agents:
            one.complete(done_s)
        return None


class GangRank:
    """The ranks of one node, with what a script of one node shows."""

    def __init__(self, gang: WorldGang, node: int) -> None:
        self._gang = gang
        self._node = node

    @property
    def works(self) -> bool:
        return self._node in self._gang.at_work

    @property
    def done_s(self) -> float:
        return self._gang.script.done_s

    def go(self) -> None:
        self._gang.join(self._node)

    def stop(self) -> None:
        if self.works:
            self._gang.leave(self._node)

    def slow_down(self, factor: float) -> None:
        self._gang.slow_down(factor)


class WorldReports:
    def __init__(self, world: World, agent: Agent) -> None:
        self._world = world
        self._agent = agent
        self.silent_since: float | None = None
        self._mutes = 0  # how many faults prevent reports
        self._store_mutes = 0  # how many of those are the store's
        self._recovered_at = -STALE_S  # when a fault of its own last ended
        self._said: Report | None = None  # the last report before that

    def said(self) -> Report | None:
        """The newest report in the store."""
        if not self._agent.begun:
            return None
        return self._said if self.silent_since is not None else self._report()

    @property
    def silent_s(self) -> float:
        return 0.0 if self.silent_since is None else self._world.timeline.now - self.silent_since

    @property
    def news(self) -> tuple[object, ...]:
        """What an agent writes a new report for, without waiting for its next heartbeat."""
        agent = self._agent
        return agent.beat, agent.started_at, agent.outcome, agent.notice, agent.kept, self.silent_since

    @property
    def healthy(self) -> bool:
        """Only the store prevents its reports, and the server has had the time to read that it recovered."""
        recent = self._world.timeline.now - self._recovered_at < STALE_S
        return self._agent.alive and self._mutes == self._store_mutes and not recent

    def mute(self, *, by_store: bool = False) -> None:
        self._store_mutes += by_store
        if self._mutes == 0 and self._agent.begun:
            self._said, self.silent_since = self._report(), self._world.timeline.now
            self._world.fell_silent()
        self._mutes += 1

    def unmute(self, *, by_store: bool = False) -> None:
        self._store_mutes -= by_store
        self._mutes -= 1
        if not by_store:
            self._recovered_at = self._world.timeline.now
        if self._mutes == 0 and self._agent.alive:
            self.silent_since = None
            self._world.stirred()

    def _report(self) -> Report:
        agent, plan = self._agent, self._agent.plan
        at, outcome = agent.clock(), agent.outcome
        failed, tells = outcome is Outcome.FAILED, plan.job.deadline is not None
        return Report(
            attempt=agent.number,
            node=agent.node,
            phase=Phase.DONE if outcome else Phase.RUNNING if agent.started_at else Phase.PREPARING,
            at=at,
            beat=agent.beat,
            started_at=agent.started_at,
            ended_at=agent.script_ended_at,
            outcome=outcome,
            exit_code=(1 if failed else 0) if outcome else None,
            message="the script failed" if failed else "",
            notice=agent.notice,
            progress=agent.script.done_s / plan.work_s if tells and plan.reports else None,
            save_s=plan.save_s if agent.kept else 0.0,
            effort=Effort(at, began_from=self._began_from(at), kept=agent.kept),
            stays=agent.stays,
        )

    def _began_from(self, at: datetime) -> Kept | None:
        parent = self._agent.parent
        return Kept(*parent.position, at) if parent else None
