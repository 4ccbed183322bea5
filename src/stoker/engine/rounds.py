"""One round over all open runs: those with news are advanced, then those that wait get what room there is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime

from stoker.engine.deadline import words
from stoker.engine.decision import Decision
from stoker.engine.lifecycle import advance, ask_ahead, begin
from stoker.engine.market import Market, choose, why_none
from stoker.engine.moving import wanted
from stoker.engine.placement import place
from stoker.engine.receipt import with_effort
from stoker.engine.sighting import Sighting
from stoker.model.node import Offer
from stoker.model.orders import Wish
from stoker.model.run import Run


def untouched(run: Run) -> bool:
    """It waits for its first node and nobody wants it to end: nothing can be seen of it, only room be found."""
    return not run.attempts and run.wish is Wish.GO_ON


def decide(
    runs: Collection[Run],
    seen: Mapping[str, Sighting],
    slots: Mapping[str, int | None],
    now: datetime,
    market: Market | None = None,
) -> list[Decision]:
    """A decision for every run that something was seen of or that begins. `seen` is by run id and may leave out runs
    that are untouched: a thousand waiting runs cost next to nothing. `slots` is by provider. `market` holds the offers
    of providers that have several; the runs of others begin without one."""
    after = {run.id: run for run in runs}
    decisions = {run_id: _advanced(after[run_id], sighting, now) for run_id, sighting in seen.items()}
    after |= {run_id: decision.run for run_id, decision in decisions.items()}
    held = {run_id for run_id, sighting in seen.items() if _in_the_way(sighting)}
    for run in place(after.values(), slots, now, held=held):
        offer, waits = _offer(run, market or {}, now)
        if waits:
            decisions[run.id] = _with_reason(decisions.get(run.id, Decision(run)), waits)
            continue
        before, begun = decisions.get(run.id, Decision(run)), begin(run, now, offer)
        if run.job.deadline and offer:
            begun = begun.noting(now, "deadline", words(run, now))
        decisions[run.id] = Decision(begun.run, (*before.actions, *begun.actions), (*before.events, *begun.events))
    for run in after.values():
        if run.id in decisions and (spare := _spare(decisions[run.id].run, seen.get(run.id), market or {}, now)):
            before, asked = decisions[run.id], ask_ahead(decisions[run.id].run, spare, now)
            decisions[run.id] = Decision(asked.run, (*before.actions, *asked.actions), (*before.events, *asked.events))
    return list(decisions.values())


def _advanced(run: Run, sighting: Sighting, now: datetime) -> Decision:
    decision = advance(run, sighting, now)
    return replace(decision, run=with_effort(decision.run, sighting.report))


def _in_the_way(sighting: Sighting) -> bool:
    """Something of an earlier attempt may still run."""
    node = sighting.node is not None and not sighting.node.still
    return node or bool(set(sighting.leftovers) - set(sighting.still))


def _offer(run: Run, market: Market, now: datetime) -> tuple[Offer | None, str]:
    """The offer to take, and where there is none to be had now, why."""
    if run.attempt and run.attempt.spare:
        return run.attempt.spare, ""
    if not any(name == run.job.on for name, _ in market):
        return None, ""
    offer = choose(run, market, now)
    return offer, "" if offer else why_none(run, market, now)


def _spare(run: Run, sighting: Sighting | None, market: Market, now: datetime) -> Offer | None:
    """What to ask for ahead, where the newest attempt's machine is about to be taken and nothing was asked for yet, or
    where the run would rather be elsewhere."""
    attempt = run.attempt
    if attempt is None or attempt.state.over or attempt.spare or run.wish is not Wish.GO_ON:
        return None
    if attempt.notice:
        return None if attempt.notice.drill else choose(run, market, now)
    in_the_way = sighting is None or sighting.leftovers  # perhaps what is left of the last one asked for ahead
    return None if in_the_way else wanted(run, market, now)


def _with_reason(decision: Decision, reason: str) -> Decision:
    return Decision(replace(decision.run, reason=reason), decision.actions, decision.events)
