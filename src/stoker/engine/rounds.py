"""One round over all open runs: those with news are advanced, then those that wait get what room there is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime

from stoker.engine.decision import Decision
from stoker.engine.lifecycle import ask_ahead, begin
from stoker.engine.money import meter, paying
from stoker.engine.money.fuse import Allowance
from stoker.engine.money.limits import NONE, Limits, allowances
from stoker.engine.money.receipt import with_effort
from stoker.engine.nodes.restored import without_starts
from stoker.engine.nodes.resuming import may_resume, resumed
from stoker.engine.offers.deadline import words
from stoker.engine.offers.market import Market, choose, why_none
from stoker.engine.offers.moving import let_go, wanted
from stoker.engine.offers.placement import place
from stoker.engine.sighting import Sighting
from stoker.model.node.node import NodeState, Offer
from stoker.model.node.orders import Wish
from stoker.model.run.run import Run


def untouched(run: Run) -> bool:
    """It waits for its first node and nobody wants it to end: nothing can be seen of it, only room be found."""
    return not run.attempts and run.wish is Wish.GO_ON


def never_placed(run: Run) -> bool:
    """It has had no node, and nobody wants it any more: it ends without a look at its provider."""
    return not run.attempts and run.wish is Wish.CANCEL


def decide(
    runs: Collection[Run],
    seen: Mapping[str, Sighting],
    slots: Mapping[str, int | None],
    now: datetime,
    market: Market | None = None,
    limits: Limits = NONE,
) -> list[Decision]:
    """A decision for every run that something was seen of or that begins. `seen` is by run id and may leave out runs
    that are untouched: a thousand waiting runs cost next to nothing. `slots` is by provider. `market` holds the offers
    of providers that have several; the runs of others begin without one. `limits` are those of administrators."""
    market = market or {}
    before = {run.id: run for run in runs}
    after = before | {run_id: meter.metered(before[run_id], sighting, now) for run_id, sighting in seen.items()}
    allowed = allowances(after.values(), limits, now)
    decisions = {
        run_id: _advanced(before[run_id], after[run_id], sighting, allowed.get(run_id), now)
        for run_id, sighting in seen.items()
    }
    after |= {run_id: decision.run for run_id, decision in decisions.items()}
    held = {run_id for run_id, sighting in seen.items() if _in_the_way(after[run_id], sighting)}
    held |= {run.id for run in runs if run.attempts and run.id not in seen}  # what may be left of it was not looked at
    for run in place(after.values(), slots, now, held=held):
        offers = paying.payable(run, market, allowed.get(run.id), now)
        if offers is None:
            so_far = decisions.get(run.id, Decision(run))
            decisions[run.id] = paying.held_back(so_far, market, allowed[run.id], now)
            continue
        offer, waits = _offer(run, seen.get(run.id), offers, now)
        if waits:
            decisions[run.id] = _with_reason(decisions.get(run.id, Decision(run)), waits)
            continue
        so_far, begun = decisions.get(run.id, Decision(run)), begin(run, now, offer)
        if run.job.deadline and offer and not offer.spot:
            begun = begun.noting(now, "deadline", words(run, now))
        decisions[run.id] = _joined(so_far, begun)
        if limits.given:  # what this one may cost is no longer there for those behind it
            after[run.id] = begun.run
            allowed = allowances(after.values(), limits, now)
    for run_id, decision in list(decisions.items()):
        if market and _may_ask_ahead(decision.run):
            offers = paying.payable(decision.run, market, allowed.get(run_id), now)
            if spare := _spare(decision.run, seen.get(run_id), offers or {}, now):
                decisions[run_id] = _joined(decision, ask_ahead(decision.run, spare, now))
            elif freed := let_go(decision.run, offers or {}, now):
                decisions[run_id] = _joined(decision, freed)
    after |= {run_id: decision.run for run_id, decision in decisions.items()}
    allowed = allowances(after.values(), limits, now)
    return [
        paying.with_fuse(decision, seen.get(run_id), allowed.get(run_id), now) for run_id, decision in decisions.items()
    ]


def _advanced(before: Run, metered: Run, sighting: Sighting, allowance: Allowance | None, now: datetime) -> Decision:
    decision = paying.advanced(before, metered, sighting, allowance, now)
    after = with_effort(decision.run, sighting.report)
    return without_starts(decision if after is decision.run else replace(decision, run=after), now)


def _joined(first: Decision, then: Decision) -> Decision:
    """Two decisions about one run, the second made upon the first."""
    return Decision(then.run, (*first.actions, *then.actions), (*first.events, *then.events))


def _in_the_way(run: Run, sighting: Sighting) -> bool:
    """Something of an earlier attempt may still run. A machine that is taken over runs nothing of it any more."""
    node = sighting.node is not None and not sighting.node.still
    over = {sight.key for sight in sighting.nodes if may_resume(run, sight) and sight.state is not NodeState.GONE}
    return node or bool(set(sighting.leftovers) - set(sighting.still) - over)


def _offer(run: Run, sighting: Sighting | None, market: Market, now: datetime) -> tuple[Offer | None, str]:
    """The offer to take, and where there is none to be had now, why."""
    if run.attempt and run.attempt.spare:
        return run.attempt.spare, ""
    if not any(name == run.job.on for name, _ in market):
        # A server that has just started may see an eviction before it knows what is to be had.
        return None, "checking which machines are available" if run.attempt and run.attempt.offer else ""
    best = choose(run, market, now)
    offer = resumed(run, sighting, market, best, now) or best
    return offer, "" if offer else why_none(run, market, now)


def _may_ask_ahead(run: Run) -> bool:
    """Its machine is about to be taken and nothing was asked for yet, or it might rather be elsewhere."""
    attempt = run.attempt
    if attempt is None or attempt.state.over or attempt.spare or run.wish is not Wish.GO_ON or run.restored_at:
        return False
    if attempt.notice:
        return not attempt.notice.drill and not attempt.notice.returns
    return run.job.deadline is not None


def _spare(run: Run, sighting: Sighting | None, market: Market, now: datetime) -> Offer | None:
    """What to ask for ahead, of a run that may."""
    if run.attempt and run.attempt.notice:
        return choose(run, market, now)
    in_the_way = sighting is None or sighting.leftovers  # perhaps what is left of the last one asked for ahead
    return None if in_the_way else wanted(run, market, now)


def _with_reason(decision: Decision, reason: str) -> Decision:
    return Decision(replace(decision.run, reason=reason), decision.actions, decision.events)
