"""Which offer an attempt takes: the cheapest that has not just failed, spot before on-demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from stoker.model.job import Fallback, Job
from stoker.model.node import Need, Offer
from stoker.model.run import Attempt, AttemptState, Run

# Troubles that are the weather, as evictions are: waited out, and counted neither as losses nor as failures.
WEATHER = ("no-capacity", "quota-reached", "throttled")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 30.0, 900.0  # before an offer that had nothing is asked for again
SHUNNED_S = 600.0  # an offer that was taken away so lately is chosen after the others

Market = Mapping[tuple[str, Need], Sequence[Offer]]  # what each provider has for each need


def needs(job: Job) -> list[Need]:
    """What to ask providers for, what the job would rather have first."""
    falls_back = job.spot is None or job.spot.fallback is Fallback.ON_DEMAND
    kinds = ([True] if job.spot else []) + ([False] if falls_back else [])
    return [
        Need(
            nodes=job.nodes,
            spot=each,
            cpus=job.cpus or 0,
            memory_gb=job.memory or 0.0,
            gpus=job.gpus or (1 if job.gpu else 0),
            gpu=job.gpu or "",
            size=job.size or "",
            region=job.region or "",
        )
        for each in kinds
    ]


def choose(run: Run, market: Market, now: datetime) -> Offer | None:
    """None where nothing that fits can be asked for now: everything has just failed, or costs too much."""
    for need in needs(run.job):
        usable = [offer for offer in market.get((run.job.on, need), ()) if _affordable(run.job, offer)]
        open_now = [offer for offer in usable if now >= _closed_until(run, offer, now)]
        if open_now:
            return min(open_now, key=lambda offer: (_shunned(run, offer, now), offer.usd_per_hour, offer.place))
    return None


def why_none(run: Run, market: Market, now: datetime) -> str:
    """What a run waits for that `choose` has nothing for."""
    offers = [offer for need in needs(run.job) for offer in market.get((run.job.on, need), ())]
    affordable = [offer for offer in offers if _affordable(run.job, offer)]
    if not offers:
        return f"`{run.job.on}` has nothing that fits"
    if not affordable:
        cheapest = min(offers, key=lambda offer: offer.usd_per_hour)
        return f"the cheapest costs ${cheapest.usd_per_hour:.4f} an hour ({cheapest.size} in {cheapest.place})"
    next_at = min(_closed_until(run, offer, now) for offer in affordable)
    last = next((one.message for one in reversed(run.attempts) if one.trouble), "")
    return f"{last or 'none could be had'}; trying again at {next_at:%H:%M:%S} UTC"


def _affordable(job: Job, offer: Offer) -> bool:
    most = job.spot.max_price if job.spot and offer.spot else None
    return most is None or offer.usd_per_hour <= most


def _closed_until(run: Run, offer: Offer, now: datetime) -> datetime:
    """Each failure in a row doubles the pause. A time in the future means that the clock was set back: it is over."""
    failures = list(_failures(run, offer))
    if not failures:
        return now
    newest = failures[0].ended_at or now
    pause_s = min(FIRST_PAUSE_S * 2.0 ** (len(failures) - 1), LONGEST_PAUSE_S)
    return now if newest > now else newest + timedelta(seconds=pause_s)


def _failures(run: Run, offer: Offer) -> Iterator[Attempt]:
    """Those of this offer since it last gave a node, the newest first."""
    for attempt in reversed(run.attempts):
        if attempt.offer and _same(attempt.offer, offer):
            if attempt.trouble not in WEATHER:
                return
            yield attempt


def _shunned(run: Run, offer: Offer, now: datetime) -> bool:
    return any(
        attempt.state is AttemptState.EVICTED
        and attempt.offer is not None
        and _same(attempt.offer, offer)
        and attempt.ended_at is not None
        and (now - attempt.ended_at).total_seconds() < SHUNNED_S
        for attempt in run.attempts
    )


def _same(one: Offer, other: Offer) -> bool:
    return (one.size, one.place, one.spot) == (other.size, other.place, other.spot)
