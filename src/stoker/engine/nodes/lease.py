"""The keys of a run's nodes: one key never gives two nodes; and how long a node may stay without contact with its
server."""

from __future__ import annotations

import math
from datetime import datetime

from stoker.model.job.job import Job
from stoker.model.node import LAST_WORDS_S, Features
from stoker.model.orders import Wish
from stoker.model.run.money import UNLIMITED, Fuse
from stoker.model.run.run import AttemptState, Member, Run


def node_key(run: Run, number: int, node: int = 0) -> str:
    """Of a node of the attempt with this number."""
    return f"{run.id}-{number}-{node}" if node else f"{run.id}-{number}"


def node_of(key: str) -> tuple[str, int, int]:
    """The id of the run, the number of the attempt and the node that a key consists of."""
    run_id, number, *node = key.split("-")
    return run_id, int(number), int(node[0]) if node else 0


def ahead(run: Run) -> tuple[Member, ...]:
    """The nodes that were requested in advance, as those of the attempt that they are for, until that starts."""
    attempt = run.attempt
    if run.state.ended or attempt is None:
        return ()
    spares = (
        Member(one.number + 1, spare_key(run, one), AttemptState.ASKED, one.asked_at, offer=one.spare, node=one.node)
        for one in attempt.members
        if one.spare
    )
    return (*spares, *attempt.growth)


def spare_keys(run: Run) -> tuple[str, ...]:
    """Of the nodes that were requested in advance."""
    return tuple(one.key for one in ahead(run))


def spare_key(run: Run, member: Member) -> str:
    """The replacement of this node is requested with this key."""
    return node_key(run, member.number + 1, member.node)


def last_key(run: Run, member: Member) -> str:
    """The key of the node that had this machine before: where the machine looks for its next orders."""
    offer = member.offer
    if offer is None or offer.waits:
        return offer.waits if offer else member.key
    before = [one for one in run.members if one.number < member.number and one.offer]
    mine = [one.key for one in before if one.offer and offer.again in (one.key, one.offer.again)]
    of_another_run = not offer.again.startswith(f"{run.id}-")
    return mine[-1] if mine and of_another_run else offer.again


DEFAULT_S = 86_400.0  # of a run that nothing limits
BESIDE_S = 3600.0  # in addition to the script's own time: to boot, download data, prepare, and upload


def lease_s(run: Run, attempt: Member, fuse: Fuse | None, features: Features, now: datetime) -> float:
    """For the node of an attempt, from now on; 0: its nodes have none. `fuse` is what it was told that it may spend."""
    idle_s = idle(features)
    if run.kept_until:
        return min(max((run.kept_until - now).total_seconds(), 0.0) + idle_s, features.lease_s)
    if attempt.state.over or run.state.ended or run.wish is Wish.CANCEL:
        return idle_s
    return min(max(_working_s(run.job, attempt, fuse, now), idle_s), features.lease_s)


def idle(features: Features) -> float:
    """Of a node that does nothing."""
    return min(features.idle_s, features.lease_s)


def longest(job: Job, features: Features, *, budget: bool) -> float:
    """The longest lease that a node of this job can have been given."""
    if not features.lease_s:
        return 0.0
    bound = DEFAULT_S
    if budget:
        bound = features.lease_s  # whatever the budget allows
    if job.time_limit:
        bound = job.time_limit + BESIDE_S
    if job.lease:
        bound = job.lease
    return min(max(bound, idle(features)), features.lease_s)


def _working_s(job: Job, attempt: Member, fuse: Fuse | None, now: datetime) -> float:
    if job.lease:
        return job.lease
    bounds = [DEFAULT_S] if not job.time_limit else [job.time_limit + BESIDE_S - _worked_s(attempt, now)]
    if fuse and fuse.stop_at_usd < UNLIMITED and math.isfinite(fuse.seconds):
        # The fuse fires first: it knows what is left, and records it in the last report.
        bought_s = fuse.seconds - (now - fuse.as_of).total_seconds() + LAST_WORDS_S
        bounds = [bought_s] if not job.time_limit else [*bounds, bought_s]
    return min(bounds)


def _worked_s(attempt: Member, now: datetime) -> float:
    """Since the script started, by the node's clock, but never longer than since the node was requested."""
    if attempt.started_at is None:
        return 0.0
    return min(max((now - attempt.started_at).total_seconds(), 0.0), max((now - attempt.asked_at).total_seconds(), 0.0))
