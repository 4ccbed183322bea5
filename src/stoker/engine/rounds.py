"""One round over all open runs: those with news are advanced, then waiting runs get the available room."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from stoker.engine import clusters, gang, hanging
from stoker.engine.clusters import NO_CLUSTERS, ClusterFacts
from stoker.engine.decision import Decision, TellAgent
from stoker.engine.lifecycle import ask_ahead, begin, cancelled_unseen
from stoker.engine.money import meter, paying
from stoker.engine.money.fuse import Allowance
from stoker.engine.money.limits import NONE, LimitFacts, allowances
from stoker.engine.money.receipt import with_effort
from stoker.engine.nodes.restored import without_starts
from stoker.engine.nodes.resuming import may_resume
from stoker.engine.offers.deadline import words
from stoker.engine.offers.market import Market, choose
from stoker.engine.offers.moving import let_go, wanted
from stoker.engine.offers.placement import placed
from stoker.engine.queue.facts import NOTHING_KNOWN, QueueFacts, paused
from stoker.engine.sighting import Sighting
from stoker.model.node.node import NodeState, Offer
from stoker.model.node.orders import Wish
from stoker.model.run.report import Report
from stoker.model.run.run import Member, Run


def untouched(run: Run) -> bool:
    """It waits for its first node and is not cancelled: there is nothing to observe, only room to find."""
    return not run.attempts and run.wish is Wish.GO_ON


def decide(
    runs: Collection[Run],
    seen: Mapping[str, Sighting],
    slots: Mapping[str, int | None],
    now: datetime,
    market: Market | None = None,
    limits: LimitFacts = NONE,
    said: Mapping[str, Report] | None = None,
    pools: ClusterFacts = NO_CLUSTERS,
    facts: QueueFacts = NOTHING_KNOWN,
) -> list[Decision]:
    """A decision for every run with an observation or that starts. `seen` is by run id and may omit untouched runs: a
    thousand waiting runs cost next to nothing. `slots` is by provider. `market` has the offers of providers with
    several; runs of other providers start without one. `limits` are those of administrators. `said`
    is what the nodes of runs that nothing was seen of have said, by run id: it can end those that are cancelled.
    `pools` are the clusters, and `facts` what the queue knows of runs that are over."""
    market = market or {}
    before = {run.id: run for run in runs}
    after = before | {run_id: meter.metered(before[run_id], sighting, now) for run_id, sighting in seen.items()}
    allowed = allowances(after.values(), limits, now)
    decisions = {
        run_id: _advanced(before[run_id], after[run_id], sighting, allowed.get(run_id), now)
        for run_id, sighting in seen.items()
    }
    unseen = {run.id: cancelled_unseen(run, (said or {}).get(run.id), now) for run in runs if run.id not in seen}
    decisions |= {run_id: ended for run_id, ended in unseen.items() if ended}
    after |= {run_id: decision.run for run_id, decision in decisions.items()}
    held = {run_id for run_id, sighting in seen.items() if _in_the_way(after[run_id], sighting)}
    held |= {run.id for run in runs if run.attempts and run.id not in seen}  # its possible leftovers were not observed
    state = _Round(decisions, after, pools, now)
    _settle_idle(state, seen)
    turn = placed(after.values(), slots, clusters.rooms(pools), now, held=held, facts=facts)
    for run, other in turn.pauses:
        decisions[run.id] = _joined(decisions.get(run.id, Decision(run)), paused(run, other, now))
        after[run.id] = decisions[run.id].run
    for run in turn.starts:
        wide = gang.wide(run, market)
        offers = paying.payable(run, wide, allowed.get(run.id), now)
        if offers is None:
            so_far = decisions.get(run.id, Decision(run))
            decisions[run.id] = paying.held_back(so_far, wide, allowed[run.id], now)
            continue
        taken, waits = gang.offers(run, seen.get(run.id), offers, after.values(), now)
        taken, waits = _from_cluster(state, run, taken, waits, offers)
        if waits:
            decisions[run.id] = _with_reason(decisions.get(run.id, Decision(run)), waits)
            continue
        so_far, begun = decisions.get(run.id, Decision(run)), begin(run, now, taken)
        after[run.id] = begun.run
        if run.job.deadline and any(not offer.spot for offer in taken):
            begun = begun.noting(now, "deadline", words(run, now))
        decisions[run.id] = _joined(so_far, begun)
        if limits.given:  # what this one may cost is not available to those after it
            allowed = allowances(after.values(), limits, now)
    for run_id, decision in list(decisions.items()):
        if market:
            decisions[run_id] = _asking_ahead(decision, seen.get(run_id), market, allowed.get(run_id), now)
    after |= {run_id: decision.run for run_id, decision in decisions.items()}
    allowed = allowances(after.values(), limits, now)
    return [
        paying.with_fuse(decision, seen.get(run_id), allowed.get(run_id), now) for run_id, decision in decisions.items()
    ]


def _advanced(before: Run, metered: Run, sighting: Sighting, allowance: Allowance | None, now: datetime) -> Decision:
    decision = hanging.noted(paying.advanced(before, metered, sighting, allowance, now), sighting, now)
    after = decision.run
    for one in (sighting, *sighting.peers):
        after = with_effort(after, one.report)
    return without_starts(decision if after is decision.run else replace(decision, run=after), now)


@dataclass(slots=True)
class _Round:
    """What has been decided so far. `after` are all runs as of then, by id."""

    decisions: dict[str, Decision]
    after: dict[str, Run]
    pools: ClusterFacts
    now: datetime

    def change(self, run: Run) -> None:
        self.decisions[run.id] = replace(self.decisions.get(run.id, Decision(run)), run=run)
        self.after[run.id] = run


def _settle_idle(so_far: _Round, seen: Mapping[str, Sighting]) -> None:
    """Nodes of clusters whose runs have ended wait for the next run, and are released when their time is up."""
    decisions, after, now = so_far.decisions, so_far.after, so_far.now
    if not any(run.pool for run in after.values()):
        return
    for run_id, sighting in seen.items():
        run = clusters.observed(after[run_id], sighting, so_far.pools, now)
        if run is not after[run_id]:
            so_far.change(run)
    for run, key, why in list(clusters.releasing(after.values(), so_far.pools, now)):
        so_far.change(clusters.release(after[run.id], key, why))
        decisions[run.id] = decisions[run.id].noting(now, "idle-released", f"its idle node is released: {why}")
    for run_id in seen:
        if after[run_id].waiting_nodes:
            decisions[run_id] = decisions[run_id].doing(TellAgent(after[run_id]))  # renews the lease of the node


def _from_cluster(so_far: _Round, run: Run, taken: list[Offer], waits: str, market: Market) -> tuple[list[Offer], str]:
    """With an idle node of its cluster, if there is one that fits; else it waits until its cluster has room for new
    ones."""
    resumes = any(offer.again for offer in taken) or bool(run.attempt and run.attempt.spare)
    if not run.cluster or resumes:
        return taken, waits
    if found := clusters.taken(run, so_far.after.values(), market, so_far.now):
        offer, owner = found
        so_far.change(clusters.release(owner, offer.waits, clusters.TAKEN))
        return [offer], ""
    others = [one for one in so_far.after.values() if one.id != run.id]
    if waits or not clusters.is_full(run, others, so_far.pools):
        return taken, waits
    for owner, idle in clusters.in_the_way(run, others, so_far.pools):
        so_far.change(clusters.release(so_far.after[owner.id], idle.key, "its cluster needs the room"))
    return [], f"waits until an idle node of cluster `{run.cluster}` is released, to make room"


def _joined(first: Decision, then: Decision) -> Decision:
    """Two decisions about one run, the second based on the first."""
    return Decision(then.run, (*first.actions, *then.actions), (*first.events, *then.events))


def _in_the_way(run: Run, sighting: Sighting) -> bool:
    """Something of an earlier attempt may still run. A machine that is taken over runs nothing of it any more."""
    node = sighting.node is not None and not sighting.node.still
    over = {sight.key for sight in sighting.nodes if may_resume(run, sight) and sight.state is not NodeState.GONE}
    return node or bool(set(sighting.leftovers) - set(sighting.still) - over)


def _asking_ahead(
    decision: Decision, sighting: Sighting | None, market: Market, allowance: Allowance | None, now: datetime
) -> Decision:
    """With a replacement for each node that is about to be evicted, or that its run would rather leave."""
    for node in gang.leaving(decision.run):
        run = decision.run
        member = run.attempts[-1].members[node]
        offers = paying.payable(run, market, allowance, now) or {}
        if spare := _spare(run, member, sighting, offers, now):
            decision = _joined(decision, ask_ahead(run, member, spare, now))
        elif freed := let_go(run, offers, now):
            decision = _joined(decision, freed)
    return decision


def _spare(run: Run, member: Member, sighting: Sighting | None, market: Market, now: datetime) -> Offer | None:
    """What to request in advance, as a replacement of this node."""
    if run.attempt and (member.notice or run.attempt.broken_at):
        peers = [one.offer for one in run.attempt.members if one.offer and one.node != member.node]
        return gang.choose_near(run, market, peers[0], now) if peers else choose(run, market, now)
    in_the_way = sighting is None or sighting.leftovers  # possibly the last one requested in advance
    return None if in_the_way else wanted(run, market, now)


def _with_reason(decision: Decision, reason: str) -> Decision:
    return Decision(replace(decision.run, reason=reason), decision.actions, decision.events)
