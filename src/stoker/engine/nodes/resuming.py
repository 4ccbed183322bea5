"""Machines that a run can have once more: switched off with their disk, or there again after a restart."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from stoker.engine.offers.market import Market, open_now, same
from stoker.engine.sighting import Sighting
from stoker.model.node.node import NodeSight, NodeState, Offer
from stoker.model.node.orders import Wish
from stoker.model.run.run import Attempt, Run, RunState

RESTART_S = 300.0  # a machine that restarts is silent for so long, and is not lost


def machine(sight: NodeSight) -> str:
    return sight.machine or sight.key


def may_resume(run: Run, sight: NodeSight) -> bool:
    """The next attempt of this waiting run can take over the machine of its last one."""
    attempt = run.attempt
    if run.state is not RunState.QUEUED or run.wish is not Wish.GO_ON or attempt is None or attempt.spare:
        return False
    there = sight.resumable or (attempt.stays and sight.state is not NodeState.GONE)
    return there and sight.key == attempt.key and not sight.server and _has_spoken(attempt)


def _has_spoken(attempt: Attempt) -> bool:
    """A machine that was taken in its very first boot may never have learnt what to do, and is not told twice."""
    again = attempt.offer is not None and bool(attempt.offer.again)
    return again or attempt.started_at is not None or attempt.effort is not None


def resumed(run: Run, seen: Sighting | None, market: Market, best: Offer | None, now: datetime) -> Offer | None:
    """The machine of the last attempt as an offer, where none is better: it has the disk, and is there sooner.

    One that only restarts is paid for already. One that was switched off has to be had again, at today's price.
    """
    sight = next((one for one in seen.nodes if may_resume(run, one)), None) if seen else None
    offer = run.attempt.offer if run.attempt else None
    if sight is None or offer is None:
        return None
    if sight.state is not NodeState.GONE:
        return replace(offer, again=machine(sight))
    today = next((one for one in open_now(run, market, now) if same(one, offer)), None)
    if today is None or (best and (best.spot != today.spot or best.usd_per_hour < today.usd_per_hour)):
        return None  # whoever would rather have the other kind now, for a deadline, has a reason
    return replace(today, again=machine(sight))


def spared(runs: Collection[Run], sights: Collection[NodeSight]) -> set[str]:
    """Keys of nodes that no run claims, and whose machines are about to be taken over or may be."""
    waiting = [run for run in runs if run.attempts and run.state is RunState.QUEUED]
    may = {sight.key for sight in sights for run in waiting if may_resume(run, sight)}
    taken = {run.attempt.offer.again for run in runs if run.attempt and run.attempt.offer and not run.state.ended}
    return may | {sight.key for sight in sights if machine(sight) in taken}
