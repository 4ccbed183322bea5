"""Moving by choice: from on-demand back to spot, or from spot to on-demand before it is too late.

The next machine is requested in advance. The old one gets its notice only when that is ready, so that an unavailable
machine costs nothing and the work stops only for a moment.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from stoker.engine.decision import Decision, StartSpare, StopNode
from stoker.engine.offers.deadline import Outlook, outlook
from stoker.engine.offers.market import Market, cheapest_open, price_now
from stoker.engine.sighting import Sighting
from stoker.model.node.node import NodeState, Offer
from stoker.model.node.orders import Notice, Wish
from stoker.model.run.report import Refusal
from stoker.model.run.run import Attempt, AttemptState, Run

NOTICE_S = 60.0  # for a script to save, before its machine is released
WORTH = 2.0  # a move has to save so many times its cost
MOST_REFUSALS = 12  # remembered: the pause between two requests reaches its maximum earlier


def wanted(run: Run, market: Market, now: datetime) -> Offer | None:
    """What to request in advance."""
    attempt, view = run.attempt, _view(run, now)
    if attempt is None or attempt.offer is None or view is None:
        return None
    if attempt.offer.spot and view.endangered:
        return cheapest_open(run, market, now, spot=False)
    offer = cheapest_open(run, market, now, spot=True) if view.may_leave else None
    price = price_now(run, market, attempt.offer)
    return offer if offer and _pays(view, float(price), float(offer.usd_per_hour)) else None


def let_go(run: Run, market: Market, now: datetime) -> Decision | None:
    """A run on-demand that has time to wait for spot releases its machine; None: it does not."""
    attempt, view = run.attempt, _view(run, now)
    if attempt is None or attempt.offer is None or attempt.offer.spot or view is None or not view.may_let_go:
        return None
    tried = len({refusal.offer.place for refusal in attempt.refusals if refusal.offer.spot})
    if not tried or cheapest_open(run, market, now, spot=True):
        return None
    return _given_notice(run, attempt, "there is time to wait for spot, which is cheaper", now)


def _view(run: Run, now: datetime) -> Outlook | None:
    """For a run that could move. None while the script does not report its progress, or has saved nothing: it might
    start over."""
    attempt = run.attempt
    if attempt is None or not _settled(run, attempt) or attempt.last is None or not attempt.last.saved:
        return None
    view = outlook(run, now)
    return view if view and view.measured else None


def _pays(view: Outlook, price: float, other: float) -> bool:
    """Whether the saving is worth the cost of the move: both machines at once, and some repeated work."""
    return view.work_s * (price - other) > WORTH * view.change_s * price


def attend(run: Run, seen: Sighting, now: datetime) -> Decision:
    """What happens to a machine that was requested in advance by choice. Nothing if there is none."""
    attempt = run.attempt
    if attempt is None or attempt.spare is None or attempt.notice:
        return Decision(run)
    if seen.spare is None:
        return Decision(run, (StartSpare(run),))
    if seen.spare.state is NodeState.GONE:
        refused = (*attempt.refusals, Refusal(attempt.spare, now))[-MOST_REFUSALS:]
        after = run.with_newest(replace(attempt, spare=None, refusals=refused))
        why = seen.spare.reason or "it was not available"
        stays = Decision(after, (StopNode(run.job.on, seen.spare.key),))
        return stays.noting(now, "stays", f"attempt {attempt.number} stays where it is: {why}")
    if seen.spare.state is NodeState.UP and run.wish is Wish.GO_ON:
        return _given_notice(run, attempt, _why(attempt.spare), now)
    return Decision(run)


def _given_notice(run: Run, attempt: Attempt, why: str, now: datetime) -> Decision:
    notice = Notice(now, now + timedelta(seconds=NOTICE_S))
    after = run.with_newest(replace(attempt, notice=notice, moving=why))
    return Decision(after).noting(now, "moving", f"attempt {attempt.number} is moving: {why}")


def _settled(run: Run, attempt: Attempt) -> bool:
    """It works, and nothing else is about to happen to it."""
    busy = attempt.notice or attempt.spare or attempt.fused or run.wish is not Wish.GO_ON
    return attempt.state is AttemptState.RUNNING and not busy


def _why(offer: Offer) -> str:
    what = f"a {'spot ' if offer.spot else ''}{offer.size} in {offer.place}"
    if offer.spot:
        return f"there is enough time for {what}, which is cheaper"
    return f"there is too little time left for another eviction; {what} is not evicted"
