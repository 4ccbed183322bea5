"""What money has to say in a round: what is stopped for it, which offers a run can pay, and what nodes are told."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from stoker.engine.decision import Action, Decision, StartNode, StartSpare, TellAgent
from stoker.engine.lifecycle import advance
from stoker.engine.money import fuse, meter
from stoker.engine.money.fuse import Allowance
from stoker.engine.offers.market import Market, needs
from stoker.engine.sighting import Sighting
from stoker.model.node.node import NodeState
from stoker.model.run.run import Run


def advanced(before: Run, metered: Run, seen: Sighting, allowance: Allowance | None, now: datetime) -> Decision:
    """The next facts of a run, with what it costs: the fuse comes before everything but what its node said last.
    `metered` is `before` with what was seen of its costs."""
    if not metered.spells and metered.budget is None and allowance is None:
        return advance(metered, seen, now)
    warning = fuse.warned(fuse.noted(metered, seen.report), now)
    over = _is_over(metered, seen)
    burning = None if over else fuse.burn(warning.run, allowance, now, there=seen.node is not None)
    decision = burning or advance(warning.run, seen, now)
    events = (*meter.price_events(before, metered, now), *warning.events)
    return replace(decision, events=(*events, *decision.events)) if events else decision


def _is_over(run: Run, seen: Sighting) -> bool:
    """Its node has come to its end by itself: there is nothing left to stop."""
    if run.attempt is None or run.attempt.state.over:
        return False
    said = seen.report is not None and (seen.report.outcome is not None or seen.node is None)
    return said or (seen.node is not None and seen.node.state is NodeState.GONE)


def payable(run: Run, market: Market, allowance: Allowance | None, now: datetime) -> Market | None:
    """The offers that the run can pay from what it may still cost; None where there are some, and it can pay none."""
    if allowance is None or (run.attempt and run.attempt.spare):
        return market
    mine = {ask: offers for ask, offers in market.items() if ask[0] == run.job.on}
    paid = {ask: [one for one in some if fuse.affords(run, one, allowance, now)] for ask, some in mine.items()}
    return None if any(mine.values()) and not any(paid.values()) else paid


def held_back(decision: Decision, market: Market, allowance: Allowance, now: datetime) -> Decision:
    """No offer can be paid: the run waits, and says what it would take, or until what it had before is gone."""
    run = decision.run
    offers = [offer for need in needs(run.job) for offer in market.get((run.job.on, need), ())]
    if run.costing and any(meter.spent(run, now) + fuse.least(run, offer) <= allowance.usd for offer in offers):
        return replace(decision, run=replace(run, reason="waits until its earlier node is seen gone: both may cost"))
    waits = fuse.unaffordable(run, offers, allowance, now)
    return Decision(waits.run, (*decision.actions, *waits.actions), (*decision.events, *waits.events))


def with_fuse(decision: Decision, seen: Sighting | None, allowance: Allowance | None, now: datetime) -> Decision:
    """With what the node may spend in the actions that speak to it. One that has not said a word yet reads it in its
    orders: what it is told later, it must know to be fresh."""
    told = fuse.told(decision.run, allowance, now) if decision.actions else None
    if told is None:
        return decision
    heard = seen is not None and seen.report is not None

    def fused(action: Action) -> Action:
        match action:
            case StartNode() | StartSpare():
                return replace(action, fuse=told)
            case TellAgent() if heard:
                return replace(action, fuse=told)
        return action

    return replace(decision, actions=tuple(fused(action) for action in decision.actions))
