"""The role of money in a round: what is stopped for it, which offers a run can pay, and what nodes are told."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from decimal import Decimal

from stoker.engine.decision import Action, Decision, Sighting, StartNode, StartSpare, TellAgent
from stoker.engine.money import fuse, meter
from stoker.engine.money.fuse import Allowance
from stoker.engine.nodes.gang import advance
from stoker.engine.nodes.lease import ahead
from stoker.engine.offers.market import Market, needs
from stoker.model.cause import Cause
from stoker.model.node import NodeState, Offer
from stoker.model.run.run import Member, Run


def advanced(before: Run, metered: Run, seen: Sighting, allowance: Allowance | None, now: datetime) -> Decision:
    """The next facts of a run, with its cost: the fuse comes before everything except its node's last report. `metered`
    is `before` with the observed costs."""
    if not metered.spells and metered.budget is None and allowance is None:
        return advance(metered, seen, now)
    noted = metered
    for one in (seen, *seen.peers):
        noted = fuse.noted(noted, one.report)
    warning = fuse.warned(noted, now)
    over = any(_is_over(metered, one) for one in (seen, *seen.peers))
    burning = None if over else fuse.burn(warning.run, allowance, now, there=seen.node is not None)
    decision = burning or advance(warning.run, seen, now)
    events = (*meter.price_events(before, metered, now), *warning.events)
    return replace(decision, events=(*events, *decision.events)) if events else decision


def _is_over(run: Run, seen: Sighting) -> bool:
    """Its node has ended by itself: there is nothing left to stop."""
    if run.attempt is None or run.attempt.state.over:
        return False
    said = seen.report is not None and (seen.report.outcome is not None or seen.node is None)
    return said or (seen.node is not None and seen.node.state is NodeState.GONE)


def payable(run: Run, market: Market, allowance: Allowance | None, now: datetime, nodes: int = 1) -> Market | None:
    """The offers of which the run can pay `nodes` from the rest of its allowance; None if there are offers, and it can
    pay none."""
    if allowance is None:
        return market
    coming = ahead(run)[:nodes]
    if coming:
        # What is held back pays for one node beside those that work. A gang that lost several requests the others
        # together with the rest, once these are gone.
        if run.job.most_nodes == 1:
            return market
        if _is_under_way(run):
            return {}
    asks = [(run.job.on, need) for need in needs(run.job, run.pool)]  # other runs may need cheaper ones
    mine = {ask: market[ask] for ask in asks if ask in market}
    keys = {member.key for member in coming}
    paid = {
        ask: [one for one in some if fuse.affords(run, _together(one, nodes, coming), allowance, now, keys)]
        for ask, some in mine.items()
    }
    return None if any(mine.values()) and not any(paid.values()) else paid


def times(offer: Offer, nodes: int) -> Offer:
    """The cost of all nodes that are requested together: a gang has all of them or none."""
    return offer if nodes == 1 else replace(offer, usd_per_hour=offer.usd_per_hour * nodes)


def _together(offer: Offer, nodes: int, coming: Collection[Member]) -> Offer:
    """The cost of all nodes of an attempt, of which some were requested in advance, at a price of their own."""
    had = sum((member.offer.usd_per_hour for member in coming if member.offer), Decimal(0))
    return replace(offer, usd_per_hour=offer.usd_per_hour * (nodes - len(coming)) + had)


def _is_under_way(run: Run) -> bool:
    return run.attempt is not None and not run.attempt.state.over


def held_back(decision: Decision, market: Market, allowance: Allowance, now: datetime) -> Decision:
    """No offer can be paid: the run waits, and reports what it would need, or waits until its earlier node is gone. One
    that was requested in advance is not waited for: it is a node of the next attempt, and may never come alone."""
    run, nodes = decision.run, decision.run.job.least_nodes
    coming = ahead(run)[:nodes]
    keys = {member.key for member in coming}
    earlier = any(spell.until is None and spell.key not in keys for spell in run.spells)
    some = [one for need in needs(run.job, run.pool) for one in market.get((run.job.on, need), ())]
    offers = [_together(one, nodes, coming) for one in some]
    if earlier and any(meter.spent(run, now) + fuse.least(run, offer) <= allowance.usd for offer in offers):
        reason = "waiting until its earlier node is gone: both may cost money"
        return replace(decision, run=replace(run, reason=reason, cause=Cause.EARLIER_NODE))
    waits = fuse.unaffordable(run, offers, allowance, now)
    return Decision(waits.run, (*decision.actions, *waits.actions), (*decision.events, *waits.events))


def with_fuse(decision: Decision, seen: Sighting | None, allowance: Allowance | None, now: datetime) -> Decision:
    """Adds what the node may spend to the actions for it. A node that has not reported yet reads it in its orders: what
    it is told later, it must know to be fresh."""
    told = fuse.told(decision.run, allowance, now) if decision.actions else None
    if told is None:
        return decision
    heard = seen is not None and all(one.report for one in (seen, *seen.peers))

    def fused(action: Action) -> Action:
        match action:
            case StartNode() | StartSpare():
                return replace(action, fuse=told)
            case TellAgent() if heard:
                return replace(action, fuse=told)
        return action

    return replace(decision, actions=tuple(fused(action) for action in decision.actions))
