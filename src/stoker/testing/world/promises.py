"""What must hold whatever happens: the promises that the engine is responsible for, looked at after every step."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from stoker.engine.money import meter
from stoker.engine.nodes.leftovers import spare_key
from stoker.engine.patience import MOST_LOST, was_lost, without_progress
from stoker.model import checkpoint
from stoker.model.node.orders import Wish
from stoker.model.run.report import Outcome
from stoker.model.run.run import Attempt, AttemptState, Run, RunState
from stoker.testing.world.cloud import DEAR
from stoker.testing.world.machine import Machine
from stoker.testing.world.scenario import Fault
from stoker.testing.world.shelf import Set, Shelf

if TYPE_CHECKING:
    from stoker.testing.world.world import World

LEAP_S = 5.0  # until a price that has changed is seen
LEAVING_S = 60.0  # for a node whose lease is over to save and be gone
SMALLEST_USD = 1e-5  # a thousandth of a cent: clocks count microseconds


class Broken(Exception):
    """A promise was not kept. `promise` names it; shrinking looks for the same one."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise


class Promises:
    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[str, Run] = {}  # as last looked at
        self._keys: dict[str, set[str]] = {}  # by run: of all nodes that its facts have ever named

    def check(self) -> None:
        """After everything that happens."""
        for run in self._world.server.saved.values():
            if self._known.get(run.id) is not run:
                self._changed(run)
                self._known[run.id] = run
            if run.budget is not None and self._world.sees_everything:  # what is not shown cannot be counted
                self._within_budget(run)
        if self._world.sees_everything:
            self._one_at_a_time()

    def made(self, machine: Machine) -> None:
        """What costs money is written down before it is asked for."""
        run = self._world.server.saved[machine.run]
        if machine.key not in self._named(run):
            raise Broken("saved before it acts", f"{machine.key} was made, and {run.name} knows nothing of it")

    def goes_on(self, run: str, shelf: Shelf, found: Set | None) -> None:
        """An attempt takes over: from what the newest attempt with the right to commit had committed."""
        if found != shelf.head:
            promise = "one writer" if found and found.position not in _up_to(shelf) else "nothing is lost"
            raise Broken(promise, f"an attempt of {run} goes on from {found}, and not from {shelf.head}")

    def committed(self, run: str, shelf: Shelf, made: Set) -> None:
        """What an attempt commits after another has taken over from it must never count."""
        if shelf.head is not made and made.position in checkpoint.visible(shelf.sets, shelf.fences):
            raise Broken("one writer", f"{made} of {run} counts, though a later attempt has taken over")

    def lease_is_over(self, machine: Machine) -> None:
        until = machine.lease_until
        self._world.timeline.after(LEAVING_S, lambda: self._has_left(machine, until))

    def at_the_end(self) -> None:
        """The sky has been clear for long."""
        for run in self._world.server.saved.values():
            if not run.state.ended:
                raise Broken("one end", f"{run.name} is still {run.state}: {run.reason}")
            if not _right(run):
                raise Broken("the right end", f"{run.name} ended as {run.state} ({run.reason}): {run.attempts}")
            bill, reckoned = self._world.cloud.bill(run.id), float(meter.spent(run, self._world.server.now))
            if self._world.sees_everything and reckoned < bill - self._hidden_usd:
                raise Broken("the meter", f"{run.name} cost ${bill:.9f}, and the meter says ${reckoned:.9f}")
        if self._world.cloud.machines:
            raise Broken("nothing is left", f"{', '.join(self._world.cloud.machines)} are still there")

    def _changed(self, run: Run) -> None:
        before = self._known.get(run.id)
        if before and before.state.ended and _end(before) != _end(run):
            raise Broken("one end", f"{run.name} had ended as {before.state} and is now {run.state}")
        self._keys.setdefault(run.id, set()).update(self._named(run))
        self._no_healthy_node_is_lost(before, run)
        if run.state is RunState.PAUSED:
            self._world.paused(run)

    def _no_healthy_node_is_lost(self, before: Run | None, run: Run) -> None:
        """Whatever the store does: a node that only its store keeps from being heard is not given up for silence."""
        newest, agent = run.attempt, self._world.agents.get(run.attempt.key if run.attempt else "")
        was = before.attempt if before else None
        if not newest or not agent or not agent.healthy:
            return
        shelf = self._world.shelves[run.id]
        if shelf.full > shelf.hung:  # it cannot even write its first word
            return
        if was and was.key == newest.key and was.state.over:
            return
        if newest.state is AttemptState.LOST and newest.message.startswith(("no heartbeat", "its node was there")):
            raise Broken("no healthy node is lost", f"{newest.key} of {run.name}: {newest.message}")

    def _named(self, run: Run) -> set[str]:
        named = {attempt.key for attempt in run.attempts} | {spare_key(run)}
        return named | self._keys.get(run.id, set())

    def _within_budget(self, run: Run) -> None:
        bill = self._world.cloud.bill(run.id)
        if run.budget is not None and bill > float(run.budget) and bill > float(run.budget) + self._hidden_usd:
            raise Broken("the budget", f"{run.name} may cost ${run.budget} and has cost ${bill:.6f}")

    @cached_property
    def _hidden_usd(self) -> float:
        """What nobody can know in time: how long a server was away whose clock was set meanwhile, and a price that
        leaps while nobody looks, or while a machine saves and is given back."""
        scenario = self._world.scenario
        dearest = max((float(place.usd_per_hour) for place in scenario.places), default=0.0) * float(DEAR)
        away = {fault: sum(one.seconds for one in scenario.mishaps if one.fault is fault) for fault in Fault}
        leaving_s = max(plan.save_s for plan in scenario.plans) + scenario.release_s + LEAP_S
        blind_s = sum(away[one] for one in (Fault.BLIND, Fault.LOGGED_OUT, Fault.STORE_HANGS, Fault.KEY_ROTATED))
        unseen_s = blind_s + away[Fault.CRASH] + leaving_s if away[Fault.DEAR] else 0.0
        return SMALLEST_USD + (away[Fault.CLOCK] + unseen_s) * dearest / 3600

    def _one_at_a_time(self) -> None:
        busy: set[str] = set()
        for agent in self._world.agents.values():
            if agent.alive and agent.script.works and not agent.machine.releasing:
                if agent.machine.run in busy:
                    raise Broken("one at a time", f"{agent.machine.run} runs twice")
                busy.add(agent.machine.run)

    def _has_left(self, machine: Machine, until: float) -> None:
        if machine.lease_until == until and not machine.off:
            late_s = self._world.timeline.now - until
            raise Broken("nothing outlives its lease", f"{machine.key} still costs {late_s:.0f} s after its lease")


def _end(run: Run) -> tuple[RunState, list[Attempt]]:
    """All but the bill: how an attempt spent its time may be heard later, from a machine that could not be reached."""
    return run.state, [replace(one, effort=None) for one in run.attempts]


def _up_to(shelf: Shelf) -> set[tuple[int, int]]:
    """Positions of sets that had been committed when the newest with the right to was."""
    return {position for position in shelf.sets if shelf.head and position <= shelf.head.position}


def _right(run: Run) -> bool:
    """The end follows from what the attempts reported."""
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
