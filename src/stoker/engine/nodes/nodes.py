"""The nodes of a run: how one ended, which can be reused, which are kept, restored, or left over."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from stoker.engine.decision import Decision, Land, Sighting, StartNode, StartSpare, StopNode, TellAgent
from stoker.engine.money import meter
from stoker.engine.nodes.lease import spare_keys
from stoker.engine.offers.market import Market, open_now, same
from stoker.errors import Conflict
from stoker.model.cause import Cause
from stoker.model.node import NodeSight, NodeState, Offer
from stoker.model.orders import Wish
from stoker.model.run.run import AttemptState, Member, Run, RunState

RESTART_S = 300.0  # a machine that restarts may be silent for this long without being lost


def machine(sight: NodeSight) -> str:
    return sight.machine or sight.key


def may_resume(run: Run, sight: NodeSight) -> bool:
    """The next attempt of this waiting run can take over a machine of its last one."""
    attempt = run.attempt
    if run.state is not RunState.QUEUED or run.wish is not Wish.GO_ON or attempt is None or attempt.leaves:
        return False
    if run.trial and run.trial.paused:  # for as long as other trials take
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


MUTE_S = 1200.0  # from the request for a node to its agent's first report: a slower machine never reports
REFUSED_S = 30.0  # a node with unusable reports for longer than this is lost: agents repair theirs in a heartbeat


@dataclass(frozen=True, slots=True)
class Fate:
    why: str = ""  # empty if the node was evicted
    cause: str = ""  # the same for programs
    evicted: bool = False
    words: str = ""  # of its provider about the eviction; empty: it said nothing
    trouble: str = ""  # the code of the error that ended it
    hint: str = ""
    stop: bool = False  # it may still exist: it has to be released


def gone(attempt: Member, seen: Sighting) -> Fate | None:
    """For a node that could not be started, or is gone. None: it may exist."""
    if seen.trouble:
        why = f"the node could not be started: {seen.trouble}"
        return Fate(why, Cause.NOT_STARTED, trouble=seen.trouble_code, hint=seen.trouble_hint)
    if not seen.node or seen.node.state is not NodeState.GONE:
        return None
    if attempt.notice or seen.node.taken:  # sometimes earlier than announced, or without notice
        return Fate(evicted=True, words=seen.node.reason if seen.overstay_s else "")
    if seen.refused and not seen.node.trouble:
        return Fate(unusable(seen.refused), Cause.REPORT_UNUSABLE)
    return Fate(seen.node.reason or "its node disappeared", Cause.NODE_GONE, trouble=seen.node.trouble)


def missed(run: Run, attempt: Member, seen: Sighting, now: datetime) -> Fate | None:
    """For a node that should exist and does not report. None: it works, or is still starting."""
    restarts = attempt.notice is not None and attempt.notice.returns  # it returns in a moment
    drilled = attempt.notice is not None and attempt.notice.drill  # its provider knows nothing of that
    overstay = timedelta(seconds=seen.overstay_s if seen.node and not drilled else 0.0)
    if attempt.notice and not restarts and now >= attempt.notice.deadline + overstay:
        return Fate(evicted=True, stop=True)
    if seen.silent_s > max(seen.patience_s, RESTART_S if restarts else 0.0):
        return Fate(f"no heartbeat from its node for {seen.silent_s:.0f} s", Cause.NO_HEARTBEAT)
    if seen.refused and seen.refused_s > REFUSED_S:
        return Fate(unusable(seen.refused), Cause.REPORT_UNUSABLE, stop=True)
    if seen.node and not seen.report and is_unasked(run, attempt, seen):
        return None
    if seen.node and seen.node.waits:
        return None
    if seen.node and not seen.report and not seen.deaf and (now - attempt.asked_at).total_seconds() > MUTE_S:
        return Fate(f"its node ran for {MUTE_S / 60:.0f} minutes and never reported", Cause.NEVER_REPORTED)
    if seen.node is None and ((seen.report and not seen.unmarked) or run.wish is Wish.CANCEL):
        # A list may omit existing nodes: requesting the release costs nothing, and it cannot continue.
        return Fate("its node no longer exists", Cause.NODE_GONE, stop=True)
    disappeared = seen.node is None and not seen.unmarked and meter.was_there(run, attempt.key)
    if disappeared and not (run.attempt and run.attempt.fused):
        # A second node with its key would be billed without need.
        return Fate("its node disappeared before its first report", Cause.NODE_GONE, stop=True)
    return None


def given_up(seen: Sighting) -> Fate | None:
    """For a node that nobody requests any more, since the others were released. A list may omit existing nodes: its
    release is requested, and what appears later is a leftover."""
    there = seen.node is not None or seen.report is not None
    return None if there else Fate("it was not started, since the attempt had ended", Cause.NOT_STARTED, stop=True)


def is_unasked(run: Run, attempt: Member, seen: Sighting) -> bool:
    """It was requested in advance, and its orders could not be written: it waits for them."""
    return attempt.key in seen.unasked and run.wish is Wish.GO_ON


def unusable(why: str) -> str:
    return f"its node's report is invalid: {why}"


def keep(run: Run, now: datetime) -> Run:
    """A run that is about to fail, with its node kept if its job requests it."""
    if not run.job.keep_failed or run.wish is not Wish.GO_ON:
        return run
    return replace(run, kept_until=now + timedelta(seconds=run.job.keep_failed))


def note_kept(failed: Decision, now: datetime) -> Decision:
    """The end of such a run, with a line in its timeline."""
    until = failed.run.kept_until
    if until is None:
        return failed
    return failed.noting(now, "kept", f"its node is kept until {until:%Y-%m-%d %H:%M} UTC")


def tend_kept(run: Run, seen: Sighting, now: datetime) -> Decision:
    """What is left to do for a run that has ended. The server keeps renewing its kept node until it is released."""
    landing = (Land(run),) if run.landing else ()
    if run.kept_until is None:
        return Decision(run, landing)
    if seen.node is None or seen.node.state is NodeState.GONE:
        return released(run, now, "the node that was kept is gone").doing(*landing)
    if now >= run.kept_until:
        return released(run, now, "released the node that was kept: its time is up").doing(*landing)
    return Decision(run, (*landing, TellAgent(run)))


def release(run: Run, now: datetime) -> Decision:
    """The user releases it."""
    if run.kept_until is None:
        hint = f"stoker cancel {run.name}" if not run.state.ended else f"stoker show {run.name}"
        raise Conflict(f"no node of `{run.name}` is kept: it is {run.state}", hint=hint, cause=Cause.NO_KEPT_NODE)
    return released(run, now, "the node that was kept was released on request")


def released(run: Run, now: datetime, text: str) -> Decision:
    """Without the kept node. Stopping is repeated as long as the node is seen: no run claims it any more."""
    after = Decision(replace(run, kept_until=None))
    stop = (StopNode(run.job.on, run.attempt.key),) if run.attempt else ()
    return after.doing(*stop).noting(now, "released", text)


RESTORED_GRACE_S = 30.0  # for a node, or what it last said, to be seen after the server has lost its database


def restored(run: Run, now: datetime) -> Run:
    """The run for the new database. A paused one waits for the user anyway."""
    if run.state.ended or run.state is RunState.PAUSED:
        return run
    if not run.attempts or run.attempts[-1].state.over:
        return run if run.wish is Wish.CANCEL else interrupted(run, now).run
    newest = replace(
        run.attempts[-1], spare=None
    )  # it may be there: then it is released like any other that no run needs
    return replace(run.with_newest(newest), restored_at=now)


def without_starts(decision: Decision, now: datetime) -> Decision:
    """The decision about a run, without a new node if the run was restored."""
    run = decision.run
    if run.restored_at is None or run.state.ended or run.wish is Wish.CANCEL:
        return decision
    rest = tuple(one for one in decision.actions if not isinstance(one, StartNode | StartSpare))
    starts = len(rest) < len(decision.actions)
    if starts and (now - run.restored_at).total_seconds() < RESTORED_GRACE_S:
        return replace(decision, actions=rest)
    if not starts and run.state is not RunState.QUEUED:
        return decision
    ended = interrupted(run, now)
    stops = tuple(StopNode(run.job.on, one.key) for one in run.attempts[-1:] if not one.state.over)
    return Decision(ended.run, (*rest, *stops, *ended.actions), (*decision.events, *ended.events))


def interrupted(run: Run, now: datetime) -> Decision:
    attempts = tuple(
        one if one.state.over else replace(one, state=AttemptState.LOST, ended_at=now) for one in run.attempts
    )
    reason = "interrupted: it was restored from its record, and has no active node"
    saved = run.start is not None or any(one.saved for one in run.attempts)
    hint = f"continue with `stoker {'resume' if saved else 'rerun'} {run.name}`"
    ended = replace(
        run,
        state=RunState.FAILED,
        reason=reason,
        cause=Cause.RESTORED,
        hint=hint,
        ended_at=now,
        exit_code=125,
        attempts=attempts,
    )
    return Decision(ended, (Land(ended),) if ended.landing else ()).noting(now, "failed", f"failed: {reason}")


GRACE_S = 20.0  # an agent still cleans up after its final report; a machine that costs money is released at once


def claimed(runs: Collection[Run]) -> set[str]:
    """Keys of nodes that a run still needs."""
    busy = (RunState.STARTING, RunState.RUNNING)
    current = {member.key for run in runs if run.attempt and run.state in busy for member in run.attempt.members}
    current |= {member.key for run in runs if run.attempt and run.kept_until for member in run.attempt.members}
    return current | {spare for run in runs for spare in spare_keys(run)}


def needed(runs: Collection[Run], sights: Mapping[str, Collection[NodeSight]]) -> set[str]:
    """Keys of nodes that a run needs, or may still take over. `runs` are all that are tracked: a run that has ended may
    keep its node, too. `sights` are by provider."""
    idle = {key for run in runs for key in run.waiting_nodes}
    return claimed(runs) | idle | spared(runs, [sight for some in sights.values() for sight in some])


def release_unneeded(
    sights: Mapping[str, Collection[NodeSight]],
    needed: Collection[str],
    unclaimed_s: Mapping[str, float],
    leased: Collection[str],
) -> list[StopNode]:
    """What to release after observing these providers. `leased` are those whose nodes cost money: these go at once."""
    return [
        stop
        for name, some in sights.items()
        for stop in release_leftovers(name, some, needed, unclaimed_s, 0.0 if name in leased else GRACE_S)
    ]


def release_leftovers(
    provider: str,
    sights: Collection[NodeSight],
    needed: Collection[str],
    unclaimed_s: Mapping[str, float],
    grace_s: float = GRACE_S,
) -> list[StopNode]:
    """`unclaimed_s` is how long each node has been seen without a claim, by the server's monotonic clock. Nodes of
    another server are left to it."""
    unneeded = (sight for sight in sights if sight.key not in needed and not sight.server)
    return [
        StopNode(provider, sight.key)
        for sight in unneeded
        if sight.state is NodeState.GONE or unclaimed_s.get(sight.key, 0.0) >= grace_s
    ]
