"""Clusters: which runs get nodes, which idle nodes are kept for the next run, and runs that give theirs back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from stoker.engine.decision import Decision, Sighting
from stoker.engine.money.meter import MARK_S
from stoker.engine.nodes import nodes
from stoker.engine.nodes.lease import spare_keys
from stoker.engine.offers.gathering import state_of
from stoker.engine.offers.market import Market, fits_whole, open_now, same
from stoker.model.cause import Cause
from stoker.model.node import Cluster, NodeState, Offer
from stoker.model.orders import Notice, Wish
from stoker.model.run.money import IdleSpell
from stoker.model.run.report import Outcome
from stoker.model.run.run import Attempt, AttemptState, Member, Run, RunState

TAKEN = "taken by the next run"
_UNDER_WAY = (RunState.STARTING, RunState.RUNNING)
# How an attempt ends whose machine is sound: its agent has cleared its files and exited.
_SOUND = (Outcome.SUCCEEDED, Outcome.TARGET_REACHED, Outcome.FAILED, Outcome.CANCELLED, Outcome.TIMED_OUT)


PAUSE_S = 60.0  # notice for a run that gives its nodes back


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    known: Mapping[str, Cluster] = field(default_factory=dict)  # by name
    warm: Collection[str] = ()  # providers whose nodes are worth keeping for the next run
    spent: Collection[str] = ()  # names of clusters whose owner may spend nothing more on idle nodes


NO_CLUSTERS = ClusterFacts()


def rooms(facts: ClusterFacts) -> dict[str, int]:
    """By cluster: how many nodes its runs may have at once."""
    return {name: 0 if one.paused else one.max_nodes for name, one in facts.known.items()}


def free(runs: Collection[Run], facts: ClusterFacts) -> dict[str, int]:
    """By cluster: how many nodes waiting runs can have. Idle nodes do not count as used."""
    used = busy(runs)
    return {name: 0 if one.paused else max(one.max_nodes - used[name], 0) for name, one in facts.known.items()}


def busy(runs: Collection[Run]) -> Counter[str]:
    """By cluster: how many nodes its runs have."""
    found: Counter[str] = Counter()
    for run in runs:
        if run.cluster and run.state in _UNDER_WAY:
            found[run.cluster] += run.width
    return found


def nodes_of(run: Run) -> int:
    """How many nodes of it exist, or were asked for: also those that are being released, and idle ones. A node that is
    lost or about to be evicted and its replacement count once."""
    attempt = run.attempt
    current = {member.key for member in attempt.members} if attempt and run.state in _UNDER_WAY else set()
    coming, replaced = set(spare_keys(run)), 0
    if attempt and current:
        replaced = sum(member.spare is not None and is_replaced(attempt, member) for member in attempt.members)
        left: set[str] = set()  # of a run that has nodes, those of earlier attempts were replaced
    else:
        left = {spell.key for spell in run.spells if spell.until is None}
    idle = {one.key for one in run.idle if one.until is None and one.released != TAKEN}
    return len(current | coming | left | idle) - replaced


def held_nodes(run: Run) -> int:
    """The same, without idle nodes that the next run can have."""
    return nodes_of(run) - len(run.waiting_nodes)


def is_replaced(attempt: Attempt, member: Member) -> bool:
    """Its node is lost, or is about to be evicted: another one may take its place."""
    return bool(member.notice or state_of(attempt, member).over)


class NodeCounts:
    """The runs that have nodes, and how many each cluster has in all. A round puts each run here that it changes, since
    asking ten thousand runs anew for each that starts would take longer than all other decisions."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._held: dict[str, Run] = {}
        self._counts: dict[str, int] = {}  # by run id, for runs in a cluster
        self._nodes: Counter[str] = Counter()
        self._idle: dict[str, dict[str, Run]] = {}  # by cluster, by id
        for run in runs:
            self.put(run)

    def put(self, run: Run) -> None:
        if not run.attempts and not run.idle:
            return
        self._held[run.id] = run
        if not run.cluster:
            return
        nodes = nodes_of(run)
        self._nodes[run.cluster] += nodes - self._counts.get(run.id, 0)
        self._counts[run.id] = nodes
        if run.idle:
            self._idle.setdefault(run.cluster, {})[run.id] = run

    @property
    def runs(self) -> Collection[Run]:
        return self._held.values()

    def nodes(self, cluster: str) -> int:
        return self._nodes[cluster]

    def idle(self, cluster: str) -> list[tuple[Run, IdleSpell]]:
        return idle_nodes(self._idle.get(cluster, {}).values(), cluster)


def room_for_more(run: Run, held: NodeCounts, facts: ClusterFacts) -> int | None:
    """How many more nodes its cluster may have now; None: it is in none."""
    cluster = facts.known.get(run.cluster)
    if cluster is None:
        return None
    return max(cluster.max_nodes - held.nodes(run.cluster), 0)


class Blockage(NamedTuple):
    """Why a run does not start: in words, what to do about it, and as a cause."""

    why: str
    hint: str
    cause: str


def why_waiting(run: Run, ahead: int, there: int, facts: ClusterFacts) -> Blockage:
    """Why a queued run of a cluster has not started; empty if it is about to. `ahead` is how many of its cluster start
    before it, `there` how many nodes are free."""
    name, nodes = run.cluster, run.job.least_nodes
    if closed := blocked(run, facts):
        return closed
    cluster = facts.known[name]
    if nodes > there:
        used = f"{cluster.max_nodes - there} of {cluster.max_nodes} nodes of cluster `{name}` are busy"
        return Blockage(f"waits for {nodes - there} of {nodes} nodes: {used}, {ahead} ahead", "", Cause.NO_ROOM)
    return Blockage(f"{ahead} ahead in cluster `{name}`" if ahead else "", "", Cause.NO_ROOM if ahead else "")


def blocked(run: Run, facts: ClusterFacts) -> Blockage | None:
    """Why no free node would help a run of a cluster; None: one would."""
    name, nodes = run.cluster, run.job.least_nodes
    cluster = facts.known.get(name)
    if cluster is None:
        return Blockage(f"cluster `{name}` does not exist", f"stoker cancel {run.name}", Cause.NO_SUCH_CLUSTER)
    if cluster.paused:
        return Blockage(f"cluster `{name}` is paused", f"stoker cluster resume {name}", Cause.CLUSTER_PAUSED)
    if nodes > cluster.max_nodes:
        hint = f"stoker cluster resize {name} --max {nodes}"
        return Blockage(too_wide(nodes, cluster), hint, Cause.CLUSTER_TOO_SMALL)
    return None


def too_wide(nodes: int, cluster: Cluster) -> str:
    return f"needs {nodes} nodes, cluster `{cluster.name}` has at most {cluster.max_nodes}"


def idle_nodes(runs: Collection[Run], name: str) -> list[tuple[Run, IdleSpell]]:
    """The nodes of a cluster that wait for a run, the one that waits longest first."""
    found = [
        (run, one) for run in runs if run.cluster == name for one in run.idle if one.until is None and not one.released
    ]
    return sorted(found, key=lambda each: (each[1].since, each[1].key))


def observed(run: Run, seen: Sighting, facts: ClusterFacts, now: datetime) -> Run:
    """The run with what was seen of its idle nodes; when it has just ended, its node may become one."""
    if not run.cluster:
        return run
    if run.idling:
        after = tuple(_observed(one, seen, now) for one in run.idle)
        return replace(run, idle=after) if after != run.idle else run
    return _with_idle(run, seen, facts, now)


def releasing(runs: Collection[Run], facts: ClusterFacts, now: datetime) -> Iterator[tuple[Run, str, str]]:
    """The idle nodes that are not kept any longer: whose, which, and why."""
    used = busy(runs)
    for name in {run.cluster for run in runs if run.idling}:
        cluster, idle = facts.known.get(name), idle_nodes(runs, name)
        kept = idle
        if cluster is None or cluster.paused or name in facts.spent:
            kept = []
        else:
            room = max(cluster.max_nodes - used[name], 0)
            kept = idle[len(idle) - room :] if room < len(idle) else idle
            spare = len(kept) - max(cluster.min_nodes - used[name], 0)  # those that wait longest go first
            late = [each for each in kept[: max(spare, 0)] if (now - each[1].since).total_seconds() >= cluster.idle_s]
            kept = [each for each in kept if each not in late]
        for run, one in idle:
            if (run, one) not in kept:
                yield run, one.key, _why(cluster, name in facts.spent, one, now)


def lacking(runs: Collection[Run], facts: ClusterFacts) -> dict[str, int]:
    """By cluster: how many nodes are to be started ahead of any run, to have its minimum. Runs that wait bring theirs,
    and one that starts nodes ahead comes to its end first."""
    found: dict[str, int] = {}
    for name, one in facts.known.items():
        if not one.min_nodes or one.paused or name in facts.spent or one.provider not in facts.warm:
            continue
        there = [run for run in runs if run.cluster == name]
        coming = sum(run.width for run in there if run.state is RunState.QUEUED)
        nodes = one.min_nodes - coming - sum(nodes_of(run) for run in there)
        if nodes > 0 and not any(run.warms and not run.state.ended for run in there):
            found[name] = nodes
    return found


def release(run: Run, key: str, why: str) -> Run:
    """Releases an idle node, which is billed until it is seen gone."""
    return replace(run, idle=tuple(replace(one, released=why) if one.key == key else one for one in run.idle))


@dataclass(frozen=True, slots=True)
class Taking:
    """Idle nodes for a run that waits: an offer for each of its nodes, and whose idle nodes they are."""

    offers: tuple[Offer, ...]
    idle: tuple[tuple[Run, str], ...]  # the run that had each, and its key


def taken(run: Run, nodes: int, held: NodeCounts, market: Market, now: datetime) -> Taking | None:
    """Those that wait shortest, so that the others can be released; new ones of the same kind for the rest of a gang.
    The machines of a gang have to reach each other: all are of one earlier gang, whose network they stay in."""
    found: dict[tuple[str, str, str, bool], list[tuple[Run, str, Offer]]] = {}
    idle = [each for each in held.idle(run.cluster) if each[0].id != run.id] if run.cluster else []
    if run.warms:
        return None  # it is there to start new ones
    today = open_now(run, market, now) if idle else []
    for owner, one in reversed(idle if today else []):
        had = next((member.offer for member in owner.members if member.key == one.key), None)
        fits = next((offer for offer in today if had and same(offer, had)), None)
        if fits is None or had is None or owner.store != run.store or owner.job.on != run.job.on:
            continue
        apart = nodes > 1 and bool(fits.network)
        if apart and not had.gang:
            continue
        offer = replace(fits, again=had.again or one.key, waits=one.key, gang=had.gang)
        kind = (had.gang if apart else "", fits.size, fits.place, fits.spot)
        found.setdefault(kind, []).append((owner, one.key, offer))
    if not found:
        return None
    some = max(found.values(), key=len)[:nodes] if nodes > 1 else next(iter(found.values()))[:1]
    rest = nodes - len(some)
    fresh = replace(some[0][2], again="", waits="")
    if rest and not fits_whole(fresh, rest):
        return None
    offers = (*(offer for _, _, offer in some), *[fresh] * rest)
    return Taking(offers, tuple((owner, key) for owner, key, _ in some))


@dataclass(frozen=True, slots=True)
class Making:
    """What has to happen before a run can have new nodes: nothing, if it may have them now."""

    waits: bool = False
    releases: tuple[tuple[Run, IdleSpell], ...] = ()  # idle nodes, and whose
    lets_go: bool = False  # of its own machines, those that its next attempt does not use


def making_room(
    run: Run, offers: Sequence[Offer], held: NodeCounts, facts: ClusterFacts, warm: Taking | None = None
) -> Making:
    """For a run that would start with these nodes, of which `warm` are idle ones of others."""
    cluster = facts.known.get(run.cluster)
    if cluster is None:
        return Making()
    mine, taken = nodes_of(run), {key for _, key in warm.idle} if warm else set()
    others = held.nodes(run.cluster) - mine - len(taken)
    asked = len(spare_keys(run))
    used = sum(bool(offer.again) for offer in offers) + min(asked, len(offers))  # of its own, asked for or there
    left = max(mine - used, 0)
    over = others + left + len(offers) - cluster.max_nodes
    if over <= 0:
        return Making()
    idle = [each for each in held.idle(run.cluster) if each[0].id != run.id and each[1].key not in taken]
    there = [one for one in held.runs if one.cluster == run.cluster and one.id != run.id]
    going = sum(held_nodes(one) for one in there if one.state not in _UNDER_WAY)
    return Making(True, tuple(idle[: max(over - going - left, 0)]), lets_go=left > 0)


def without_machines(run: Run) -> Run:
    """A waiting run whose machines are released: its next attempt starts on others."""
    attempt = run.attempt
    if attempt is None:
        return run
    return run.with_newest(
        replace(attempt, stays=False, peers=tuple(replace(one, stays=False) for one in attempt.peers))
    )


def _observed(one: IdleSpell, seen: Sighting, now: datetime) -> IdleSpell:
    if one.until is not None:
        return one
    sight, last = next((each for each in seen.nodes if each.key == one.key), None), one.seen_at or one.since
    if sight is None or (sight.state is NodeState.GONE and sight.usd_per_hour <= 0):
        # One that was not observed for long has removed itself some time after its last lease.
        return replace(one, until=max(min(now, last + timedelta(seconds=MARK_S + seen.lingers_s)), one.since))
    if sight.state is NodeState.GONE and not one.released:
        one = replace(one, released=sight.reason or "its node is gone")
    return replace(one, seen_at=now) if (now - last).total_seconds() >= MARK_S else one


def _with_idle(run: Run, seen: Sighting, facts: ClusterFacts, now: datetime) -> Run:
    cluster, attempt = facts.known.get(run.cluster), run.attempt
    if cluster is None or cluster.paused or run.job.on not in facts.warm or run.cluster in facts.spent:
        return run
    if attempt is None or not run.state.ended or run.kept_until or run.idle or attempt.outcome not in _SOUND:
        return run
    up = {one.key: one for one in seen.nodes if one.state is NodeState.UP}
    waits = [
        IdleSpell(one.key, now, None, up[one.key].usd_per_hour or one.offer.usd_per_hour, now, owner=cluster.owner)
        for one in attempt.members
        if one.key in up and one.offer and not one.notice and _is_sound(attempt, one)
    ]
    keys = {one.key for one in waits}
    spells = tuple(replace(one, until=now) if one.key in keys and not one.until else one for one in run.spells)
    return replace(run, spells=spells, idle=tuple(waits)) if waits else run


def _is_sound(attempt: Attempt, member: Member) -> bool:
    """Its agent has ended by itself; one whose peer ended has, too."""
    if not attempt.peers:
        return True
    lost = state_of(attempt, member) in (AttemptState.LOST, AttemptState.EVICTED)
    return not lost and (member.node == 0 or member.outcome in (*_SOUND, Outcome.PEER_ENDED))


def _why(cluster: Cluster | None, spent: bool, one: IdleSpell, now: datetime) -> str:
    if cluster is None:
        return "its cluster was removed"
    if cluster.paused:
        return "its cluster is paused"
    if spent:
        return "a spending limit is reached"
    waited_s = (now - one.since).total_seconds()
    return f"idle for {waited_s:.0f} s" if waited_s >= cluster.idle_s else "its cluster has no room for it"


def yielding(run: Run, other: Run, now: datetime) -> Decision:
    """The run saves, ends and waits again, because another one has a higher priority."""
    attempt = run.attempts[-1]
    after = run.with_newest(replace(attempt, notice=_notice(attempt, now), yielded=other.name))
    text = f"attempt {attempt.number} saves and makes room for {other.name}, which has a higher priority"
    return Decision(after).noting(now, "paused-for", text)


def vacated(run: Run, facts: ClusterFacts, now: datetime) -> Decision | None:
    """A run of a paused cluster saves and gives its nodes back, also those that it would use again; None: there is
    nothing more to do. It resumes when its cluster does."""
    cluster, attempt = facts.known.get(run.cluster), run.attempt
    if cluster is None or not cluster.paused or attempt is None:
        return None
    if run.kept_until:
        return nodes.released(run, now, f"released the node that was kept: cluster `{cluster.name}` is paused")
    if run.state.ended or run.wish is not Wish.GO_ON or attempt.fused:
        return None
    if run.state in (RunState.QUEUED, RunState.PAUSED):
        return None if attempt.paused else Decision(run.with_newest(_without_spares(attempt, cluster.name)))
    if attempt.paused and attempt.notice:
        return None
    saving = replace(_without_spares(attempt, cluster.name), notice=attempt.notice or _notice(attempt, now))
    if attempt.started_at is None:  # nothing is lost with any of its nodes
        saving = replace(saving, peers=tuple(replace(one, notice=saving.notice) for one in saving.peers))
    text = f"attempt {attempt.number} saves and gives its nodes back: cluster `{cluster.name}` is paused"
    return Decision(run.with_newest(saving)).noting(now, "cluster-paused", text)


def _without_spares(attempt: Attempt, cluster: str) -> Attempt:
    peers = tuple(replace(one, spare=None) for one in attempt.peers)
    return replace(attempt, paused=cluster, spare=None, growth=(), peers=peers)


def _notice(attempt: Attempt, now: datetime) -> Notice:
    """None of its time is needed where no script has begun."""
    return Notice(now, now + timedelta(seconds=PAUSE_S if attempt.started_at else 0.0))
