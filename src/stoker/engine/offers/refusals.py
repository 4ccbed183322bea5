"""What earlier requests of a run tell about an offer: until when it pauses, and which offers and places refuse it.

A gang may have nodes of several offers: what one of its nodes was refused says nothing about the offers of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice

from stoker.engine.patience import HOPELESS, NOT_READY, WEATHER, has_run
from stoker.model.node import Offer
from stoker.model.run.run import Attempt, Run

FIRST_PAUSE_S, LONGEST_PAUSE_S = 30.0, 300.0  # before an unavailable offer is requested again
MOST_DOUBLINGS = 8  # of the pause: by then it is the longest
MOST_IN_PLACE, BARRED_S = 2, 3600.0  # sizes that a place has refused, before the others go first for so long


def same(one: Offer, other: Offer) -> bool:
    return (one.size, one.place, one.spot) == (other.size, other.place, other.spot)


def closed_until(run: Run, offer: Offer, now: datetime) -> datetime:
    """Each failure in a row doubles the pause. A time in the future means that the clock was set back: it is over."""
    failures = list(islice(_failures(run, offer), MOST_DOUBLINGS))
    if not failures:
        return now
    newest = failures[0] or now
    pause_s = min(FIRST_PAUSE_S * 2.0 ** (len(failures) - 1), LONGEST_PAUSE_S)
    return now if newest > now else newest + timedelta(seconds=pause_s)


def refused_at(run: Run, offer: Offer) -> datetime | None:
    """Whatever the reason: an image that the size cannot boot is refused again; a temporary fault costs one size."""
    troubled = (one for attempt in reversed(run.attempts) for one in attempt.troubled)
    found = (one for one in troubled if one.offer and _closes(one.trouble, one.offer, offer))
    return next((one.ended_at or one.asked_at for one in found), None)


def barred(run: Run, now: datetime) -> set[str]:
    """The places that refused several sizes in a row: a cloud may close a whole region to an account."""
    refused: dict[str, set[str]] = {}
    for attempt in run.attempts:
        for one in attempt.members if attempt.state.over and not attempt.troubled else ():
            if one.offer:
                refused.pop(one.offer.place, None)
        for one in attempt.troubled:
            if one.offer and one.ended_at and one.trouble != NOT_READY and _is_refusal(one.trouble):
                lately = (now - one.ended_at).total_seconds() < BARRED_S
                refused.setdefault(one.offer.place, set()).update({one.offer.size} if lately else ())
    return {place for place, sizes in refused.items() if len(sizes) >= MOST_IN_PLACE}


def _failures(run: Run, offer: Offer) -> Iterator[datetime | None]:
    """When this offer was unavailable since it last gave a node, the newest first."""
    for attempt in reversed(run.attempts):
        yield from (one.at for one in reversed(attempt.refusals) if same(one.offer, offer))
        refused = [one for one in attempt.troubled if one.offer and same(one.offer, offer)]
        if failed := next((one for one in refused if _pauses(run, one.trouble)), None):
            yield failed.ended_at or attempt.ended_at
        elif refused or (not attempt.troubled and _has(attempt, offer)):
            return


def _pauses(run: Run, trouble: str) -> bool:
    """Before the script has run once, few other refusals end the run: it does not delay them."""
    return trouble in WEATHER or (trouble != NOT_READY and has_run(run))


def _has(attempt: Attempt, offer: Offer) -> bool:
    return any(one.offer and same(one.offer, offer) for one in attempt.members)


def _closes(trouble: str, asked: Offer, offer: Offer) -> bool:
    """What a machine of a size lacks, such as a driver in its image, it lacks in every place."""
    if trouble == NOT_READY:
        return asked.size == offer.size
    return _is_refusal(trouble) and same(asked, offer)


def _is_refusal(trouble: str) -> bool:
    """For a reason of the provider's own, which does not pass by itself, and which no person has to repair first."""
    return bool(trouble) and trouble not in (*WEATHER, *HOPELESS)
