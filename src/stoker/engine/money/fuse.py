"""The fuse: a run never costs more than it may. Nodes stop by themselves; this is the server's part.

The most that a run may cost in total is its allowance: its own budget, or what an administrator's limit leaves for it.
Before that is spent the node saves, uploads and is released; the cost of these is held back: the reserve.
`Attempt.fused` is the time from which a node is expected to do so; its deadline is when the server stops it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import ROUND_UP, Decimal

from stoker.engine.decision import Decision, StopNode, TellAgent
from stoker.engine.money import meter
from stoker.engine.nodes.lease import spare_keys
from stoker.errors import BudgetTooSmall, Conflict
from stoker.model.cause import Cause
from stoker.model.node import Offer
from stoker.model.orders import Notice
from stoker.model.run.money import FINISH_S, SAVE_S, Fuse, Spell
from stoker.model.run.report import Outcome, Report
from stoker.model.run.run import Attempt, AttemptState, Run, RunState

WARN_AT = Decimal("0.8")
LEAST_SAVE_S = SAVE_S + FINISH_S  # the minimum for saving and uploading, even if it was faster so far
MOST_SAVE_S = 3600.0
CAUTION = 1.25  # factor for how much longer than before it may take
WORTH_S = 10.0  # of work that is worth starting a machine for
NEWS_S, NEWS_SHARE = 1.0, 0.01  # a node is informed again when the time to stop has moved by more than both
CENT = Decimal("0.01")


@dataclass(frozen=True, slots=True)
class Allowance:
    """The most that a run may cost in total, and whose limit that is. `again`: when more will be allowed."""

    usd: Decimal
    whose: str
    again: datetime | None = None
    shared: bool = False  # other runs share this limit, and may leave some of it
    hint: str = ""  # how to raise it; empty: it is the run's own budget


def own(run: Run) -> Allowance | None:
    """The allowance of its own budget; None without a budget."""
    return None if run.budget is None else Allowance(run.budget, f"its budget of {dollars(run.budget)}")


def release_s(run: Run) -> float:
    """The longest that releasing its nodes may take; it is billed."""
    costing = {spell.key for spell in run.spells if spell.until is None}
    offers = [member.offer for member in run.members if member.key in costing]
    offers += run.attempt.ahead if run.attempt else ()
    return max((offer.release_s for offer in offers if offer), default=0.0)


def save_s(run: Run) -> float:
    """The reserve for a save and its upload."""
    return max(LEAST_SAVE_S, CAUTION * run.save_s)


def reserve(run: Run) -> Decimal:
    """The cost of a save, an upload and a release, if they start now."""
    return _cost(meter.rate(run), save_s(run) + release_s(run))


def lingering(run: Run, now: datetime) -> Decimal:
    """The possible cost of nodes without work. They are asked to go, but an unreachable one stays for a while, and does
    not know what others cost meanwhile."""
    if not _working_rate(run):
        return Decimal(0)
    keys, sums = _working(run), Decimal(0)
    for spell in run.spells:
        if spell.until is None and spell.key not in keys and not _works_on(run, spell):
            stays_s = meter.MARK_S + _idle_s(run, spell.key)
            left_s = stays_s - (now - (spell.seen_at or spell.since)).total_seconds()
            sums += _cost(spell.usd_per_hour, max(left_s, 0.0) + release_s(run))
    return sums


def second_usd(run: Run, allowance: Allowance, now: datetime) -> Decimal:
    """The part of the allowance that a node's fuse leaves for a second node. An unreachable node works until its fuse
    stops it: a second one may cost this much until the first is confirmed gone. Zero if there is never a second one, or
    too little money for one: then the next node is requested when the last is gone."""
    attempt = run.attempt
    offer = attempt.offer if attempt else None
    if offer is None or not offer.idle_s or not (run.job.spot or run.job.deadline):
        return Decimal(0)
    usd = 2 * _waiting_usd(offer)
    begun = bool(spare_keys(run)) or _abandoned(run)
    return usd if begun or meter.spent(run, now) + 4 * usd <= allowance.usd else Decimal(0)


def least(run: Run, offer: Offer) -> Decimal:
    """The cost of the shortest useful attempt on this offer."""
    return least_start(offer, save_s(run))


def least_start(offer: Offer, saving_s: float = LEAST_SAVE_S) -> Decimal:
    """The same for a run of which nothing is known yet."""
    return _cost(offer.usd_per_hour, offer.ready_s + WORTH_S + saving_s + offer.release_s)


def affords(run: Run, offer: Offer, allowance: Allowance, now: datetime, among: Collection[str] = ()) -> bool:
    """Whether a node of this offer may be requested, in addition to current costs, for a useful time. `among`: the keys
    of nodes whose time this offer pays for, too."""
    if _working_rate(run) and offer.idle_s:
        return _waiting_usd(offer) + least(run, offer) - _cost(offer.usd_per_hour, offer.ready_s) <= second_usd(
            run, allowance, now
        )
    costing = {one.key: one.usd_per_hour for one in run.spells if one.until is None and one.key not in among}
    stays_s = {key: max(save_s(run), _idle_s(run, key)) + release_s(run) for key in costing}
    beside = sum((_cost(rate, stays_s[key]) for key, rate in costing.items()), Decimal(0))
    return meter.spent(run, now) + beside + least(run, offer) <= allowance.usd


def left_s(run: Run, allowance: Allowance, now: datetime) -> float:
    """Until its nodes have to be released, at their current cost."""
    late = lingering(run, now)
    left = allowance.usd - meter.spent(run, now) - late
    abandoned = _abandoned(run)
    rate = _working_rate(run) if late or abandoned else meter.rate(run)
    if abandoned:  # for which it is unknown how long it continues
        left = min(left, max(second_usd(run, allowance, now) - _worked_usd(run, now), Decimal(0)))
    return float(left * 3600 / rate) - release_s(run) if rate > 0 else math.inf


def told(run: Run, allowance: Allowance | None, now: datetime) -> Fuse | None:
    """What the node needs to stop by itself. None without a limit or without costs."""
    rate = meter.rate(run)
    if allowance is None or rate <= 0:
        return None
    spent, stop_at = meter.spent(run, now), allowance.usd - _cost(rate, release_s(run))
    stop_at -= second_usd(run, allowance, now)
    if lingering(run, now) or _abandoned(run):
        stop_at = spent + _cost(rate, max(left_s(run, allowance, now), 0.0)) - meter.NANO
    if run.attempt and run.attempt.fused and not run.attempt.state.over:
        stop_at = spent + _cost(rate, (run.attempt.fused.deadline - now).total_seconds())
    return Fuse(stop_at, spent, rate, now, save_s(run), allowance.whose)


def is_news(said: Fuse | None, fresh: Fuse | None) -> bool:
    """Whether a node that was told `said` needs `fresh`: the time to stop, or its inputs, have changed."""
    if said is None or fresh is None:
        return said != fresh
    if (said.usd_per_hour, said.save_s, said.why) != (fresh.usd_per_hour, fresh.save_s, fresh.why):
        return True
    gone_s = (fresh.as_of - said.as_of).total_seconds()
    moved_s = abs(said.seconds - gone_s - fresh.seconds)
    return moved_s > max(NEWS_S, NEWS_SHARE * abs(fresh.seconds))


def noted(run: Run, report: Report | None) -> Run:
    """With the time that saving takes, as its node reports it. Small changes are not saved. The reserve is missing to
    other runs under the same limit, so a node's value is bounded."""
    said_s = min(report.save_s, MOST_SAVE_S) if report else 0.0
    return replace(run, save_s=said_s) if said_s > 1.1 * run.save_s else run


def warned(run: Run, now: datetime) -> Decision:
    """Once for each budget, when most of it is spent."""
    if run.budget is None or run.warned_usd >= run.budget or run.state.ended:
        return Decision(run)
    spent = meter.spent(run, now)
    if spent < WARN_AT * run.budget:
        return Decision(run)
    text = f"{WARN_AT:.0%} of its budget of {dollars(run.budget)} is spent: {dollars(spent)}"
    return Decision(replace(run, warned_usd=run.budget)).noting(now, "budget-warning", text)


def burn(run: Run, allowance: Allowance | None, now: datetime, *, there: bool = True) -> Decision | None:
    """What happens to a run that is about to reach its allowance; None: nothing, for now. `there`: its node exists."""
    attempt = run.attempt
    if allowance is None:
        return _withdrawn(run, attempt, "nothing limits it", now) if attempt and attempt.fused else None
    if not run.costing or run.state is RunState.PAUSED:
        return None
    left = left_s(run, allowance, now)
    if run.state.ended:
        return _unkept(run, allowance, now) if run.kept_until and left <= 0 else None
    if run.state is RunState.QUEUED or attempt is None or attempt.state.over:
        return paused(run, allowance, now).doing(*stops(run)) if left <= 0 else None
    if attempt.fused is None:
        return _light(run, attempt, allowance, left, now) if left <= save_s(run) else None
    if left > 2 * save_s(run):
        return _withdrawn(run, attempt, f"{allowance.whose} allows it", now)
    if now < attempt.fused.deadline:
        return None
    # The node's last report is still processed: the attempt ends when the node is gone. One that never came has none.
    return Decision(run, stops(run)) if there else burnt(run, now).doing(*stops(run))


def burnt(run: Run, now: datetime) -> Decision:
    """Its newest attempt ended because of the fuse. It resumes by itself if there is money after all, as when its
    budget was raised meanwhile; what an administrator's limit says is asked when a node is chosen."""
    attempt, allowance = run.attempts[-1], own(run)
    ended = replace(attempt, state=AttemptState.ENDED, outcome=Outcome.BUDGET_REACHED, ended_at=attempt.ended_at or now)
    run = _without_spare(run.with_newest(ended))
    offer = attempt.offer
    if allowance and (offer is None or meter.spent(run, now) + least(run, offer) > allowance.usd):
        return paused(run, allowance, now)
    reason = "stopped before its limit; waiting for a new node"
    queued = replace(run, state=RunState.QUEUED, reason=reason, cause=Cause.FUSED)
    return Decision(queued).noting(now, "fuse-blown", f"attempt {attempt.number} stopped before it exceeded its limit")


def paused(run: Run, allowance: Allowance, now: datetime) -> Decision:
    """Without a node, and not ended: it waits for a higher budget, or for the next day or month."""
    if allowance.again:
        reason = f"{allowance.whose} is spent; it resumes at {allowance.again:%H:%M on %d %B} UTC"
        held = replace(_without_spare(run), state=RunState.QUEUED, reason=reason, cause=Cause.LIMIT_SPENT)
        return Decision(held) if run.reason == reason else Decision(held).noting(now, "held", reason)
    if allowance.shared:
        return _waiting(run, f"{allowance.whose} is kept for the trials that run", allowance, now)
    reason = f"{allowance.whose} is spent"
    hint = allowance.hint or f"stoker budget {run.name} {2 * allowance.usd:f}"
    stopped = _without_spare(run)
    stopped = replace(stopped, state=RunState.PAUSED, reason=reason, cause=Cause.BUDGET_SPENT, hint=hint)
    return Decision(stopped).noting(now, "paused", f"paused: {reason}")


def _waiting(run: Run, reason: str, allowance: Allowance, now: datetime) -> Decision:
    held = replace(_without_spare(run), state=RunState.QUEUED, reason=reason, cause=Cause.BUDGET_SHARED)
    held = replace(held, hint=allowance.hint)
    return Decision(held) if run.reason == reason else Decision(held).noting(now, "held", reason)


def unaffordable(run: Run, offers: list[Offer], allowance: Allowance, now: datetime) -> Decision:
    """The rest does not pay for any of these offers: the run waits, and reports what it would need."""
    if allowance.shared:
        return _waiting(run, f"{allowance.whose} is kept for the trials that run", allowance, now)
    cheapest = min(least(run, offer) for offer in offers)
    left = max(allowance.usd - meter.spent(run, now), Decimal(0))
    after = paused(run, allowance, now).run
    reason = f"{allowance.whose} leaves {dollars(left)}, but the cheapest start costs {dollars(cheapest, up=True)}"
    if allowance.again:
        reason += f"; it resumes at {allowance.again:%H:%M on %d %B} UTC"
    elif not allowance.hint:
        enough = max(2 * allowance.usd, _cents(meter.spent(run, now) + cheapest))
        after = replace(after, hint=f"stoker budget {run.name} {enough:f}")
    decision = Decision(replace(after, reason=reason, cause=Cause.UNAFFORDABLE))
    return decision if run.reason == reason else decision.noting(now, "held" if allowance.again else "paused", reason)


def set_budget(run: Run, usd: Decimal | None, now: datetime) -> Decision:
    """Sets what the run may cost in total; None: no budget. A paused run resumes if that is enough; an active one saves
    and pauses if that is less than it has cost. Raises BudgetTooSmall if a paused one could not resume."""
    if run.state.ended:
        raise Conflict(f"`{run.name}` has ended: {run.state}", hint=f"stoker show {run.name}", cause=Cause.RUN_ENDED)
    after = replace(run, budget=usd)
    text = f"the budget is {dollars(usd)}" if usd is not None else "the budget was removed"
    if run.state is RunState.PAUSED:
        needed = meter.spent(run, now) + (least(run, offer) if (offer := _last_offer(run)) else Decimal(0))
        if usd is not None and usd < needed:
            message = f"{dollars(usd)} is too little for `{run.name}`: it requires at least {dollars(needed, up=True)}"
            hint = f"stoker budget {run.name} {_cents(needed):f}"
            raise BudgetTooSmall(f"{message}, including the {dollars(meter.spent(run, now))} spent so far", hint=hint)
        after = replace(after, state=RunState.QUEUED, reason="", cause="", hint="", restored_at=None)
        text += ": the run resumes"
    elif usd is not None and run.costing and meter.spent(run, now) + reserve(run) > usd:
        after, text = _stopping(after, now), f"{text}: the run saves and pauses"
    return Decision(after).noting(now, "budget", text) if after != run else Decision(run)


def dollars(usd: Decimal, *, up: bool = False) -> str:
    """In cents, and finer below one cent; `up`: rounded up."""
    places = CENT if usd >= CENT or usd == 0 else Decimal("0.0001")
    return f"${usd.quantize(places, rounding=ROUND_UP if up else None):f}"


def stops(run: Run) -> tuple[StopNode, ...]:
    """Everything of the run that costs money is released."""
    keys = dict.fromkeys(spell.key for spell in run.spells if spell.until is None)
    return tuple(StopNode(run.job.on, key) for key in keys)


def _light(run: Run, attempt: Attempt, allowance: Allowance, left: float, now: datetime) -> Decision:
    """The node does this by itself at about the same time. A shared limit may have shrunk below what is spent: there is
    time to save nevertheless, since lost work would have to be paid for again."""
    given_s = save_s(run) if left < 0 and (allowance.again or allowance.shared) else max(left, 0.0)
    lit = run.with_newest(replace(attempt, fused=Notice(now, now + timedelta(seconds=given_s))))
    text = f"attempt {attempt.number} has to save and stop: {allowance.whose} is nearly spent"
    return Decision(lit, (TellAgent(lit),)).noting(now, "fuse", text)


def _withdrawn(run: Run, attempt: Attempt, why: str, now: datetime) -> Decision | None:
    if attempt.state.over:
        return None
    kept = run.with_newest(replace(attempt, fused=None))
    text = f"attempt {attempt.number} continues: {why}"
    return Decision(kept, (TellAgent(kept),)).noting(now, "fuse-withdrawn", text)


def _stopping(run: Run, now: datetime) -> Run:
    """Stops the node now, with the time and the money for one save."""
    attempt = run.attempt
    if attempt is None or attempt.state.over:
        return run
    return run.with_newest(replace(attempt, fused=Notice(now, now + timedelta(seconds=save_s(run)))))


def _unkept(run: Run, allowance: Allowance, now: datetime) -> Decision:
    """A node that is kept for inspection is billed, too."""
    text = f"released the node that was kept: {allowance.whose} is spent"
    return Decision(replace(run, kept_until=None), stops(run)).noting(now, "released", text)


def _without_spare(run: Run) -> Run:
    if run.attempt is None or not run.attempt.ahead:
        return run
    peers = tuple(replace(member, spare=None) for member in run.attempt.peers)
    return run.with_newest(replace(run.attempt, spare=None, peers=peers, growth=()))


def _working(run: Run) -> set[str]:
    """The keys of the nodes that the run needs: those of its attempt, and those requested in advance."""
    attempt = run.attempt
    if attempt is None or attempt.state.over:
        return set()
    return {member.key for member in attempt.members} | set(spare_keys(run))


def _working_rate(run: Run) -> Decimal:
    keys = _working(run)
    return sum((one.usd_per_hour for one in run.spells if one.until is None and one.key in keys), Decimal(0))


def _idle_s(run: Run, key: str) -> float:
    """How long a node without work may stay. One that was requested in advance and not used counts as such."""
    offer = next((member.offer for member in run.members if member.key == key), None) or _last_offer(run)
    return offer.idle_s if offer else 0.0


def _waiting_usd(offer: Offer) -> Decimal:
    """The highest cost of a node that is requested and gets no orders."""
    return _cost(offer.usd_per_hour, offer.ready_s + offer.idle_s + offer.release_s)


def _abandoned(run: Run) -> bool:
    """A node of an abandoned attempt may continue: its agent has not reported its end. A lost one of a gang counts as
    working until its attempt is over: it stops at the same limit as the others, and nothing was requested instead."""
    keys = _working(run)
    others = (one for one in run.spells if one.until is None and one.key not in keys)
    return bool(_working_rate(run)) and any(_works_on(run, one) for one in others)


def _works_on(run: Run, spell: Spell) -> bool:
    """A node that costs much less than before is stopped."""
    member = next((one for one in run.members if one.key == spell.key), None)
    offer = member.offer if member and member.state.over and not member.outcome else None
    return offer is not None and offer.idle_s > 0 and 2 * spell.usd_per_hour > offer.usd_per_hour


def _worked_usd(run: Run, now: datetime) -> Decimal:
    keys = _working(run)
    return sum((meter.cost(one, now) for one in run.spells if one.key in keys), Decimal(0))


def _last_offer(run: Run) -> Offer | None:
    return next((one.offer for one in reversed(run.attempts) if one.offer), None)


def _cost(usd_per_hour: Decimal, seconds: float) -> Decimal:
    return (usd_per_hour * Decimal(str(round(seconds, 3))) / 3600).quantize(meter.NANO, rounding=ROUND_UP)


def _cents(usd: Decimal) -> Decimal:
    return usd.quantize(CENT, rounding=ROUND_UP)
