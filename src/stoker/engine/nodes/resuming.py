"""Machines that a run can reuse: stopped with their disk, or back after a restart."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from stoker.engine.offers.market import Market, open_now, same
from stoker.engine.sighting import Sighting
from stoker.model.node.node import NodeSight, NodeState, Offer
from stoker.model.node.orders import Wish
from stoker.model.run.run import Member, Run, RunState

RESTART_S = 300.0  # a machine that restarts may be silent for this long without being lost


def machine(sight: NodeSight) -> str:
    return sight.machine or sight.key


def may_resume(run: Run, sight: NodeSight) -> bool:
    """The next attempt of this waiting run can take over a machine of its last one."""
    attempt = run.attempt
    if run.state is not RunState.QUEUED or run.wish is not Wish.GO_ON or attempt is None or attempt.yielded:
        return False
    member = next((one for one in attempt.members if one.key == sight.key), None)
    if member is None or member.spare:
        return False
    there = sight.resumable or (member.stays and sight.state is not NodeState.GONE)
    return there and not sight.server and _has_spoken(member)


def _has_spoken(attempt: Member) -> bool:
    """A machine that was evicted in its very first boot may never have got its orders, and does not get them again."""
    again = attempt.offer is not None and bool(attempt.offer.again)
    return again or attempt.started_at is not None or attempt.effort is not None


def resumed(
    run: Run, member: Member, seen: Sighting | None, market: Market, best: Offer | None, now: datetime
) -> Offer | None:
    """The machine of this node of the last attempt as an offer, if none is better: it has the disk, and starts sooner.

    One that only restarts is already billed. One that was stopped has to be requested again, at today's price.
    """
    mine = [one for one in seen.nodes if one.key == member.key and may_resume(run, one)] if seen else []
    sight, offer = mine[0] if mine else None, member.offer
    if sight is None or offer is None:
        return None
    if sight.state is not NodeState.GONE:
        return replace(offer, again=machine(sight), waits="")
    today = next((one for one in open_now(run, market, now) if same(one, offer)), None)
    if today is None or (best and (best.spot != today.spot or best.usd_per_hour < today.usd_per_hour)):
        return None  # a deadline may require the other kind now
    return replace(today, again=machine(sight))


def spared(runs: Collection[Run], sights: Collection[NodeSight]) -> set[str]:
    """Keys of nodes that no run claims, and whose machines are about to be taken over or may be."""
    waiting = [run for run in runs if run.attempts and run.state is RunState.QUEUED]
    may = {sight.key for sight in sights for run in waiting if may_resume(run, sight)}
    parts = [member for run in runs if run.attempt and not run.state.ended for member in run.attempt.members]
    taken = {member.offer.again for member in parts if member.offer}
    return may | {sight.key for sight in sights if machine(sight) in taken}
