"""One round over all open runs: each is advanced, then those that wait get what room there is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

from stoker.engine.decision import Decision
from stoker.engine.lifecycle import advance, begin
from stoker.engine.placement import place
from stoker.engine.sighting import Sighting
from stoker.model.run import Run


def decide(
    runs: Collection[Run], seen: Mapping[str, Sighting], slots: Mapping[str, int | None], now: datetime
) -> list[Decision]:
    """One decision per run, in order. `seen` is by run id, `slots` by provider."""
    decisions = {run.id: advance(run, seen[run.id], now) for run in runs}
    held = {run_id for run_id, sighting in seen.items() if sighting.leftovers or sighting.node}
    for run in place([one.run for one in decisions.values()], slots, now, held=held):
        before, begun = decisions[run.id], begin(run, now)
        decisions[run.id] = Decision(begun.run, (*before.actions, *begun.actions), (*before.events, *begun.events))
    return [decisions[run.id] for run in runs]
