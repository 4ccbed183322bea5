"""Which offer an attempt takes: the cheapest that has not just failed, spot first if a deadline allows it.

Moving by choice: from on-demand back to spot, or from spot to on-demand before it is too late.

The next machine is requested in advance. The old one gets its notice only when that is ready, so that an unavailable
machine costs nothing and the work stops only for a moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import islice

from stoker.engine.decision import Decision, Sighting, StartSpare, StopNode
from stoker.engine.offers.deadline import Outlook, Urgency, outlook, words
from stoker.engine.patience import HOPELESS, NOT_READY, WEATHER, has_run
from stoker.model.job.job import Fallback, Job
from stoker.model.node import Need, NodeState, Offer, Pool
from stoker.model.orders import Notice, Wish
from stoker.model.run.report import Refusal
from stoker.model.run.run import Attempt, AttemptState, Run

SHUNNED_S = 600.0  # an offer that was evicted so recently is chosen after the others

Market = Mapping[tuple[str, Need], Sequence[Offer]]  # the offers of each provider for each need


def needs(job: Job, pool: Pool | None = None) -> list[Need]:
    """What to request from providers, the job's preference first. A deadline needs both kinds."""
    falls_back = not job.spot or job.spot.fallback is Fallback.ON_DEMAND or job.deadline is not None
    wants_spot = job.spot or (job.spot is None and job.deadline)
    kinds = ([True] if wants_spot else []) + ([False] if falls_back else [])
    return [
        Need(
            nodes=job.most_nodes,
            spot=each,
            cpus=job.cpus or 0,
            memory_gb=job.memory or 0.0,
            gpus=job.gpus or (1 if job.gpu else 0),
            gpu=job.gpu or "",
            size=job.size or "",
            region=job.region or "",
            contained=job.environment.contained,
            image=job.environment.image or "",
            image_login=job.environment.login or "",
            pool=pool,
            environment=(job.environment.kept or "").partition(":")[2],
        )
        for each in kinds
    ]


def choose(run: Run, market: Market, now: datetime) -> Offer | None:
    """None if nothing that fits can be requested now: everything has just failed, or costs too much, or there is time
    to wait for spot."""
    for spot in _kinds(run, market, now):
        if offer := cheapest_open(run, market, now, spot=spot):
            return offer
    return None


def cheapest_open(run: Run, market: Market, now: datetime, *, spot: bool) -> Offer | None:
    """The offer of one kind to request now."""
    fitting = [offer for offer in open_now(run, market, now) if offer.spot == spot]
    return min(fitting, key=lambda offer: _rank(run, offer, now)) if fitting else None


def fits_whole(offer: Offer, nodes: int) -> bool:
    """So many nodes of it can run at once, if its provider reports it."""
    return offer.slots is None or offer.slots >= nodes


def price_now(run: Run, market: Market, offer: Offer) -> Decimal:
    """The current price of a run's machine; its price at the request, if it is no longer offered."""
    return next((one.usd_per_hour for one in _offers(run, market) if same(one, offer)), offer.usd_per_hour)


def open_now(run: Run, market: Market, now: datetime) -> list[Offer]:
    """What can be requested now: within the price limit, and not just failed. An offer that the provider has refused to
    this run for its own reason is excluded, as long as there is another; then, one in a place that refuses any size.
    Where the others have no capacity, it is tried again from time to time: the reason may have passed."""
    offers = [offer for offer in _offers(run, market) if _affordable(run.job, offer)]
    refused = [(offer, refused_at(run, offer)) for offer in offers]
    others = [offer for offer, at in refused if at is None]
    closed_places = barred(run, now)
    elsewhere = [offer for offer in others if offer.place not in closed_places]
    old = [offer for offer, at in refused if at and (now - at).total_seconds() >= BARRED_S]
    return _rested(run, elsewhere or others or offers, now) or _rested(run, old, now)


def _rested(run: Run, offers: Sequence[Offer], now: datetime) -> list[Offer]:
    """Those whose pause is over."""
    return [offer for offer in offers if now >= closed_until(run, offer, now)]


def why_none(run: Run, market: Market, now: datetime) -> str:
    """What a run waits for, if `choose` returns nothing."""
    kinds = _kinds(run, market, now)
    offers = [offer for offer in _offers(run, market) if offer.spot in kinds]
    affordable = [offer for offer in offers if _affordable(run.job, offer)]
    if not offers:
        return f"`{run.job.on}` has no offer that fits"
    if not affordable:
        cheapest = min(offers, key=lambda offer: offer.usd_per_hour)
        return f"the cheapest costs ${cheapest.usd_per_hour:.4f} per hour ({cheapest.size} in {cheapest.place})"
    next_at = min(closed_until(run, offer, now) for offer in affordable)
    last = next((one.message for one in reversed(run.attempts) if one.trouble), "")
    waits = f"{last or 'no machine was available'}; retrying at {next_at:%H:%M:%S} UTC"
    return f"{waits}; {words(run, now)}: enough time to wait for spot" if run.job.deadline else waits


def _kinds(run: Run, market: Market, now: datetime) -> tuple[bool, ...]:
    """Whether spot (True) or on-demand (False) is acceptable, the preferred one first."""
    view = outlook(run, now)
    if view is None:
        return True, False
    if view.urgency is Urgency.URGENT:
        return False, True  # a machine that may be evicted is still better than none
    # For spot that a provider has refused for its own reason, there is nothing to wait.
    waits = view.waits and any(offer.spot and refused_at(run, offer) is None for offer in _offers(run, market))
    return (True,) if waits else (True, False)


def _offers(run: Run, market: Market) -> Iterator[Offer]:
    for need in needs(run.job, run.pool):
        yield from market.get((run.job.on, need), ())


def _rank(run: Run, offer: Offer, now: datetime) -> tuple[bool, Decimal, str]:
    return _shunned(run, offer, now), offer.usd_per_hour, offer.place


def _affordable(job: Job, offer: Offer) -> bool:
    most = job.spot.max_price if job.spot and offer.spot else None
    return most is None or offer.usd_per_hour <= most


def _shunned(run: Run, offer: Offer, now: datetime) -> bool:
    return any(attempt.offer and same(attempt.offer, offer) and _was_taken(attempt, now) for attempt in run.attempts)


def _was_taken(attempt: Attempt, now: datetime) -> bool:
    """Lately, or it is about to be."""
    if attempt.state is AttemptState.EVICTED and attempt.ended_at:
        return (now - attempt.ended_at).total_seconds() < SHUNNED_S
    return not attempt.state.over and attempt.notice is not None and not attempt.notice.drill


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
