"""The expected time and cost of a job, from earlier runs of it: the cheapest choice for its deadline and budget.

Nothing is guessed: if no run has ended on a size, its time is unknown, and only prices per hour are shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from statistics import fmean

from stoker.engine.decision import SUPPOSED_EVICTIONS, SUPPOSED_HOURS
from stoker.engine.money.fuse import dollars
from stoker.engine.money.receipt import receipt
from stoker.model.job.job import Job
from stoker.model.node import Offer
from stoker.model.run.receipt import Expectation, Forecast, Part, Past, Receipt, Stay, Taken
from stoker.model.run.run import Attempt, AttemptState, Run, RunState

_NEWEST = 5  # runs used for the estimate: older ones had another script
_BEFORE = (Part.PROVISIONING, Part.SETUP, Part.DATA)
_HOUR = 3600.0


def forecast(
    job: Job, offers: Iterable[Offer], earlier: Collection[Run], now: datetime, hours: float | None = None
) -> Forecast:
    """`earlier` are runs of the same experiment, newest first. `hours` is the work, if the user gave it."""
    known = past(earlier, now)
    made = list(offers)
    if hours is not None:
        start_s = known.start_s if known.start_s is not None else max((one.ready_s for one in made), default=0.0)
        known = replace(known, work_s={one.size: hours * _HOUR for one in made}, start_s=start_s, said_h=hours)
    expected = [_judged(job, _expected(job, offer, known)) for offer in made]
    expected.sort(key=_rank)
    fitting = [one for one in expected if not one.problem]
    choice = fitting[0] if fitting else None
    return Forecast(known, tuple(expected), choice, _why(job, expected, choice, known))


def past(earlier: Collection[Run], now: datetime) -> Past:
    made = [(run, receipt(run, now)) for run in earlier]
    whole = [one for run, one in made if run.state is RunState.SUCCEEDED and one.parts[Part.USEFUL].seconds]
    work: dict[str, list[float]] = {}
    for run, one in made:
        for size, seconds in _work_s(run, one).items() if one in whole else ():
            work.setdefault(size, []).append(seconds)
    stays = [stay for _, one in made for stay in one.stays if _worked(stay)]
    taken = [gone for _, one in made for gone in one.taken if gone.how == AttemptState.EVICTED]
    spot = [stay for _, one in made for stay in one.stays if stay.spot]
    return Past(
        runs=len(whole),
        work_s={size: fmean(times[:_NEWEST]) for size, times in work.items()},
        start_s=fmean(_start_s(stay) for stay in stays) if stays else None,
        lost_s=fmean(float(gone.redone.seconds) for gone in taken) if taken else None,
        evictions=sum(_of_spot(gone, one) for _, one in made for gone in one.taken if gone.how == AttemptState.EVICTED),
        spot_s=float(sum((stay.whole.seconds for stay in spot), Decimal(0))),
    )


def _of_spot(gone: Taken, made: Receipt) -> bool:
    """Drills do not count: they do not show how often a cloud evicts."""
    return any(stay.spot for stay in made.stays if stay.attempt == gone.attempt)


def _expected(job: Job, offer: Offer, known: Past) -> Expectation:
    full = offer.on_demand_usd_per_hour
    discount = float(1 - offer.usd_per_hour / full) if offer.spot and full else None
    price = offer.usd_per_hour * job.most_nodes
    lasts_s = float(job.budget / price) * _HOUR if job.budget is not None and price else None
    work_s, start_s = known.work_s.get(offer.size), known.start_s or 0.0
    if work_s is None:
        return Expectation(offer, discount, lasts_s=lasts_s)
    rate = _rate(known) if offer.spot else 0.0
    # Each eviction costs another start and the unsaved work, during which there may be evictions, too.
    share = rate / _HOUR * (start_s + (known.lost_s or 0.0))
    if share >= 1:
        why = "its nodes are evicted before they make progress"
        return Expectation(offer, discount, lasts_s=lasts_s, problem=why)
    seconds = (start_s + work_s) / (1 - share)
    usd = (Decimal(seconds) * price / 3600).quantize(Decimal("0.000001"))
    return Expectation(offer, discount, seconds, usd, rate * seconds / _HOUR, lasts_s)


def _judged(job: Job, one: Expectation) -> Expectation:
    most = job.spot.max_price if job.spot and one.offer.spot else None
    problem = one.problem
    if most is not None and one.offer.usd_per_hour > most:
        problem = f"{dollars(one.offer.usd_per_hour)} an hour is more than `spot.max_price`"
    elif job.deadline is not None and one.seconds is not None and one.seconds > job.deadline:
        problem = f"takes {spelled(one.seconds)}, but the deadline is {spelled(job.deadline)}"
    elif job.budget is not None and one.usd is not None and one.usd > job.budget:
        problem = f"costs {dollars(one.usd)}, but the budget is {dollars(job.budget)}"
    if problem == one.problem:
        return one
    return Expectation(one.offer, one.discount, one.seconds, one.usd, one.evictions, one.lasts_s, problem)


def _rank(one: Expectation) -> tuple[bool, bool, Decimal, Decimal, str]:
    """Offers with a known cost come before those with an unknown one."""
    return bool(one.problem), one.usd is None, one.usd or Decimal(0), one.offer.usd_per_hour, one.offer.place


def _why(job: Job, expected: Sequence[Expectation], choice: Expectation | None, known: Past) -> str:
    if not expected:
        return f"`{job.on}` has no offer that fits"
    if choice is None:
        return _why_none(job, expected)
    if choice.usd is None:
        told = "one run has succeeded" if not known.runs else "one run has succeeded on this size"
        return f"the cheapest per hour; runtime unknown until {told}"
    asked = [name for name, given in (("deadline", job.deadline), ("budget", job.budget)) if given is not None]
    meets = f" that meets the {' and the '.join(asked)}" if asked else ""
    if known.said_h is not None:
        return f"the cheapest choice{meets}, for {known.said_h:g} hours of work"
    return f"the cheapest choice{meets}, from {known.runs} earlier {'run' if known.runs == 1 else 'runs'}"


def _why_none(job: Job, expected: Sequence[Expectation]) -> str:
    timed = [one for one in expected if one.seconds is not None and one.usd is not None]
    if not timed:
        return "; ".join(dict.fromkeys(f"{one.offer.size} in {one.offer.place}: {one.problem}" for one in expected[:3]))
    quickest = min(timed, key=lambda one: one.seconds or 0.0)
    cheapest = min(timed, key=lambda one: one.usd or Decimal(0))
    late = job.deadline is not None and (quickest.seconds or 0.0) > job.deadline
    dear = job.budget is not None and (cheapest.usd or Decimal(0)) > job.budget
    parts = []
    if late or not dear:
        parts.append(f"the fastest takes {spelled(quickest.seconds or 0.0)} ({_named(quickest)})")
    if dear or not late:
        parts.append(f"the cheapest costs {dollars(cheapest.usd or Decimal(0))} ({_named(cheapest)})")
    limits = [f"the deadline is {spelled(job.deadline)}"] if job.deadline is not None else []
    limits += [f"the budget is {dollars(job.budget)}"] if job.budget is not None else []
    return f"{', '.join(parts)}; {', '.join(limits)}" if limits else "; ".join(parts)


def _named(one: Expectation) -> str:
    return f"{'spot ' if one.offer.spot else ''}{one.offer.size} in {one.offer.place}"


def spelled(seconds: float) -> str:
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s" if whole >= 60 else f"{whole} s"
    return f"{whole // 3600}h {whole % 3600 // 60:02}m"


def _rate(known: Past) -> float:
    """With a prior, so that one quiet hour does not promise no evictions. The prior weighs less the more evictions were
    observed: one in two minutes says more than any prior."""
    supposed_h = SUPPOSED_HOURS * SUPPOSED_EVICTIONS / (SUPPOSED_EVICTIONS + known.evictions)
    return (known.evictions + SUPPOSED_EVICTIONS) / (known.spot_s / _HOUR + supposed_h)


def _worked(stay: Stay) -> bool:
    return bool(stay.parts[Part.USEFUL].seconds or stay.parts[Part.REDONE].seconds)


def _work_s(run: Run, one: Receipt) -> dict[str, float]:
    """By size: how long all the work takes there. If a run changed its size, its steps tell, if it has any."""
    spent: dict[str, float] = {}
    for stay in one.stays:
        if _worked(stay):
            seconds = float(stay.parts[Part.USEFUL].seconds + stay.parts[Part.CHECKPOINT].seconds)
            spent[stay.size] = spent.get(stay.size, 0.0) + seconds
    if len(spent) == 1:
        return spent
    done, last = _steps(run)
    return {size: seconds / done[size] * last for size, seconds in spent.items() if done.get(size)}


def _steps(run: Run) -> tuple[dict[str, float], float]:
    """By size: how many of the steps that count were done there; and how many there are in total."""
    workers = [one for one in run.attempts if one.effort is not None and one.offer is not None]
    done: dict[str, float] = {}
    last = 0.0
    for attempt, following in zip(workers, [*workers[1:], None], strict=True):
        first, end = _step_before(attempt), _step_before(following) if following else _last_step(attempt)
        if first is None or end is None or attempt.offer is None:
            return {}, 0.0
        done[attempt.offer.size] = done.get(attempt.offer.size, 0.0) + max(end - first, 0.0)
        last = end
    return done, last


def _step_before(attempt: Attempt) -> float | None:
    """The step that it resumed from. None: unknown."""
    if attempt.effort is None:
        return None
    return attempt.effort.began_from.step if attempt.effort.began_from else 0.0


def _last_step(attempt: Attempt) -> float | None:
    return attempt.effort.step if attempt.effort else None


def _start_s(stay: Stay) -> float:
    return float(sum((stay.parts[part].seconds for part in _BEFORE), Decimal(0)))
