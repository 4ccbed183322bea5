"""What a decision returns: the next facts, what to do, and what to write in the timeline."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from stoker.engine.actions import Action
from stoker.model.run import Event, Run


@dataclass(frozen=True, slots=True)
class Decision:
    run: Run
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()

    def noting(self, now: datetime, kind: str, text: str) -> Decision:
        return Decision(self.run, self.actions, (*self.events, Event(now, kind, text)))

    def doing(self, *actions: Action) -> Decision:
        return Decision(self.run, (*self.actions, *actions), self.events)
