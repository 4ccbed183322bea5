"""The nodes of one attempt with several: they meet, work in step and hear of each other, as `agent/gang/` does it.

A step needs every node: while one of them is absent, hangs or saves for its eviction, the others wait in a collective.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from stoker.model.run.report import Outcome
from stoker.testing.world.scenario import RunPlan
from stoker.testing.world.script import WorldScript
from stoker.testing.world.shelf import Set

if TYPE_CHECKING:
    from stoker.testing.world.agent import Agent
    from stoker.testing.world.world import World

HEARD_S = 1.0  # until a message of a peer is read
FAILED_S = 0.1  # until the ranks of its peers fail, where they notice
GOOD = (Outcome.SUCCEEDED, Outcome.TARGET_REACHED)


class WorldGang:
    def __init__(self, world: World, plan: RunPlan) -> None:
        self._world = world
        self._timeline = world.timeline
        self.plan = plan
        self.nodes = plan.job.nodes
        self.script = WorldScript(world.timeline, plan.work_s)
        self.agents: dict[int, Agent] = {}  # by node: those that are ready
        self.at_work: set[int] = set()  # nodes whose ranks run
        self.went = False  # all have met
        self._ended: dict[int, Outcome] = {}  # as they told each other
        self._warned: set[int] = set()  # nodes with a notice
        self._life = 0

    def ready(self, agent: Agent) -> None:
        """A node has its checkpoint. When the last one is ready, they agree on one and start."""
        self.agents[agent.node] = agent
        if self.went:
            return agent.start_ranks()
        if len(self.agents) < self.nodes:
            return None
        done_s = self._agreed()
        self.went = True
        self.script.put_back(done_s)
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
