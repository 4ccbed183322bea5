"""What a decision returns: the next facts, the actions, and the events for the timeline."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from stoker.model.run.money import Fuse
from stoker.model.run.run import Event, Run


@dataclass(frozen=True, slots=True)
class Decision:
    run: Run
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()

    def noting(self, now: datetime, kind: str, text: str) -> Decision:
        return Decision(self.run, self.actions, (*self.events, Event(now, kind, text)))

    def doing(self, *actions: Action) -> Decision:
        return Decision(self.run, (*self.actions, *actions), self.events)


# The actions of the engine. Each is keyed by run and attempt and may be executed again without harm.


@dataclass(frozen=True, slots=True)
class StartNode:
    """Write the newest attempt's orders, then request its node from the provider."""

    run: Run
    fuse: Fuse | None = None  # what it may spend


@dataclass(frozen=True, slots=True)
class StartSpare:
    """Request the node of the attempt after the newest one. It waits for orders that may never come."""

    run: Run
    fuse: Fuse | None = None  # what it may spend, until its orders arrive


@dataclass(frozen=True, slots=True)
class TellAgent:
    """Write the run's wish where the newest attempt's agent reads it."""

    run: Run
    fuse: Fuse | None = None  # what it may spend from now on; None: unchanged


@dataclass(frozen=True, slots=True)
class StopNode:
    """Release everything with this key, whatever it is still doing."""

    provider: str
    key: str


@dataclass(frozen=True, slots=True)
class Land:
    """Download the run's outputs to the folder it was submitted from."""

    run: Run


Action = StartNode | StartSpare | TellAgent | StopNode | Land
