"""One round over all open runs: those with news are advanced, then waiting runs get the available room."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from stoker.engine import hanging
from stoker.engine.decision import Decision, Sighting, TellAgent
from stoker.engine.lifecycle import ask_ahead, begin, cancelled_unseen
from stoker.engine.money import meter, paying
from stoker.engine.money.fuse import Allowance
from stoker.engine.money.receipt import with_effort
from stoker.engine.money.spending import NONE, LimitFacts, allowances
from stoker.engine.nodes import elastic
from stoker.engine.nodes.nodes import may_resume, without_starts
from stoker.engine.offers import gathering
from stoker.engine.offers.deadline import words
from stoker.engine.offers.market import Market, choose, let_go, wanted
from stoker.engine.queue import clusters
from stoker.engine.queue.clusters import NO_CLUSTERS, ClusterFacts
from stoker.engine.queue.order import NOTHING_KNOWN, QueueFacts
from stoker.engine.queue.placement import placed, room_left
from stoker.engine.sweeps import searching
from stoker.engine.sweeps.budget import NO_SWEEPS, SweepFacts, at_rungs, beyond, sweep_allowances
from stoker.model.cause import Cause
from stoker.model.node import NodeState, Offer
from stoker.model.orders import Wish
from stoker.model.run.report import Report
from stoker.model.run.run import Member, Run


def untouched(run: Run) -> bool:
    """It waits for its first node and is not cancelled: there is nothing to observe, only room to find."""
    return not run.attempts and run.wish is Wish.GO_ON


@dataclass(frozen=True, slots=True)
class Scene:
    """What a round decides upon, beside the runs and what was seen of them."""

    slots: Mapping[str, int | None]  # by provider: how many nodes it may run at once; None: no known limit
    now: datetime
    market: Market = field(default_factory=dict)  # the offers of providers that have several
    limits: LimitFacts = NONE  # of administrators
    said: Mapping[str, Report] = field(default_factory=dict)  # by id of runs that are cancelled and were not seen
    clusters: ClusterFacts = NO_CLUSTERS
    facts: QueueFacts = NOTHING_KNOWN  # what the queue knows of runs that are over
    sweeps: SweepFacts = NO_SWEEPS


def decide(runs: Collection[Run], seen: Mapping[str, Sighting], scene: Scene) -> list[Decision]:
    """A decision for every run with an observation or that starts. `seen` is by run id and may omit untouched runs: a
    thousand waiting runs cost next to nothing."""
    round_ = _Round(scene, seen, {run.id: run for run in runs})
    round_.advance()
    round_.settle_searches()
    round_.settle_idle()
    round_.vacate()
    held = {run_id for run_id, sighting in seen.items() if _in_the_way(round_.after[run_id], sighting)}
    held |= {run.id for run in runs if run.attempts and run.id not in seen}  # its possible leftovers were not observed
    rooms = clusters.rooms(scene.clusters)
    held |= beyond(round_.after.values(), scene.sweeps) | at_rungs(round_.after.values())
    turn = placed(round_.after.values(), scene.slots, rooms, scene.now, held=held, facts=scene.facts)
    for run, other in turn.pauses:
        round_.join(clusters.yielding(run, other, scene.now))
    for run in turn.starts:
        round_.start(run, turn.rooms.get(run.id))
    round_.grow(rooms)
    return round_.finish()


class _Round:
    """What has been decided so far."""

    def __init__(self, scene: Scene, seen: Mapping[str, Sighting], before: Mapping[str, Run]) -> None:
        self._scene, self._seen, self._before = scene, seen, before
        self.after = {**before, **{run_id: meter.metered(before[run_id], seen[run_id], scene.now) for run_id in seen}}
        self._held = clusters.NodeCounts(self.after.values())
        self._decisions: dict[str, Decision] = {}
        self._allowed = self._allowances()

    def _allowances(self) -> Mapping[str, Allowance]:
        runs, now = self.after.values(), self._scene.now
        found = allowances(runs, self._scene.limits, now)
        for run_id, allowance in sweep_allowances(runs, self._scene.sweeps, now).items():
            if run_id not in found or allowance.usd < found[run_id].usd:
                found[run_id] = allowance
        return found

    def _so_far(self, run: Run) -> Decision:
        return self._decisions.get(run.id, Decision(run))

    def _set(self, decision: Decision) -> None:
        self._decisions[decision.run.id] = decision
        self.after[decision.run.id] = decision.run
        self._held.put(decision.run)

    def _change(self, run: Run) -> None:
        self._set(replace(self._so_far(run), run=run))

    def join(self, then: Decision) -> None:
        self._set(_joined(self._so_far(then.run), then))

    def advance(self) -> None:
        """The runs that something was seen of, and those that are cancelled and ended unseen."""
        now = self._scene.now
        for run_id, sighting in self._seen.items():
            metered, allowance = self.after[run_id], self._allowed.get(run_id)
            self._set(_advanced(self._before[run_id], metered, sighting, allowance, now))
        for run_id, run in self._before.items():
            if run_id not in self._seen and (ended := cancelled_unseen(run, self._scene.said.get(run_id), now)):
                self._set(ended)

    def settle_searches(self) -> None:
        """Trials that are paused at a rung resume or end once all trials of their sweep have reached it."""
        trials = {id: one.trials for id, one in self._scene.sweeps.known.items() if one.job.search}
        for then in list(searching.settled(self.after.values(), trials, self._scene.now)):
            self.join(then)

    def settle_idle(self) -> None:
        """Nodes of clusters whose runs have ended wait for the next run, and are released when their time is up."""
        pools, now = self._scene.clusters, self._scene.now
        if not any(run.pool for run in self.after.values()):
            return
        for run_id, sighting in self._seen.items():
            run = clusters.observed(self.after[run_id], sighting, pools, now)
            if run is not self.after[run_id]:
                self._change(run)
        for run, key, why in list(clusters.releasing(self.after.values(), pools, now)):
            self._change(clusters.release(self.after[run.id], key, why))
            text = f"its idle node is released: {why}"
            self._set(self._decisions[run.id].noting(now, "idle-released", text))
        for run_id in self._seen:
            run = self.after[run_id]
            if run.waiting_nodes:
                self._set(self._so_far(run).doing(TellAgent(run)))  # renews the lease of the node

    def vacate(self) -> None:
        """Runs of paused clusters save, and give their nodes back."""
        if not any(one.paused for one in self._scene.clusters.known.values()):
            return
        for run in list(self.after.values()):
            if then := clusters.vacated(run, self._scene.clusters, self._scene.now):
                self.join(then)

    def start(self, run: Run, room: int | None = None) -> None:
        """A run whose turn it is, if it can pay and there are nodes for it. `room`: all that its queue has for it."""
        now, starts = self._scene.now, []
        for nodes in elastic.widths(run, room):
            starts.append(self._start_with(run, nodes))
            if not starts[-1].waits:
                break
        start, fewer = elastic.chosen(run, starts, now)
        if start.unpaid:
            market = gathering.wide(run, self._scene.market, start.nodes)
            self._set(paying.held_back(self._so_far(run), market, self._allowed[run.id], now))
            return
        taken, waits, cause = self._from_cluster(run, start)
        if waits:
            self._set(_with_reason(self._so_far(run), waits, cause))
            return
        begun = begin(run, now, taken, start.nodes, fewer)
        if run.job.deadline and any(not offer.spot for offer in taken):
            begun = begun.noting(now, "deadline", words(run, now))
        self.join(begun)
        if self._scene.limits.given or (
            run.trial and run.trial.sweep in self._scene.sweeps.past
        ):  # what this one may cost is not available to those after it
            self._allowed = self._allowances()

    def _start_with(self, run: Run, nodes: int) -> elastic.Gathering:
        market = gathering.wide(run, elastic.narrowed(run, self._scene.market, self._scene.now, nodes), nodes)
        offers = paying.payable(run, market, self._allowed.get(run.id), self._scene.now, nodes)
        if offers is None:
            return elastic.Gathering(nodes, waits="its budget does not pay for them", unpaid=True)
        seen = self._seen.get(run.id)
        taken, waits = gathering.offers(run, seen, offers, self._held.runs, self._scene.now, nodes)
        return elastic.Gathering(nodes, tuple(taken), waits, market=offers)

    def grow(self, rooms: Mapping[str, int]) -> None:
        """Runs that have fewer nodes than they prefer get more, if there are some that no other run waits for."""
        now = self._scene.now
        for run_id, sighting in self._seen.items():
            if then := elastic.attended(self.after[run_id], sighting, now):
                self.join(then)
        for run in [self.after[run_id] for run_id in self._seen if elastic.may_grow(self.after[run_id], now)]:
            room = room_left(run, self.after.values(), self._scene.slots, rooms)
            more_of_cluster = clusters.room_for_more(run, self._held, self._scene.clusters)
            if more_of_cluster is not None:
                room = more_of_cluster if room is None else min(room, more_of_cluster)
            if run.attempts[-1].growth or room == 0:
                continue
            allowance = self._allowed.get(run.id)
            if any(name == run.job.on for name, _ in self._scene.market):
                market = elastic.narrowed(run, self._scene.market, now, run.job.most_nodes)
                more = elastic.asked_more(run, market, room, allowance, now)
            elif room is not None and all(member.offer is None for member in run.attempts[-1].members):
                more = elastic.grown(run, min(run.width + room, run.job.most_nodes), now)
            else:
                more = None
            if more:
                self.join(more)

    def finish(self) -> list[Decision]:
        """Adds replacements that are requested in advance, and what each run may spend."""
        now, market = self._scene.now, self._scene.market
        for run_id, decision in list(self._decisions.items()):
            if market:
                allowance = self._allowed.get(run_id)
                room = clusters.room_for_more(decision.run, self._held, self._scene.clusters)
                self._set(_asking_ahead(decision, self._seen.get(run_id), market, allowance, now, room))
        allowed = self._allowances()
        return [
            paying.with_fuse(decision, self._seen.get(run_id), allowed.get(run_id), now)
            for run_id, decision in self._decisions.items()
        ]

    def _from_cluster(self, run: Run, start: elastic.Gathering) -> tuple[list[Offer], str, str]:
        """With an idle node of its cluster, if there is one that fits; else it waits until its cluster has room for new
        ones: then why, in words and as a cause."""
        pools, taken, now = self._scene.clusters, list(start.taken), self._scene.now
        if not run.cluster:
            return taken, start.waits, Cause.NO_OFFER
        resumes = any(offer.again for offer in taken) or bool(run.attempt and run.attempt.ahead)
        warm = None if resumes else clusters.taken(run, start.nodes, self._held, start.market or {}, now)
        if start.waits and (warm is None or len(warm.idle) < start.nodes):
            return taken, start.waits, Cause.NO_OFFER
        if warm:
            taken = list(warm.offers)
        first = clusters.making_room(run, taken, self._held, pools, warm)
        for owner, idle in first.releases:
            self._change(clusters.release(self.after[owner.id], idle.key, "its cluster needs the room"))
        if first.lets_go:
            self._change(clusters.without_machines(self.after[run.id]))
        if first.waits:
            return [], f"waits until cluster `{run.cluster}` has released nodes, to make room", Cause.CLUSTER_FULL
        for owner, key in warm.idle if warm else ():
            self._change(clusters.release(self.after[owner.id], key, clusters.TAKEN))
        return taken, "", ""


def _advanced(before: Run, metered: Run, sighting: Sighting, allowance: Allowance | None, now: datetime) -> Decision:
    decision = hanging.noted(paying.advanced(before, metered, sighting, allowance, now), sighting, now)
    after = decision.run
    for one in (sighting, *sighting.peers):
        after = with_effort(after, one.report)
    return without_starts(decision if after is decision.run else replace(decision, run=after), now)


def _joined(first: Decision, then: Decision) -> Decision:
    """Two decisions about one run, the second based on the first."""
    return Decision(then.run, (*first.actions, *then.actions), (*first.events, *then.events))


def _in_the_way(run: Run, sighting: Sighting) -> bool:
    """Something of an earlier attempt may still run. A machine that is taken over runs nothing of it any more."""
    node = sighting.node is not None and not sighting.node.still
    over = {sight.key for sight in sighting.nodes if may_resume(run, sight) and sight.state is not NodeState.GONE}
    return node or bool(set(sighting.leftovers) - set(sighting.still) - over)


def _asking_ahead(
    decision: Decision,
    sighting: Sighting | None,
    market: Market,
    allowance: Allowance | None,
    now: datetime,
    room: int | None,
) -> Decision:
    """With a replacement for each node that is about to be evicted, or that its run would rather leave. `room` is how
    many more nodes its cluster may have; None: it is in none."""
    for node in gathering.leaving(decision.run):
        run = decision.run
        member = run.attempts[-1].members[node]
        if room == 0 and not clusters.is_replaced(run.attempts[-1], member):
            continue
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
        return gathering.choose_near(run, market, peers[0], now) if peers else choose(run, market, now)
    in_the_way = sighting is None or sighting.leftovers  # possibly the last one requested in advance
    return None if in_the_way else wanted(run, market, now)


def _with_reason(decision: Decision, reason: str, cause: str) -> Decision:
    return Decision(replace(decision.run, reason=reason, cause=cause), decision.actions, decision.events)
