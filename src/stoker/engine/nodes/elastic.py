"""Runs that may have fewer nodes than they prefer, such as `nodes: 2..4`: wait, replace, shrink, and grow again.

A run gets all nodes if they are available: those that are left, and replacements of any kind that its policy allows. If
they are not, it waits for a while, and then continues with as many as there are. It does not wait where that cannot
help: its budget does not pay for all of them, or its deadline leaves no time. To grow, the missing nodes are requested
in advance; the attempt saves and ends when all of them are ready.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from stoker.engine.decision import Decision, Sighting, StartSpare, StopNode
from stoker.engine.money import fuse, meter
from stoker.engine.money.fuse import Allowance
from stoker.engine.money.paying import times
from stoker.engine.nodes.lease import node_key
from stoker.engine.offers.deadline import Urgency, outlook
from stoker.engine.offers.gathering import choose_near
from stoker.engine.offers.market import MOST_REFUSALS, NOTICE_S, Market, fits_whole, same
from stoker.engine.patience import ROOM
from stoker.model.node import NodeState, Offer
from stoker.model.orders import Notice, Wish
from stoker.model.run.report import Refusal
from stoker.model.run.run import Attempt, AttemptState, Member, Run, RunState

PATIENCE_S = 30.0  # without work, before a run that waits for all of its nodes continues with fewer
REMEMBERED_S = 600.0  # how many nodes a place has refused at once, before so many are requested there again
SETTLED_S = 60.0  # of work, before it is interrupted to grow
WORTH = 4.0  # it does not grow for less work than this many restarts


@dataclass(frozen=True, slots=True)
class Gathering:
    """What came of asking for so many nodes."""

    nodes: int
    taken: tuple[Offer, ...] = ()
    waits: str = ""  # why it cannot start with so many; empty: it can
    unpaid: bool = False  # the budget does not pay for more
    market: Market | None = None  # what it would be chosen from


def widths(run: Run, room: int | None) -> range:
    """How many nodes it may start with, the preferred number first. `room`: None: its queue does not limit it."""
    most = run.job.most_nodes if room is None else min(run.job.most_nodes, room)
    return range(most, run.job.least_nodes - 1, -1)


def narrowed(run: Run, market: Market, now: datetime, nodes: int) -> Market:
    """With as much room in each place as its refusals have shown, to have so many nodes in all. Few providers tell in
    advance how many they have; a run that can do with fewer must not ask for all of them again and again."""
    if _is_least(run, nodes) or not run.attempts:
        return market
    return {ask: [_narrowed(run, one, now) for one in offers] for ask, offers in market.items()}


def _is_least(run: Run, nodes: int) -> bool:
    """With fewer it may not start: it asks for so many, whatever was refused before."""
    return nodes <= run.job.least_nodes


def _narrowed(run: Run, offer: Offer, now: datetime) -> Offer:
    room = next((nodes for nodes, at in _rooms(run, offer) if 0 <= (now - at).total_seconds() < REMEMBERED_S), None)
    if room is None:
        return offer
    taken = sum(same(one, offer) for one in run.attempts[-1].ahead)  # since then, for the next attempt
    room = max(room - taken, 0)
    return replace(offer, slots=room) if fits_whole(offer, room) else offer


def _rooms(run: Run, offer: Offer) -> Iterator[tuple[int, datetime]]:
    """How many new nodes of this offer its provider seemed to have, and when, the newest first."""
    for attempt in reversed(run.attempts):
        yield from ((one.room, one.at) for one in reversed(attempt.refusals) if one.room and same(one.offer, offer))
        asked = sum(_is_new(one, offer) for one in attempt.members)
        refused = sum(_is_new(one, offer) for one in attempt.troubled if one.trouble in ROOM)
        if refused and attempt.ended_at:
            yield _left(asked, refused if refused < asked - 1 else asked), attempt.ended_at


def _is_new(member: Member, offer: Offer) -> bool:
    return member.offer is not None and not member.offer.again and same(member.offer, offer)


def _left(asked: int, refused: int) -> int:
    """How many of them may be available. Where all were refused, the provider gives all or none: perhaps half."""
    return asked - refused if refused < asked else asked // 2


def hurries(run: Run, now: datetime) -> str:
    """Why it does not wait any longer for all of its nodes; empty: it waits."""
    view = outlook(run, now)
    if view and view.urgency is Urgency.URGENT:
        return "its deadline leaves no time to wait for all of them"
    # A negative wait means that the clock was set back: it is over.
    if not 0 <= (now - _idle_since(run)).total_seconds() < PATIENCE_S:
        return f"the others were not available for {PATIENCE_S:.0f} s"
    return ""


def chosen(run: Run, starts: Sequence[Gathering], now: datetime) -> tuple[Gathering, str]:
    """How it starts, and why with fewer nodes than it prefers. `starts` are in the order of `widths`, and only the last
    one may be possible. Where `waits` of what is returned is not empty, it waits."""
    first, last = starts[0], starts[-1]
    if not last.waits and last.nodes == run.job.most_nodes:
        return last, ""
    if last.waits:
        return next((one for one in starts if not one.unpaid), last), ""
    if last is first:  # its queue has decided
        return last, hurries(run, now) or "there is no room for more"
    if all(one.unpaid for one in starts[:-1]):
        return last, f"its budget pays for {last.nodes} of {run.job.most_nodes}"
    if why := hurries(run, now):
        return last, f"{why} ({first.waits})"
    until = _idle_since(run) + timedelta(seconds=PATIENCE_S)
    waits = f"{first.waits}; it continues with {last.nodes} of {run.job.most_nodes} nodes at {until:%H:%M:%S} UTC"
    return replace(first, waits=waits), ""


def may_grow(run: Run, now: datetime) -> bool:
    """It works with fewer nodes than it prefers, has saved, and nothing else is about to happen to it."""
    attempt = run.attempt
    if attempt is None or run.state is not RunState.RUNNING or run.width >= run.job.most_nodes or run.restored_at:
        return False
    busy = attempt.notice or attempt.broken_at or attempt.fused or run.wish is not Wish.GO_ON
    busy = busy or any(member.notice or member.spare for member in attempt.members)
    if busy or attempt.state is not AttemptState.RUNNING or not attempt.saved or attempt.started_at is None:
        return False
    view = outlook(run, now)
    if view and view.measured and view.work_s < WORTH * view.change_s:
        return False
    return (now - attempt.started_at).total_seconds() >= SETTLED_S


def grown(run: Run, nodes: int, now: datetime) -> Decision:
    """The attempt saves and ends: the next one has more nodes."""
    attempt = run.attempts[-1]
    why = f"{nodes} of {run.job.most_nodes} nodes are available, instead of {run.width}"
    if nodes == run.job.most_nodes:
        why = f"all {nodes} nodes are available again"
    notice = Notice(now, now + timedelta(seconds=NOTICE_S))
    after = run.with_newest(replace(attempt, notice=notice, moving=why))
    return Decision(after).noting(
        now, "growing", f"attempt {attempt.number} saves and ends, to resume with more: {why}"
    )


def asked_more(
    run: Run, market: Market, room: int | None, allowance: Allowance | None, now: datetime
) -> Decision | None:
    """Requests the missing nodes, or as many as are available and paid for, while the others work; None: no node is."""
    attempt = run.attempts[-1]
    peer = next((member.offer for member in attempt.members if member.offer), None)
    missing = run.job.most_nodes - run.width
    offer = choose_near(run, market, peer, now) if peer else None
    if offer is None:
        return None
    for count in range(missing if room is None else min(missing, room), 0, -1):
        if fits_whole(offer, count) and (allowance is None or _pays(run, offer, count, allowance, now)):
            return _asked(run, attempt, offer, count, now)
    return None


def attended(run: Run, seen: Sighting, now: datetime) -> Decision | None:
    """What becomes of the nodes that were requested in addition; None: there are none."""
    attempt = run.attempt
    if attempt is None or not attempt.growth or attempt.notice or attempt.state.over or run.wish is not Wish.GO_ON:
        return None
    if lost := next((one for one in seen.growth if one and one.state is NodeState.GONE), None):
        left = _left(len(attempt.growth), sum(one.state is NodeState.GONE for one in seen.growth if one))
        refused = [Refusal(one.offer, now, left) for one in attempt.growth[:1] if one.offer]
        after = replace(attempt, growth=(), refusals=(*attempt.refusals, *refused)[-MOST_REFUSALS:])
        stops = (StopNode(run.job.on, one.key) for one in attempt.growth)
        text = f"attempt {attempt.number} continues with {run.width} nodes: {lost.reason or 'no more were available'}"
        return Decision(run.with_newest(after), tuple(stops)).noting(now, "grows-later", text)
    if len(seen.growth) < len(attempt.growth) or None in seen.growth:
        return Decision(run, (StartSpare(run),))
    if all(one and one.state is NodeState.UP for one in seen.growth):
        return grown(run, run.width + len(attempt.growth), now)
    return Decision(run)


def _asked(run: Run, attempt: Attempt, offer: Offer, count: int, now: datetime) -> Decision:
    number = attempt.number + 1
    more = tuple(
        Member(number, node_key(run, number, node), AttemptState.ASKED, now, offer=offer, node=node)
        for node in range(run.width, run.width + count)
    )
    after = run.with_newest(replace(attempt, growth=more))
    for one in more:
        after = meter.asked(after, one.key, offer.usd_per_hour, now)
    what = f"{count} more {'node was' if count == 1 else 'nodes were'} requested ({offer.size} in {offer.place})"
    return Decision(after, (StartSpare(after),)).noting(now, "asked-ahead", f"{what}, to grow to {run.width + count}")


def _pays(run: Run, offer: Offer, count: int, allowance: Allowance, now: datetime) -> bool:
    """These beside those that work, and then all of them for a useful time."""
    whole = meter.spent(run, now) + fuse.reserve(run) + fuse.least(run, times(offer, run.width + count))
    return whole <= allowance.usd and fuse.affords(run, times(offer, count), allowance, now)


def _idle_since(run: Run) -> datetime:
    """When it last worked."""
    return next((one.ended_at for one in reversed(run.attempts) if one.started_at and one.ended_at), run.submitted_at)
