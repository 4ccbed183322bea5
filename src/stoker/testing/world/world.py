"""One world, from its scenario to its end: runs and faults happen, and every promise is checked."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Self

from stoker.engine.decision import Decision
from stoker.engine.money.fuse import set_budget
from stoker.errors import BudgetTooSmall
from stoker.model.node import Features
from stoker.model.run.run import Run, RunState
from stoker.testing.world.agent import Agent
from stoker.testing.world.cloud import NAME, WorldCloud, WorldLeases, WorldMachine
from stoker.testing.world.gang import RunShelf, WorldGang, WorldShelf
from stoker.testing.world.mishaps import befall
from stoker.testing.world.promises import Promises
from stoker.testing.world.scenario import MishapKind, RunPlan, Scenario, Timeline
from stoker.testing.world.server import PATIENCE_S, WorldServer

if TYPE_CHECKING:
    from stoker.testing.world.real.world import RealServer

LONGEST_S = 14 * 86400.0  # after the last fault everything ends sooner than this
PACKED_UP_S = 7200.0  # after the end of the last run: then a user pauses all clusters for good
RAISED_AFTER_S = 300.0  # until a user raises the budget of a paused run


class World:
    def __init__(self, scenario: Scenario, *, trace: bool = False) -> None:
        self.scenario = scenario
        self.trace: list[str] | None = [] if trace else None
        self.timeline = Timeline()
        self.cloud = WorldCloud(scenario, self.timeline, self.stirred)
        self.promises = Promises(self)
        self.shelves: dict[str, RunShelf] = {}
        self._gangs: dict[tuple[str, int], WorldGang] = {}  # by run and attempt
        self.agents: dict[str, Agent] = {}  # by node key, also of deleted machines: their reports stay
        self._on: dict[str, Agent] = {}  # the newest agent on each machine, by the machine's first key
        self.crash_s = 0.0  # how long the server will be down
        self.provider = NAME if scenario.places else "local"
        self.slots = {self.provider: None if scenario.places else scenario.slots}
        self.features = Features(lease_s=scenario.lease_s, idle_s=scenario.idle_s, patience_s=PATIENCE_S)
        self.clusters = {one.name: one for one in scenario.clusters}
        self.features = replace(self.features, warm=bool(scenario.clusters and scenario.places))
        self.packed_up = False
        self.sees_everything = all(one.fault is not MishapKind.UNSEEN for one in scenario.mishaps)
        self._paused: set[str] = set()
        self._furnish()
        self._connect()

    def _furnish(self) -> None:
        self.leases = WorldLeases(self.cloud, self.timeline, self.scenario.idle_s)
        self.server: WorldServer | RealServer = WorldServer(self)

    def live(self) -> Self:
        """Raises Broken as soon as a promise is not kept."""
        last = max((one.at + one.seconds for one in self.scenario.mishaps), default=0.0)
        horizon = last + LONGEST_S + max(plan.at for plan in self.scenario.plans)
        while not self.is_over and self.timeline.now < horizon and self.timeline.step():
            self.check()
        self.promises.at_the_end()
        return self

    def check(self) -> None:
        """After every event."""
        self.promises.check()
        if self.clusters and not self.packed_up and self._all_ended:
            self.packed_up = True
            self.timeline.after(PACKED_UP_S, self._pack_up)

    def pause(self, name: str, *, paused: bool) -> None:
        """A user pauses a cluster, or resumes it."""
        cluster = self.clusters[name] = replace(self.clusters[name], paused=paused)
        self.note(f"a user {'pauses' if paused else 'resumes'} cluster {name}")
        self.promises.sharing.paused(name, paused=paused)
        self.server.cluster_changed(cluster)
        self.stirred()

    def _pack_up(self) -> None:
        for name in self.clusters:
            self.pause(name, paused=True)

    @property
    def _all_ended(self) -> bool:
        runs = self.server.saved
        return len(runs) == len(self.scenario.plans) and all(run.state.ended for run in runs.values())

    @property
    def is_over(self) -> bool:
        return not self.cloud.machines and self._all_ended

    def paused(self, run: Run) -> None:
        """A user will notice it, and raise its budget."""
        if run.id not in self._paused:
            self._paused.add(run.id)
            self.timeline.after(RAISED_AFTER_S, partial(self._raise_budget, run.id))

    def note(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.timeline.now:9.1f} s  {text}")

    def stirred(self) -> None:
        """Something happened that the server would see in a look."""
        self.server.wake()

    def fell_silent(self) -> None:
        self.server.wake(PATIENCE_S + 1.0)

    def run_of(self, place: int) -> Run | None:
        """The run by its index in the scenario; None: it is not submitted yet."""
        return self.server.saved.get(_id(place % len(self.scenario.plans)))

    @property
    def gangs(self) -> Collection[WorldGang]:
        return self._gangs.values()

    def shelf(self, run: str, node: int = 0) -> WorldShelf:
        return self.shelves[run].parts[node]

    def agent_of(self, place: int, node: int = 0) -> Agent | None:
        """That of the run's newest machine that is up; of a gang, of one of them."""
        run_id = _id(place % len(self.scenario.plans))
        mine = [one for one in self.agents.values() if one.machine.run == run_id and one.alive and not one.machine.off]
        if not mine:
            return None
        is_gang = self.scenario.plans[place % len(self.scenario.plans)].job.most_nodes > 1
        return mine[node % len(mine)] if is_gang else mine[-1]

    def _connect(self) -> None:
        self.cloud.made = self.promises.made
        self.cloud.booted = self._boot
        self.cloud.died = self._die
        self.cloud.taking = self.server.catch_up
        self.leases.is_cut = lambda machine: self._agent_on(machine).cut > 0
        self.leases.is_idle = self._is_idle
        self.leases.over = lambda machine: self._agent_on(machine).lease_over()
        self.leases.checked = self.promises.lease_is_over
        for number, plan in enumerate(self.scenario.plans):
            self.timeline.at(plan.at, partial(self._submit, number, plan))
        for mishap in self.scenario.mishaps:
            self.timeline.at(mishap.at, partial(befall, self, mishap))
        for place in self.scenario.places:
            for at, price in place.prices:
                self.timeline.at(at, partial(self.cloud.reprice, place.name, price))
            if place.open is not None:
                self._open_and_close(place.name, place.open)

    def _open_and_close(self, place: str, spans: tuple[tuple[float, float], ...]) -> None:
        """Closed except for these spans."""
        if not spans or spans[0][0] > 0:
            self.cloud.close(place)
        for begin, end in spans:
            if begin > 0:
                self.timeline.at(begin, partial(self.cloud.open, place))
            if self.scenario.notice_s:
                self.timeline.at(end - self.scenario.notice_s, partial(self._warn, place))
            self.timeline.at(end, partial(self.cloud.close, place))

    def _warn(self, place: str) -> None:
        for agent in list(self.agents.values()):
            offer = agent.machine.offer
            if agent.alive and not agent.machine.off and offer and offer.place == place:
                agent.warn(self.scenario.notice_s)

    def _submit(self, number: int, plan: RunPlan) -> None:
        run = Run(
            id=_id(number),
            name=f"{plan.job.name}-{number + 1}",
            number=number + 1,
            job=plan.job,
            snapshot="",
            python="",
            submitted_at=self.server.now,
            budget=plan.job.budget,
            person=plan.person,
            pool=self.clusters[plan.cluster].pool if plan.cluster else None,
        )
        self.shelves[run.id] = RunShelf(plan.job.most_nodes)
        self.server.add(run)
        self.stirred()

    def _boot(self, machine: WorldMachine) -> None:
        plan = self.scenario.plans[int(machine.run, 16)]
        if machine.incarnation > 1 and machine.key in self.agents:
            return self._resume(machine, self._new_agent(machine, plan), self.timeline.now)
        if before := self._on.get(machine.first_key):  # a survivor of a gang
            if before.cut:
                return self.timeline.after(5.0, lambda: self.cloud.boot(machine))
            before.retire()
        self._on[machine.first_key] = agent = self.agents[machine.key] = self._new_agent(machine, plan)
        if agent.shelf.full:
            self.timeline.after(1.0, agent.begin)
        self.leases.begin(machine)
        return agent.begin()

    def _new_agent(self, machine: WorldMachine, plan: RunPlan) -> Agent:
        gang = None
        if plan.job.most_nodes > 1:
            gang = self._gangs.setdefault(
                (machine.run, machine.number), WorldGang(self, plan, machine.run, machine.number)
            )
        return Agent(self, machine, plan, self.shelf(machine.run, machine.node), gang)

    def _agent_on(self, machine: WorldMachine) -> Agent:
        """The newest one: that of the last attempt, until the machine has read that it has another."""
        return self._on[machine.first_key]

    def _is_idle(self, machine: WorldMachine) -> bool:
        return self._agent_on(machine).outcome is not None

    def _resume(self, machine: WorldMachine, agent: Agent, booted_at: float) -> None:
        """It was evicted, and its provider restored it. The reports of its agent stay until this one resumes."""
        before, number = self.agents[machine.key], machine.incarnation
        if machine.off or machine.releasing or machine.incarnation != number:
            return None
        if agent.shelf.full and self.timeline.now - booted_at < self.scenario.idle_s:
            return self.timeline.after(5.0, lambda: self._resume(machine, agent, booted_at))
        why = "its store is unreadable" if agent.shelf.full else agent.continue_from(before)
        if why:
            self.note(f"{machine.key} was restored, and removes itself: {why}")
            return self.cloud.release(machine.key)
        self._on[machine.first_key] = self.agents[machine.key] = agent
        return self.leases.begin(machine)

    def _die(self, machine: WorldMachine) -> None:
        if agent := self._on.get(machine.first_key):
            agent.die()

    def _raise_budget(self, run_id: str) -> None:
        self._paused.discard(run_id)
        self.server.change(run_id, self._with_more)
        self.stirred()

    def _with_more(self, run: Run) -> Decision:
        decision, usd = Decision(run), run.budget or Decimal(1)
        while decision.run.state is RunState.PAUSED:
            usd *= 4
            with suppress(BudgetTooSmall):
                decision = set_budget(run, usd, self.server.now)
        self.note(f"a user allows {run.name} ${usd}")
        return decision


def _id(number: int) -> str:
    return f"{number:06x}"
