"""A world for the engine to live in: nodes that die, hang and lie, and a server that crashes between any two steps."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from stoker.engine.actions import Action, Land, StartNode, StopNode, TellAgent
from stoker.engine.eviction import evict, withdraw
from stoker.engine.rounds import decide
from stoker.engine.sighting import Sighting
from stoker.engine.sweeping import claimed, sweep
from stoker.model.job import Job
from stoker.model.node import NodeSight, NodeState
from stoker.model.orders import Wish
from stoker.model.report import Outcome, Phase, Report
from stoker.model.run import Run, RunState

START = datetime(2026, 1, 1, tzinfo=UTC)
STEP_S = 1.0


@dataclass
class Node:
    """An agent and its script. `work` is how many more steps the script needs; a node that is not alive does none."""

    run_id: str
    number: int
    work: int
    outcome: Outcome
    alive: bool = True
    hung: bool = False
    told: bool = False
    noticed: bool = False  # its script catches SIGTERM with even chance, saves, and ends
    done: bool = False  # the final report is written
    started: bool = False


@dataclass
class World:
    seed: int
    slots: int = 2
    trouble: float = 0.05  # the chance of each fault at each step; 0 once the weather clears
    random: random.Random = field(init=False)
    now: datetime = START
    saved: dict[str, Run] = field(default_factory=dict)  # the database
    nodes: dict[str, Node] = field(default_factory=dict)  # what the provider has
    silent_since: dict[str, datetime] = field(default_factory=dict)  # the server's memory: a crash clears it
    told_since: dict[str, datetime] = field(default_factory=dict)
    unclaimed_since: dict[str, datetime] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def submit(self, number: int) -> None:
        job = Job(name="job", run="true", retries=self.random.choice([0, 0, 1, 3]))
        run = Run(
            id=f"{number:06x}",
            name=f"job-{number}",
            number=number,
            job=job,
            snapshot="",
            python="",
            submitted_at=self.now,
        )
        self.saved[run.id] = run

    def cancel_one(self) -> None:
        going = [run for run in self.saved.values() if not run.state.ended]
        if going:
            run = self.random.choice(going)
            self.saved[run.id] = replace(run, wish=Wish.CANCEL)
            self.note(f"somebody cancels {run.name}")

    def evict_one(self) -> None:
        going = [run for run in self.saved.values() if run.state in (RunState.STARTING, RunState.RUNNING)]
        if going:
            run = self.random.choice(going)
            withdrawn = run.attempts[-1].notice and self.random.random() < 0.5
            decision = withdraw(run, self.now) if withdrawn else evict(run, self.random.choice([0, 8, 30]), self.now)
            self.saved[run.id] = decision.run
            self.note(decision.events[-1].text)

    def step(self) -> None:
        self.now += timedelta(seconds=STEP_S)
        for key, node in list(self.nodes.items()):
            self._live(key, node)
        self._round()

    def note(self, text: str) -> None:
        self.trace.append(f"{(self.now - START).total_seconds():6.0f} s  {text}")

    def happens(self) -> bool:
        return self.random.random() < self.trouble

    def _live(self, key: str, node: Node) -> None:
        if not node.alive or node.hung:
            return
        if self.happens():
            node.alive = False
            self.note(f"{key} dies")
        elif not node.done and self.random.random() < self.trouble / 4:
            node.hung = True
            self.note(f"{key} hangs")
        elif node.done:
            node.alive = False
        else:
            self._work(key, node)

    def _work(self, key: str, node: Node) -> None:
        node.started = True
        self.silent_since.pop(key, None)
        node.work -= 1
        if node.told:
            node.outcome, node.done = Outcome.CANCELLED, True
        elif node.noticed and self.random.random() < 0.5:
            node.outcome, node.done = Outcome.EVICTED, True
            self.note(f"{key} saves and ends, evicted")
        elif node.work <= 0:
            node.done = True
            self.note(f"{key} reports {node.outcome}")

    def _round(self) -> None:
        """Look, decide, save, act; with a crash anywhere between."""
        runs = [run for run in self.saved.values() if run.open]
        sights = self._look()
        seen = {run.id: self._sighting(run, sights) for run in runs}
        decisions = decide(runs, seen, {"local": self.slots}, self.now)
        if self.happens():
            return self._crash("before saving")
        for decision in decisions:
            self.saved[decision.run.id] = decision.run
        actions: list[Action] = [action for decision in decisions for action in decision.actions]
        needed = claimed(list(self.saved.values()))
        self.unclaimed_since = {s.key: self.unclaimed_since.get(s.key, self.now) for s in sights if s.key not in needed}
        ages = {key: (self.now - since).total_seconds() for key, since in self.unclaimed_since.items()}
        for action in [*actions, *sweep("local", sights, needed, ages)]:
            if self.happens():
                return self._crash("between two actions")
            self._act(action)
            if self.happens():
                self._act(action)  # repeated: must do no harm
        return None

    def _crash(self, when: str) -> None:
        self.note(f"the server crashes {when}")
        self.silent_since.clear()
        self.told_since.clear()
        self.unclaimed_since.clear()

    def _look(self) -> list[NodeSight]:
        return [
            NodeSight(key, NodeState.UP if node.alive or node.hung else NodeState.GONE)
            for key, node in self.nodes.items()
        ]

    def _sighting(self, run: Run, sights: list[NodeSight]) -> Sighting:
        attempt = run.attempt
        if attempt is None:
            return Sighting()
        mine = {sight.key: sight for sight in sights if sight.key.startswith(f"{run.id}-")}
        current = mine.pop(attempt.key, None) if attempt.key in claimed([run]) else None
        node = self.nodes.get(attempt.key)
        silent = self.silent_since.setdefault(attempt.key, self.now) if node and node.hung else self.now
        told = self.told_since.get(attempt.key, self.now)
        return Sighting(
            node=current,
            report=self._report(node) if node and node.started else None,
            leftovers=tuple(mine),
            silent_s=(self.now - silent).total_seconds(),
            wished_s=(self.now - told).total_seconds(),
        )

    def _report(self, node: Node) -> Report:
        code = 0 if node.outcome is Outcome.SUCCEEDED else 1
        return Report(
            attempt=node.number,
            node=0,
            phase=Phase.DONE if node.done else Phase.RUNNING,
            at=self.now,
            beat=1,
            started_at=START,
            outcome=node.outcome if node.done else None,
            exit_code=code if node.done else None,
        )

    def _act(self, action: Action) -> None:
        match action:
            case StartNode(run):
                self._start(run)
            case TellAgent(run):
                key = run.attempts[-1].key
                if run.wish is Wish.CANCEL:
                    self.told_since.setdefault(key, self.now)
                if key in self.nodes:
                    self.nodes[key].told = run.wish is Wish.CANCEL
                    self.nodes[key].noticed = run.attempts[-1].notice is not None
            case StopNode(_, key):
                self.nodes.pop(key, None)
            case Land():
                raise AssertionError("no run here has outputs")

    def _start(self, run: Run) -> None:
        attempt = run.attempts[-1]
        if attempt.key not in self.nodes:
            outcome = self.random.choice([Outcome.SUCCEEDED, Outcome.SUCCEEDED, Outcome.FAILED])
            self.nodes[attempt.key] = Node(run.id, attempt.number, self.random.randint(1, 8), outcome)
            self.note(f"{attempt.key} starts")


def ended(world: World) -> bool:
    return all(run.state.ended for run in world.saved.values())


def states(world: World) -> dict[str, RunState]:
    return {run.name: run.state for run in world.saved.values()}
