"""Runs with several nodes: the nodes of an attempt work together, or none of them does.

When one node ends, is evicted or is lost, the attempt is broken: the others are told to end, and keep their machines.
Once every node is accounted for, the attempt is concluded as a whole, and the next one has the machines that are left
and replacements for those that are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from stoker.engine import lifecycle
from stoker.engine.decision import Decision, Sighting, StartNode, StopNode, TellAgent
from stoker.engine.lifecycle import STOP_PATIENCE_S
from stoker.engine.nodes.nodes import Fate, given_up, gone, is_unasked, missed
from stoker.engine.offers.gathering import state_of
from stoker.model.cause import Cause
from stoker.model.orders import Wish
from stoker.model.run.report import GOOD, Outcome, Report, joined, joined_metrics
from stoker.model.run.run import Attempt, AttemptState, Member, Run, RunState

# The result of the whole attempt, if its nodes disagree: the first of these that any of them has. A script that loses
# its peers fails, so a failure says less than an eviction.
_WEIGHT = (
    Outcome.BROKEN,
    Outcome.TIMED_OUT,
    Outcome.BUDGET_REACHED,
    Outcome.NOT_READY,
    Outcome.EVICTED,
    Outcome.CANCELLED,
    Outcome.FAILED,
    Outcome.PEER_ENDED,
    Outcome.TARGET_REACHED,
    Outcome.SUCCEEDED,
)


@dataclass(frozen=True, slots=True)
class _Seen:
    """One node of the gang, with its observation."""

    member: Member
    seen: Sighting
    over: bool = False  # it was lost before
    fate: Fate | None = None  # how it ended without a final report

    @property
    def report(self) -> Report | None:
        return self.seen.report

    @property
    def outcome(self) -> Outcome | None:
        return self.report.outcome if self.report else None

    @property
    def accounted(self) -> bool:
        """It does nothing more, and how it ended is known."""
        return self.outcome is not None or self.fate is not None or self.over

    @property
    def breaks(self) -> bool:
        """The others cannot continue without it."""
        return self.accounted and self.outcome not in GOOD

    @property
    def name(self) -> str:
        return f"node {self.member.node}"


def advance(run: Run, seen: Sighting, now: datetime) -> Decision:
    """The next facts of a run with any number of nodes."""
    attempt = run.attempt
    if attempt is None or not attempt.peers or run.state not in (RunState.STARTING, RunState.RUNNING):
        return lifecycle.advance(run, seen, now)
    members = [_seen(member, one, now) for member, one in zip(attempt.members, (seen, *seen.peers), strict=True)]
    heard = _heard(_noted(run, members, now), members, now)
    run = heard.run
    members = [_with_fate(run, one, now) for one in members]
    run = _with_fates(run, members, now)
    if all(one.accounted for one in members):
        after = _concluded(run, members, now)
    elif run.attempts[-1].broken_at or any(one.breaks for one in members):
        after = _breaking(run, members, now)
    else:
        after = _working(run, members, now)
    return Decision(after.run, (*heard.actions, *after.actions), (*heard.events, *after.events))


def _seen(member: Member, seen: Sighting, now: datetime) -> _Seen:
    if seen.node and seen.node.unfinished:  # its creation was interrupted: nothing there can be lost
        seen = replace(seen, node=None)
    if seen.report:
        seen = replace(seen, report=lifecycle.in_time(seen.report, member, now))
    return _Seen(member, seen)


def _noted(run: Run, members: Sequence[_Seen], now: datetime) -> Run:
    """With the amounts and the progress that the nodes report."""
    reports = [one.report for one in members if one.report]
    if not reports:
        return run
    run = lifecycle.amounts(run, joined(reports))
    for report in reports:
        run = lifecycle.marked(run, report, now)
    return run


def _heard(run: Run, members: Sequence[_Seen], now: datetime) -> Decision:
    """With the notices of machines, and unusable reports."""
    heard = Decision(run)
    for one in members:
        member = heard.run.attempts[-1].members[one.member.node]
        if state_of(heard.run.attempts[-1], member).over or one.outcome:
            continue
        after = None
        if one.seen.refused and not member.refused:
            after = lifecycle.refused(heard.run, member, one.seen.refused, now)
        elif one.report:
            after = lifecycle.hear(heard.run, member, one.report, now)
        if after:
            heard = Decision(after.run, (*heard.actions, *after.actions), (*heard.events, *after.events))
    return heard


def _with_fate(run: Run, one: _Seen, now: datetime) -> _Seen:
    attempt = run.attempts[-1]
    member = attempt.members[one.member.node]
    over = state_of(attempt, member).over
    if one.outcome or over:
        return replace(one, member=member, over=over and member.outcome is None)
    fate = gone(member, one.seen) or missed(run, member, one.seen, now)
    return replace(one, member=member, fate=fate or (given_up(one.seen) if _releases(attempt, now) else None))


def _with_fates(run: Run, members: Sequence[_Seen], now: datetime) -> Run:
    """A node that is lost stays lost, whatever is observed later; the result of one that has ended is recorded."""
    attempt = run.attempts[-1]
    for one in members:
        member = attempt.members[one.member.node]
        if one.over:
            continue
        if one.fate:
            state = AttemptState.EVICTED if one.fate.evicted else AttemptState.LOST
            over = replace(member, ended_at=now, message=one.fate.why, trouble=one.fate.trouble)
            over = replace(over, cause=one.fate.trouble or one.fate.cause)
        elif one.report and one.report.outcome and member.outcome is None:
            report, state = one.report, AttemptState.ENDED
            over = replace(
                member,
                outcome=report.outcome,
                exit_code=report.exit_code,
                message=lifecycle.cut(report.message),
                cause=report.cause,
                hint=lifecycle.cut(report.hint),
                ended_at=report.ended_at or now,
                stays=report.stays,
                started_at=report.started_at,
            )
        else:
            continue
        attempt = attempt.with_member(over if one.member.node == 0 else replace(over, state=state))
        if one.member.node == 0:  # its state is that of the whole attempt; these record its own
            attempt = replace(attempt, lead=state)
    return run.with_newest(attempt)


def _breaking(run: Run, members: Sequence[_Seen], now: datetime) -> Decision:
    """One node has ended: the others are told to end, and are stopped if they do not."""
    attempt, stops = run.attempts[-1], _stops(run, members)
    decision = Decision(run)
    if attempt.broken_at is None:
        attempt = replace(attempt, broken_at=now)
        first = next(one for one in members if one.breaks)
        text = f"attempt {attempt.number} cannot continue: {first.name} {_why(attempt.members[first.member.node])}"
        decision = Decision(run.with_newest(attempt)).noting(now, "gang-broken", text)
    if _releases(attempt, now):
        left = [one for one in members if not one.accounted and not _keeps(run, one, now)]
        stops += [StopNode(run.job.on, one.member.key) for one in left]
    return decision.doing(*stops, TellAgent(decision.run))


def _releases(attempt: Attempt, now: datetime) -> bool:
    """If a node is unavailable, the others are released at once: half a gang would keep machines from another."""
    return attempt.broken_at is not None and (
        _is_late(attempt, now) or any(member.trouble for member in attempt.members)
    )


def _keeps(run: Run, one: _Seen, now: datetime) -> bool:
    """A run that may continue with fewer nodes keeps the machines that it had before."""
    reused = one.member.offer is not None and bool(one.member.offer.again)
    return run.job.is_elastic and reused and not _is_late(run.attempts[-1], now)


def _is_late(attempt: Attempt, now: datetime) -> bool:
    return attempt.broken_at is not None and (now - attempt.broken_at).total_seconds() > STOP_PATIENCE_S


def _why(member: Member) -> str:
    if member.outcome:
        return f"ended ({member.outcome}){f': {member.message}' if member.message else ''}"
    return "was evicted" if not member.message else f"was lost: {member.message}"


def _working(run: Run, members: Sequence[_Seen], now: datetime) -> Decision:
    if run.wish is Wish.CANCEL:
        late = [
            one
            for one in members
            if not one.accounted
            and (one.seen.wished_s > STOP_PATIENCE_S or (one.seen.node is not None and one.seen.node.waits))
        ]
        return Decision(run, (TellAgent(run), *(StopNode(run.job.on, one.member.key) for one in late)))
    absent = [one for one in members if not one.accounted and one.seen.node is None]
    unasked = [one for one in members if one.seen.node and not one.report and is_unasked(run, one.member, one.seen)]
    if absent:
        asked = lifecycle.asking(run, absent[0].seen, now)
    elif unasked:
        asked = Decision(run, (StartNode(run),))
    elif queued := [one for one in members if one.seen.node and one.seen.node.waits and not one.report]:
        why = queued[0].seen.node.waits if queued[0].seen.node else ""
        asked = lifecycle.in_queue(run, [one.member for one in queued], why, now)
    else:
        asked = Decision(_repaired(run))
    after = _progress(asked.run, members, now)
    return Decision(after.run, (*asked.actions, TellAgent(after.run)), (*asked.events, *after.events))


def _repaired(run: Run) -> Run:
    return replace(run, reason="", cause="", hint="") if run.state is RunState.STARTING and run.reason else run


def _progress(run: Run, members: Sequence[_Seen], now: datetime) -> Decision:
    """The attempt runs once every node does."""
    attempt = run.attempts[-1]
    for one in members:
        member = attempt.members[one.member.node]
        if one.report and one.report.started_at and member.started_at is None and member.node:
            begun = replace(member, started_at=one.report.started_at, state=AttemptState.RUNNING)
            attempt = attempt.with_member(begun)
    run = run.with_newest(attempt)
    reports = [one.report for one in members if one.report and one.report.started_at]
    if len(reports) < len(members):
        return Decision(run)
    latest = max(reports, key=lambda report: report.started_at or now)
    lead = replace(reports[0], started_at=latest.started_at)
    return lifecycle.progress(run, lead, now)


def _concluded(run: Run, members: Sequence[_Seen], now: datetime) -> Decision:
    """Every node is accounted for: the attempt ends as a whole."""
    attempt, stops = run.attempts[-1], _stops(run, members)
    lost = [
        member for member in attempt.members if state_of(attempt, member) in (AttemptState.LOST, AttemptState.EVICTED)
    ]
    stopped = attempt.broken_at and (now - attempt.broken_at).total_seconds() > STOP_PATIENCE_S
    reports = [one.report for one in members if one.report and one.report.outcome]
    worst = min((one.outcome for one in reports if one.outcome), key=_WEIGHT.index, default=None)
    if lost and not (stopped and worst is Outcome.FAILED) and worst is not Outcome.BROKEN:
        run = _with_said(run, reports)
        evicted = [member for member in lost if state_of(attempt, member) is AttemptState.EVICTED]
        if evicted or worst is Outcome.EVICTED:
            return lifecycle.evicted(run, now).doing(*stops)
        member = min(lost, key=lambda one: (not one.trouble, one.ended_at or now))
        why = f"node {member.node}: {member.message}"
        return lifecycle.lost(run, why, now, member.cause, member.trouble).doing(*stops)
    if not reports:
        return lifecycle.lost(run, "none of its nodes is left", now, Cause.NODE_GONE).doing(*stops)
    return lifecycle.conclude(run, _whole(attempt, reports, worst), worst or Outcome.FAILED, now).doing(*stops)


def _with_said(run: Run, reports: Sequence[Report]) -> Run:
    """Metrics of nodes of an abandoned attempt are not lost."""
    if not reports:
        return run
    return replace(run, metrics=joined_metrics(run.metrics, joined(reports).metrics))


def _whole(attempt: Attempt, reports: Sequence[Report], worst: Outcome | None) -> Report:
    """One report for all: the result of the worst, with the data of all."""
    first = min((one for one in reports if one.outcome is worst), key=lambda one: one.ended_at or one.at)
    message = first.message
    named = f"node {first.node}: {message}{_left(reports, first)}" if message and worst not in GOOD else message
    starts = [one.started_at for one in reports if one.started_at]
    ends = [one.ended_at for one in reports if one.ended_at]
    lead = next((one for one in reports if one.node == 0), None)
    return replace(
        joined(reports),
        outcome=worst,
        exit_code=first.exit_code,
        message=named,
        cause=first.cause,
        hint=first.hint,
        started_at=max(starts) if starts else None,
        ended_at=max(ends) if ends else None,
        stays=lead.stays if lead else False,
        packages=lead.packages if lead else {},
        image=lead.image if lead else "",
        environment=lead.environment if lead else "",
        system=lead.system if lead else {},
        data=(lead or first).data,
        effort=lead.effort if lead else None,
        attempt=attempt.number,
        node=0,
    )


def _left(reports: Sequence[Report], failed: Report) -> str:
    """The nodes that had ended well before: a rank that waits for theirs in a collective fails."""
    until = failed.ended_at or failed.at
    before = [one.node for one in reports if one.outcome in GOOD and (one.ended_at or one.at) <= until]
    names = " and ".join(f"node {node}" for node in sorted(before)[:3])
    return f", after {names} had ended with exit code 0" if before and failed.outcome is Outcome.FAILED else ""


def _stops(run: Run, members: Sequence[_Seen]) -> list[StopNode]:
    return [StopNode(run.job.on, one.member.key) for one in members if one.fate and one.fate.stop]
