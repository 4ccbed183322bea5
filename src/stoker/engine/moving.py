"""Changing over by our own choice: from on-demand back to spot, or from spot to on-demand before it is too late.

The machine to go on with is asked for ahead. Only when it is there does the old one get its notice, so that a machine
that cannot be had costs nothing and the work stands still for a moment only.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from stoker.engine.actions import StartSpare, StopNode
from stoker.engine.deadline import outlook
from stoker.engine.decision import Decision
from stoker.engine.market import Market, cheapest_open
from stoker.engine.sighting import Sighting
from stoker.model.node import NodeState, Offer
from stoker.model.orders import Notice, Wish
from stoker.model.progress import Refusal
from stoker.model.run import Attempt, AttemptState, Run

NOTICE_S = 60.0  # for a script to save what it has, before its machine is given back
CHEAPER = 0.8  # a machine at more than this share of the price is not worth a changeover
MOST_REFUSALS = 12  # remembered: the pauses between two tries grow no longer after fewer


def wanted(run: Run, market: Market, now: datetime) -> Offer | None:
    """What to ask for ahead. Nothing as long as the script does not say how far it is, or has saved nothing: it might
    begin from nothing again."""
    attempt = run.attempt
    if attempt is None or not _settled(run, attempt) or attempt.offer is None:
        return None
    view = outlook(run, now)
    if view is None or not view.measured or attempt.last is None or not attempt.last.saved:
        return None
    if attempt.offer.spot:
        return cheapest_open(run, market, now, spot=False) if view.endangered else None
    if not view.may_leave:
        return None
    offer = cheapest_open(run, market, now, spot=True)
    return offer if offer and float(offer.usd_per_hour) < CHEAPER * float(attempt.offer.usd_per_hour) else None


def attend(run: Run, seen: Sighting, now: datetime) -> Decision:
    """What becomes of a machine that was asked for ahead by our own choice. Nothing where there is none."""
    attempt = run.attempt
    if attempt is None or attempt.spare is None or attempt.notice:
        return Decision(run)
    if seen.spare is None:
        return Decision(run, (StartSpare(run),))
    if seen.spare.state is NodeState.GONE:
        refused = (*attempt.refusals, Refusal(attempt.spare, now))[-MOST_REFUSALS:]
        after = _with_newest(run, replace(attempt, spare=None, refusals=refused))
        why = seen.spare.reason or "it could not be had"
        stays = Decision(after, (StopNode(run.job.on, seen.spare.key),))
        return stays.noting(now, "stays", f"attempt {attempt.number} stays where it is: {why}")
    if seen.spare.state is NodeState.UP and run.wish is Wish.GO_ON:
        why = _why(attempt.spare)
        notice = Notice(now, now + timedelta(seconds=NOTICE_S))
        after = _with_newest(run, replace(attempt, notice=notice, moving=why))
        return Decision(after).noting(now, "moving", f"attempt {attempt.number} moves: {why}")
    return Decision(run)


def _settled(run: Run, attempt: Attempt) -> bool:
    """It works, and nothing else is about to happen to it."""
    busy = attempt.notice or attempt.spare or attempt.fused or run.wish is not Wish.GO_ON
    return attempt.state is AttemptState.RUNNING and not busy


def _why(offer: Offer) -> str:
    what = f"a {'spot ' if offer.spot else ''}{offer.size} in {offer.place}"
    if offer.spot:
        return f"there is time enough for {what}, which is cheaper"
    return f"there is too little time left for another eviction; {what} stays"


def _with_newest(run: Run, attempt: Attempt) -> Run:
    return replace(run, attempts=(*run.attempts[:-1], attempt))
