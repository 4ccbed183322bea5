"""The agent on a machine and its script: a model of `agent/`, with events instead of threads."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from stoker.model.orders import Notice, Wish
from stoker.model.run.money import Fuse
from stoker.model.run.report import Kept, Outcome
from stoker.model.snapshot import first_number
from stoker.testing.world.cloud import WorldMachine
from stoker.testing.world.gang import GangRank, Set, WorldGang, WorldReports, WorldScript, WorldShelf
from stoker.testing.world.scenario import RunPlan, moment

if TYPE_CHECKING:
    from stoker.testing.world.world import World

RESTORE_S = 1.0
RETRY_S = 5.0
FENCE_S = 0.5  # between the check whether another attempt has taken over, and the commit
SLOW = 1 / 3
MOST_BOOT_S = 900.0
COARSE_S, WORTH_S = 1.0, 30.0  # as in `agent/machine/incarnation.py`
ENDING_S = 1.0  # for the ranks of a node whose gang is broken to end
SURVIVED = (Outcome.PEER_ENDED, Outcome.EVICTED, Outcome.FAILED)  # as in `agent/attempt/run.py`

Then = Callable[[], None]


class Agent:
    """Pending actions are dropped when something stops it: each stop starts another `life`."""

    def __init__(
        self, world: World, machine: WorldMachine, plan: RunPlan, shelf: WorldShelf, gang: WorldGang | None = None
    ) -> None:
        self._world = world
        self.gang = gang
        self._timeline = world.timeline
        self.machine = machine
        self.plan = plan
        self.shelf = shelf
        self.number = machine.number
        self.node = machine.node
        self.saves = plan.shards or self.node == 0
        self.incarnation = machine.incarnation
        self.script = GangRank(gang, self.node) if gang else WorldScript(world.timeline, plan.work_s)
        self.alive = True
        self.hung = 0
        self.cut = 0
        self.begun = False
        self.outcome: Outcome | None = None  # once it is reported
        self.ended_at: float | None = None  # when it wrote its final report
        self._ending: Outcome | None = None
        self.reports = WorldReports(world, self)
        self._life = 0
        self.beat = 1
        self.started_at: datetime | None = None
        self.script_ended_at: datetime | None = None
        self.parent: Set | None = None  # what it resumes from
        self._saving = False
        self.stays = False  # its machine is there for the next attempt
        self.kept: Kept | None = None  # its newest checkpoint
        self.notice: Notice | None = None  # the machine's own
        self._fuse: Fuse | None = None
        if (
            machine.fuse and machine.incarnation == 1
        ):  # the VM's value from its start; only here two clocks are compared
            since_s = (self.clock() - machine.fuse.as_of).total_seconds()
            self.reckon(machine.fuse, min(max(since_s, 0.0), MOST_BOOT_S))

    # What happens to it

    def begin(self) -> None:
        """Once it has orders. An attempt starts once, wherever it is requested; the fence comes before everything."""
        if self.begun or not self._free or self.number not in self.shelf.orders:
            return None
        if self.shelf.full or self.cut:
            return self._later(RETRY_S, self.begin)
        if self.number in self.shelf.begun:
            return None
        self.begun = True
        self.shelf.begun.add(self.number)
        if self.shelf.is_fenced(self.number):
            return self._finish(Outcome.CANCELLED)
        self.parent = self.shelf.take_over(self.number)
        self._world.promises.goes_on(self.machine.run, self.shelf, self.parent)
        self._restore_script()
        self._later(RESTORE_S, self._train)
        self.hear()
        return self._world.stirred()

    def continue_from(self, before: Agent) -> str:
        """On a restored machine. Returns why it may not continue; empty: it does. A model of
        `agent/machine/incarnation.py`, by the store's clock."""
        now, word = self._timeline.now, self.shelf.word(self.number)
        fuse = word.fuse or self.machine.fuse
        told_at = self.shelf.told_at.get(self.number, self.machine.created_at) if word.fuse else self.machine.created_at
        age_s = now - told_at + COARSE_S
        if before.outcome not in (None, Outcome.EVICTED) or not before.begun:
            return f"it has ended: {before.outcome}"
        if self.gang:
            return "the other nodes of its gang have ended"
        if word.wish is Wish.CANCEL or self.number + 1 in self.shelf.orders or self.shelf.is_superseded(self.number):
            return "the run is no longer wanted"
        if self.machine.lease_s and self.machine.given_at + self.machine.lease_s - now < WORTH_S:
            return "its lease has expired"
        if fuse and fuse.seconds - age_s < WORTH_S:
            return "its budget is spent"
        self.begun = True
        self.started_at, self.beat = before.started_at, before.beat + 1
        if fuse:
            self._fuse = None
            self.reckon(fuse, age_s)
        self.parent = self.shelf.take_over(self.number, self.incarnation)
        self._world.promises.goes_on(self.machine.run, self.shelf, self.parent)
        self._restore_script(" was restored, and")
        self._later(RESTORE_S, self._train)
        self._world.stirred()
        return ""

    def _restore_script(self, how: str = "") -> None:
        if isinstance(self.script, WorldScript):
            self.script.restore(self.parent.done_s if self.parent else 0.0)
            self._world.note(f"{self.machine.key}{how} resumes from {self.script.done_s:.0f} s of work")

    def hear(self, age_s: float = 0.0) -> None:
        """Reads the server's messages, if it can. `age_s`: since it last could."""
        if not self.begun or not self._free or self.cut or self.outcome:
            return None
        word = self.shelf.word(self.number)
        if word.wish is Wish.CANCEL:
            return self.end(Outcome.CANCELLED)
        if word.broken:
            return self.end(Outcome.PEER_ENDED)
        if word.notice:
            self.heed()
        if self.gang:
            self.gang.hear(self)
        if word.fuse:
            self.reckon(word.fuse, age_s)
        return None

    def reckon(self, fuse: Fuse, age_s: float) -> None:
        """When it must be gone, by its own clock. `age_s`: the maximum age of the value."""
        if fuse != self._fuse:
            self._fuse = fuse
            left_s = fuse.seconds - max(age_s, 0.0)
            self._timeline.after(max(left_s - fuse.save_s, 0.0), lambda: self._burn(fuse))
            self._timeline.after(max(left_s, 0.0), lambda: self._burn_out(fuse))

    def warn(self, seconds: float) -> None:
        """The provider sends an eviction notice."""
        at = self.clock()
        self.notice = Notice(at, at + timedelta(seconds=seconds), drill=False)
        if self._free and self.begun:
            self.heed()
            if self.gang:
                self.gang.warned(self.node, given=True)
        self._world.stirred()

    def reassure(self) -> None:
        self.notice = None
        if self.gang:
            self.gang.warned(self.node, given=False)
        self._world.stirred()

    def hang(self, seconds: float) -> None:
        self.reports.mute()
        self._stop()
        self.hung += 1
        self._timeline.after(seconds, self._come_to)

    def cut_off(self, seconds: float) -> None:
        """It keeps working, but can neither read nor write."""
        self.reports.mute()
        self.cut += 1
        self._world.leases.settle(self.machine)
        self._timeline.after(seconds, self._come_back)

    def slow_down(self) -> None:
        if self.script.works and self._free and not self._ending:
            self.script.slow_down(SLOW)
            self._life += 1
            self._go_on()

    def die(self) -> None:
        if self.alive:
            self.reports.mute()
            self._stop()
            self.alive = False
            if self.gang:
                self.gang.died(self.node)

    def retire(self) -> None:
        """Its machine has the next attempt. What it reported stays."""
        self.alive, self._fuse = False, None
        self._life += 1

    def lease_over(self) -> None:
        """Saves what it can, and removes itself. Another process does this, so that a hanging agent is removed too."""
        self._world.note(f"{self.machine.key} removes itself: its lease has expired")
        if not (self.script.works and self._free) or self.cut or self.shelf.full:
            return self._leave()
        done_s = self.script.done_s
        return self._timeline.after(self.plan.save_s, lambda: self._leave(done_s))

    # Beside the other nodes of its gang

    def restore(self, until: float | None) -> Set | None:
        """The newest checkpoint with no more work than that; None: none is used."""
        return self.shelf.restore(self.number, self.incarnation, -1.0 if until is None else until)

    @property
    def reads(self) -> bool:
        """It can hear of its peers now."""
        return self._free and not self.cut and not self.shelf.run.hung and self.outcome is None

    def start_ranks(self) -> None:
        """All have met."""
        if not self.reads or self._ending or self.started_at:
            return
        self.started_at = self.clock()
        self.script.go()
        self._world.stirred()

    def save_step(self, done_s: float) -> None:
        if self._free and not self._saving:
            self._save(done_s, lambda: None)

    def complete(self, done_s: float) -> None:
        if self._free and not self._ending:
            self._life += 1
            self._save(done_s, lambda: self._finish(Outcome.SUCCEEDED))

    def fail(self) -> None:
        if self._free:
            self._finish(Outcome.FAILED)

    def lose_peer(self) -> None:
        """Its ranks fail in the middle of a step."""
        if self._free and self.outcome is None and not self._ending:
            self._stop()
            self._finish(Outcome.FAILED)

    def _train(self) -> None:
        if self.gang:
            return self._later(RETRY_S, self._train) if self.cut or self.shelf.full else self.gang.ready(self)
        self.started_at = self.started_at or self.clock()
        self.script.go()
        self._go_on()
        return self._world.stirred()

    def _go_on(self) -> None:
        if not isinstance(self.script, WorldScript):  # its gang saves and ends together
            return
        ends_in_s = self.script.ends_in_s
        if ends_in_s <= self.plan.save_every_s:
            self._later(ends_in_s, self._complete)
        else:
            self._later(self.plan.save_every_s, lambda: self._save(self.script.done_s, self._go_on))

    def _complete(self) -> None:
        self.script.stop()
        if self.shelf.run.failures < self.plan.failures:
            self.shelf.run.failures += 1
            self._finish(Outcome.FAILED)
        else:
            self._save(self.script.done_s, lambda: self._finish(Outcome.SUCCEEDED))

    def _save(self, done_s: float, then: Then) -> None:
        """The training continues meanwhile."""
        if not self.saves:
            return then()
        self._saving = True
        return self._later(max(self.plan.save_s - FENCE_S, 0.0), lambda: self._ask(done_s, then))

    def _ask(self, done_s: float, then: Then) -> None:
        if self.shelf.full or self.cut:
            return self._later(RETRY_S, lambda: self._ask(done_s, then))
        if self.shelf.is_fenced(self.number, self.incarnation):
            self.script.stop()
            return self._finish(Outcome.CANCELLED)
        return self._later(FENCE_S, lambda: self._commit(done_s, then))

    def _commit(self, done_s: float, then: Then) -> None:
        if self.shelf.full or self.cut:
            return self._ask(done_s, then)
        self._put(done_s)
        self._saving = False
        return then()

    def _put(self, done_s: float) -> None:
        number = self.kept.number + 1 if self.kept else first_number(self.incarnation) + 1
        made = Set((self.number, number), done_s)
        self.shelf.commit(made)
        self._world.promises.committed(self.machine.run, self.shelf, made)
        self.kept = Kept(self.number, number, self.clock())
        self._world.note(f"{self.machine.key} commits {done_s:.0f} s of work")

    def heed(self) -> None:
        if self.plan.listens and self.outcome is None:
            self.end(Outcome.EVICTED)

    def end(self, outcome: Outcome) -> None:
        """The script is asked to stop: it saves, and exits."""
        if self._ending or self.outcome:
            return
        self._ending = outcome
        self._stop()
        if outcome is Outcome.PEER_ENDED:
            self._later(ENDING_S, lambda: self._finish(outcome))
        elif self.started_at:
            self._save(self.script.done_s, lambda: self._finish(outcome))
        else:
            self._finish(outcome)

    def _finish(self, outcome: Outcome) -> None:
        """The final report comes after everything it refers to."""
        self._ending = outcome
        if self.shelf.full or self.cut:
            return self._later(RETRY_S, lambda: self._finish(outcome))
        self.outcome, self.script_ended_at = outcome, self.clock()
        self.ended_at = self._timeline.now
        if self.gang and self.begun:
            self.stays = bool(self.machine.lease_s) and outcome in SURVIVED and self.notice is None
            self.gang.ended(self.node, outcome)
        self._world.note(f"{self.machine.key} reports {outcome}")
        self._world.leases.settle(self.machine)
        self._world.stirred()
        if outcome is Outcome.BUDGET_REACHED:
            self._leave()
        return None

    def _burn(self, fuse: Fuse) -> None:
        if fuse is self._fuse and self._free and self.outcome is None:
            self._world.note(f"{self.machine.key} stops at its own budget limit")
            self.end(Outcome.BUDGET_REACHED)

    def _burn_out(self, fuse: Fuse) -> None:
        """What is saved by now must be enough."""
        if fuse is self._fuse and self.alive:
            self._leave()

    def _leave(self, done_s: float | None = None) -> None:
        """The machine removes itself."""
        if self.alive and done_s is not None and not self.shelf.is_fenced(self.number, self.incarnation):
            self._put(done_s)
        self.die()
        self._world.cloud.release(self.machine.key)

    def _stop(self) -> None:
        self.script.stop()
        self._saving = False
        self._life += 1

    def _come_to(self) -> None:
        away_s = self.reports.silent_s
        self.hung -= 1
        self.reports.unmute()
        if not self._free:
            return None
        if not self.begun:
            return self.begin()
        if self.outcome:
            return None
        if ending := self._ending:
            self._ending = None
            return self.end(ending)
        if self.started_at is None:
            self._later(RESTORE_S, self._train)
        else:
            self.script.go()
            self._go_on()
        return self.hear(away_s)

    def _come_back(self) -> None:
        away_s = self.reports.silent_s
        self.cut -= 1
        self.reports.unmute()
        self._world.leases.settle(self.machine)
        self.hear(away_s)

    @property
    def _free(self) -> bool:
        return self.alive and not self.hung

    def clock(self) -> datetime:
        return moment(self._timeline.now + self.plan.skew_s)

    def _later(self, seconds: float, call: Then) -> None:
        life = self._life
        self._timeline.after(seconds, lambda: call() if life == self._life and self._free else None)
