"""What the agent on a machine has written to the store, and what keeps it from writing more."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from stoker import stores
from stoker.model.run.report import Effort, Kept, Outcome, Phase, Report

if TYPE_CHECKING:
    from stoker.testing.world.agent import Agent
    from stoker.testing.world.world import World

STALE_S = stores.FAR.lazy_s + 1.0  # the oldest reading that a server decides upon: a look, and the round after it


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
