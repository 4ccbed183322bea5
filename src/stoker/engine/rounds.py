"""One round over all open runs: those with news are advanced, then those that wait get what room there is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from stoker.engine.decision import Decision
from stoker.engine.lifecycle import advance, begin
from stoker.engine.placement import place
from stoker.engine.sighting import Sighting
from stoker.model.orders import Wish
from stoker.model.run import Run


def untouched(run: Run) -> bool:
    """It waits for its first node and nobody wants it to end: nothing can be seen of it, only room be found."""
    return not run.attempts and run.wish is Wish.GO_ON


def decide(
    runs: Collection[Run], seen: Mapping[str, Sighting], slots: Mapping[str, int | None], now: datetime
) -> list[Decision]:
    """A decision for every run that something was seen of or that begins. `seen` is by run id and may leave out runs
    that are untouched: a thousand waiting runs cost next to nothing. `slots` is by provider."""
    after = {run.id: run for run in runs}
    decisions = {run_id: advance(after[run_id], sighting, now) for run_id, sighting in seen.items()}
    after |= {run_id: decision.run for run_id, decision in decisions.items()}
    held = {run_id for run_id, sighting in seen.items() if sighting.leftovers or sighting.node}
    for run in place(after.values(), slots, now, held=held):
        before, begun = decisions.get(run.id, Decision(run)), begin(run, now)
        decisions[run.id] = Decision(begun.run, (*before.actions, *begun.actions), (*before.events, *begun.events))
    return list(decisions.values())
