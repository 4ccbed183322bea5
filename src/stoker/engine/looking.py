"""Turns looks into facts: what the provider shows, the store tells and requests came to, as one sighting of a run.

Everything is by node key, so that a run with several nodes is looked at in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from stoker.engine.decision import Sighting
from stoker.engine.money.fuse import release_s
from stoker.engine.nodes.lease import idle, longest, spare_key, spare_keys
from stoker.engine.nodes.nodes import claimed, machine
from stoker.errors import StokerError
from stoker.model.node import LAST_WORDS_S, Features, NodeSight, NodeState
from stoker.model.orders import Wish
from stoker.model.run.report import Report
from stoker.model.run.run import Member, Run


@dataclass(frozen=True, slots=True)
class Heard:
    """What the store has told of one node, and how far that can be relied on. Seconds are of the steady clock."""

    report: Report | None = None
    refused: str = ""  # why what the node said last is not used
    refused_s: float = 0.0
    silent_s: float = 0.0
    deaf: bool = False  # the store is unavailable: a missing report proves nothing
    said_at: datetime | None = None  # when the store was given the final report, by the store's own clock
    in_full: bool = True  # the store was asked after the node was first seen gone: it has nothing more to tell
    trouble: str = ""  # why the store could not be read


@dataclass(frozen=True, slots=True)
class Requests:
    """The results of the requests for nodes, by node key."""

    trouble: Mapping[str, StokerError] = field(default_factory=dict)  # the provider could not start it
    unasked: Mapping[str, StokerError] = field(default_factory=dict)  # not even requested: its store fails
    copying: Collection[str] = ()  # not asked for yet: the checkpoint that its run starts from is being copied
    wished_s: Mapping[str, float] = field(default_factory=dict)  # since its agent was first told to stop
    renewed_at: Mapping[str, datetime] = field(default_factory=dict)  # when this server last renewed its lease
    begun: Collection[str] = ()  # not made yet when its provider was last looked at, or perhaps not: unseen, it may be


def gone_keys(runs: Collection[Run], sights: Collection[NodeSight]) -> set[str]:
    """Of nodes that are no more, after a look at their provider. `runs` are those of that provider."""
    return {sight.key for sight in sights if sight.state is NodeState.GONE} | vanished(runs, sights)


def vanished(runs: Collection[Run], sights: Collection[NodeSight]) -> set[str]:
    """Keys of nodes that existed, and that their provider does not show any more."""
    seen = {sight.key for sight in sights}
    there = (spell for run in runs if run.attempt for spell in run.spells if spell.until is None and spell.seen_at)
    return {spell.key for spell in there if spell.key not in seen}


def heard_out(run: Run, heard: Heard) -> bool:
    """No more reports of a node that is gone will come. To cancel a run, an unreachable store is not waited for."""
    return heard.in_full or (run.wish is Wish.CANCEL and bool(heard.trouble))


def goes_on(run: Run, report: Report | None, now: datetime) -> bool:
    """Its agent was heard, and has not said how it ended. A kept one has, and may stay for its time."""
    is_kept = run.kept_until is not None and now < run.kept_until
    return report is not None and (report.outcome is None or is_kept)


def sighting(
    run: Run,
    sights: Collection[NodeSight],
    gone: Collection[str],
    heard: Mapping[str, Heard],
    requests: Requests,
    features: Features,
    *,
    limited: bool = False,
) -> Sighting:
    """`sights` are what its provider shows, `gone` the keys of nodes that are no more. `limited`: an administrator's
    limit holds for the run, beside a budget of its own."""
    attempt = run.attempt
    if attempt is None:
        return Sighting()
    mine = [sight for sight in sights if sight.key.startswith(f"{run.id}-")]
    mine += _still_idle(attempt.members, sights, heard)
    parts = [_member(run, member, mine, gone, heard, requests, features) for member in attempt.members]
    current = {one.node.key: one.node for one in parts if one.node}
    earlier = {one.key: one for one in mine if one.key not in spare_keys(run) and one.key not in current}
    known = {one.key for one in mine}
    # When a node went is in its last report.
    mine += [one for one in current.values() if one.state is not NodeState.GONE and one.key not in known]
    return replace(
        parts[0],
        leftovers=tuple(earlier),
        nodes=tuple(mine),
        still=tuple(one.key for one in earlier.values() if one.still),
        outlives_s=outlives_s(run, features, limited=limited),
        lingers_s=lingers_s(run, features),
        unasked=(*requests.unasked, *requests.copying),
        peers=tuple(parts[1:]),
        growth=tuple(_spare(one.key, mine, requests.trouble) for one in attempt.growth),
    )


def _still_idle(
    members: Collection[Member], sights: Collection[NodeSight], heard: Mapping[str, Heard]
) -> list[NodeSight]:
    """The idle nodes of a cluster that members took: their agents may report before the provider shows the new key."""
    there = {sight.key: sight for sight in sights}
    found = []
    for one in members:
        waits = one.offer.waits if one.offer else ""
        if waits in there and one.key not in there and heard.get(one.key, Heard()).report:
            found.append(replace(there[waits], key=one.key, machine=one.offer.again if one.offer else ""))
    return found


def _member(
    run: Run,
    member: Member,
    mine: list[NodeSight],
    gone: Collection[str],
    heard: Mapping[str, Heard],
    requests: Requests,
    features: Features,
) -> Sighting:
    """What is known of one node of the newest attempt."""
    said = heard.get(member.key, Heard())
    trouble, waits = requests.trouble.get(member.key), requests.unasked.get(member.key)
    unmarked = _is_unmarked(member, mine) or _is_unseen(member, mine, requests)
    return Sighting(
        node=_current(run, member.key, mine, () if unmarked else gone, said),
        report=said.report,
        unmarked=unmarked,
        spare=_spare(spare_key(run, member), mine, requests.trouble) if member.spare else None,
        refused=said.refused,
        refused_s=said.refused_s,
        silent_s=said.silent_s,
        deaf=said.deaf,
        said_at=said.said_at,
        patience_s=_patience_s(run, member, heard, features),
        overstay_s=features.overstay_s,
        wished_s=requests.wished_s.get(member.key, 0.0),
        renewed_at=requests.renewed_at.get(member.key),
        unasked=(*requests.unasked, *requests.copying),
        waits=waits.message if waits else "",
        waits_hint=waits.hint if waits else "",
        waits_code=waits.code if waits else "",
        trouble=trouble.message if trouble else "",
        trouble_hint=trouble.hint if trouble else "",
        trouble_code=trouble.code if trouble else "",
    )


def _patience_s(run: Run, member: Member, heard: Mapping[str, Heard], features: Features) -> float:
    """Where other nodes of its gang are heard, the way to the server works, and they wait for this one."""
    if features.peer_patience_s is None or run.attempt is None:
        return features.patience_s
    others = (heard[one.key] for one in run.attempt.members if one.key != member.key and one.key in heard)
    is_heard = any(other.report and other.silent_s < features.peer_patience_s / 2 for other in others)
    return features.peer_patience_s if is_heard else features.patience_s


def outlives_s(run: Run, features: Features, *, limited: bool = False) -> float:
    """The longest that a node of the run stays without word from its server; 0: unknown. It counts its lease from its
    own start: one that was last seen before that stays for as long as it takes to start, too."""
    lease_s = longest(run.job, features, budget=limited or run.budget is not None)
    offers = [offer for member in run.members for offer in (member.offer, member.spare) if offer]
    offers += run.attempt.ahead if run.attempt else ()
    ready_s = max((offer.ready_s for offer in offers), default=0.0)
    return ready_s + lease_s + LAST_WORDS_S + release_s(run) if lease_s else 0.0


def lingers_s(run: Run, features: Features) -> float:
    """The longest that a node stays after the last report of its agent."""
    return (run.job.keep_failed or 0.0) + idle(features) + LAST_WORDS_S + release_s(run)


def _current(run: Run, key: str, mine: list[NodeSight], gone: Collection[str], said: Heard) -> NodeSight | None:
    """What is known of the newest attempt's node; None: there is none, or it waits for the next one."""
    if key not in claimed([run]):
        return None
    seen = next((one for one in mine if one.key == key), None)
    if seen is None and key in gone:
        seen = NodeSight(key, NodeState.GONE, "its node is no longer there", still=True)
    if seen and seen.state is NodeState.GONE and not heard_out(run, said):
        return replace(seen, state=NodeState.UP)  # its last report may say how it ended: read that first
    return seen


def _is_unmarked(member: Member, mine: list[NodeSight]) -> bool:
    """Its machine, of an earlier attempt, has its orders through the store before its provider writes the new key down,
    and may report before that is seen."""
    again = member.offer.again if member.offer else ""
    return bool(again) and member.key not in {one.key for one in mine} and again in {machine(one) for one in mine}


def _is_unseen(member: Member, mine: list[NodeSight], requests: Requests) -> bool:
    """A look that takes long may be over only when a node that was requested meanwhile already reports."""
    return member.key in requests.begun and member.key not in {one.key for one in mine}


def _spare(key: str, sights: Collection[NodeSight], trouble: Mapping[str, StokerError]) -> NodeSight | None:
    """What was seen of the node that was asked for ahead; one that could not be asked for is as good as gone."""
    if why := trouble.get(key):
        return NodeSight(key, NodeState.GONE, why.message, why.code)
    return next((sight for sight in sights if sight.key == key), None)
