"""The offers for the nodes of an attempt: machines that are left, those requested in advance, and new ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from stoker.engine.decision import Sighting
from stoker.engine.nodes.nodes import resumed
from stoker.engine.offers.market import Market, choose, fits_whole, needs, why_none
from stoker.model.node import Offer
from stoker.model.orders import Wish
from stoker.model.run.report import GOOD, Outcome
from stoker.model.run.run import Attempt, AttemptState, Member, Run, RunState

# How a node ends whose machine may be sound, and whose run may not start again, or not on a machine like this.
_BY_ITSELF = (
    *GOOD,
    Outcome.BROKEN,
    Outcome.TIMED_OUT,
    Outcome.BUDGET_REACHED,
    Outcome.CANCELLED,
    Outcome.NOT_READY,
)


def leaving(run: Run) -> Iterator[int]:
    """The nodes for which a replacement may be requested in advance: those that are about to be evicted, or were, or
    that a run with a deadline might rather leave. A gang only replaces, it never moves by choice."""
    attempt = run.attempt
    if attempt is None or attempt.state.over or run.wish is not Wish.GO_ON or run.restored_at or attempt.paused:
        return
    if attempt.troubled:  # one that was refused is requested again with its whole gang, and those released for it
        return
    for member in attempt.members:
        if member.spare:
            continue
        if member.notice:
            if not member.notice.drill and not member.notice.returns:
                yield member.node
        elif (_is_missing(attempt, member) and attempt.broken_at) or (
            not attempt.peers and run.job.deadline is not None
        ):
            yield member.node


def _is_missing(attempt: Attempt, member: Member) -> bool:
    """The next attempt needs another node in its place. One that ended by itself may have ended or paused the run."""
    return state_of(attempt, member).over and not member.stays and member.outcome not in _BY_ITSELF


def offers(
    run: Run, seen: Sighting | None, market: Market, runs: Collection[Run], now: datetime, nodes: int | None = None
) -> tuple[list[Offer], str]:
    """The offer for each node of the next attempt: all of them, or none and why. `nodes`: None: as many as the job
    prefers."""
    last, nodes = run.attempt, run.job.most_nodes if nodes is None else nodes
    if not any(name == run.job.on for name, _ in market):
        # A server that has just started may see an eviction before it knows what is available.
        spares = [member.spare for member in last.members if member.spare] if last else []
        if last and len(spares) == nodes:
            return spares, ""
        return [], "checking which machines are available" if last and last.offer else ""
    best = choose(run, market, now)
    taken = _taken(run, nodes, seen, market, best, now)
    taken, best = _beside(run, market, taken, best, now)
    fresh = sum(offer is best for offer in taken)
    if best is None and fresh:
        why = why_none(run, market, now)
        return [], why if nodes == 1 else f"{fresh} of {nodes} nodes are not available: {why}"
    if nodes > 1 and fresh and best:
        if not fits_whole(best, fresh):
            return [], f"requires {fresh} nodes at once, but {best.place} has room for {best.slots} of {best.size}"
        if other := _being_placed(run, best, runs):
            return [], f"waiting for the nodes of {other.name}: only one multi-node run starts at a time"
    return [offer for offer in taken if offer], ""


def in_one_network(run: Run, offers: Sequence[Offer]) -> list[Offer]:
    """The nodes of a gang join the network of those that it has or takes over, or get one of their own."""
    if run.job.most_nodes == 1:
        return list(offers)
    gang = gang_of(run, offers)
    return [one if one.gang else replace(one, gang=gang) for one in offers]


def gang_of(run: Run, offers: Sequence[Offer] = ()) -> str:
    """What the machines of a run with several nodes are requested with; empty: it has one node."""
    had = [member.offer for member in run.attempt.members if member.offer] if run.attempt else []
    return next((one.gang for one in (*offers, *had) if one.gang), run.id) if run.job.most_nodes > 1 else ""


def wide(run: Run, market: Market, nodes: int) -> Market:
    """Without the offers that have too little room for so many nodes, if there are others for this run."""
    if nodes == 1:
        return market
    fitting = {ask: [one for one in some if fits_whole(one, nodes)] for ask, some in market.items()}
    return fitting if any(fitting.get((run.job.on, need)) for need in needs(run.job, run.pool)) else market


def _taken(
    run: Run, nodes: int, seen: Sighting | None, market: Market, best: Offer | None, now: datetime
) -> list[Offer | None]:
    """For each node what was requested in advance, else the machine that it had, else that of a node that there is no
    longer, else the best offer."""
    last = run.attempt
    had = [one.spare or resumed(run, one, seen, market, best, now) for one in last.members] if last else []
    had += [one.offer for one in last.growth] if last else []
    left = [one for one in had[nodes:] if one and one.again]
    return [(had[node] if node < len(had) else None) or (left.pop(0) if left else best) for node in range(nodes)]


def _beside(
    run: Run, market: Market, taken: list[Offer | None], best: Offer | None, now: datetime
) -> tuple[list[Offer | None], Offer | None]:
    """New nodes must reach those that are kept. If none is available there but some are elsewhere, all nodes move,
    unless a node was requested in advance."""
    kept = next((offer for offer in taken if offer is not best), None)
    if kept is None or not any(offer is best for offer in taken):
        return taken, best
    near = choose_near(run, market, kept, now)
    if near is None and best and not run.attempts[-1].ahead:
        return [best for _ in taken], best
    return [near if offer is best else offer for offer in taken], near


def choose_near(run: Run, market: Market, peer: Offer, now: datetime) -> Offer | None:
    """An offer that can work with this one, of the same size if possible, since all nodes wait for the slowest."""
    if not peer.network:
        return choose(run, market, now)
    near = {ask: [one for one in offers if one.network == peer.network] for ask, offers in market.items()}
    alike = {ask: [one for one in offers if one.size == peer.size] for ask, offers in near.items()}
    return choose(run, alike, now) or choose(run, near, now)


def _being_placed(run: Run, offer: Offer, runs: Collection[Run]) -> Run | None:
    """Another gang that waits for nodes of the same kind. Two half-started gangs would block each other."""
    for one in runs:
        attempt = one.attempt
        if one.id != run.id and attempt and attempt.peers and one.state is RunState.STARTING:
            mine = (member.offer for member in attempt.members if member.offer and not member.offer.again)
            if any((each.size, each.place) == (offer.size, offer.place) for each in mine):
                return one
    return None


def state_of(attempt: Attempt, member: Member) -> AttemptState:
    """Of the node itself: the first one's state is that of the whole attempt."""
    return attempt.lead or AttemptState.RUNNING if member.node == 0 else member.state
