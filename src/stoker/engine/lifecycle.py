"""The life of a run: from what is known and what was seen to what is true now and what to do about it.

Every rule is driven by the state of things, not by having seen it change: whatever was saved but not done before a
crash is asked for again when the same facts are looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from stoker.engine.decision import Decision, Land, Sighting, StartNode, StartSpare, StopNode, TellAgent
from stoker.engine.money import fuse, meter
from stoker.engine.nodes.lease import node_key, spare_key
from stoker.engine.nodes.nodes import Fate, gone, is_unasked, keep, may_resume, missed, note_kept, tend_kept
from stoker.engine.offers.deadline import noted
from stoker.engine.offers.gathering import in_one_network
from stoker.engine.offers.market import attend
from stoker.engine.patience import NOT_READY, WAITED_FOR, haste, saves_in, used_up, verdict
from stoker.engine.sweeps import searching
from stoker.engine.sweeps.searching import unmeasured
from stoker.model.cause import Cause
from stoker.model.node import Offer
from stoker.model.orders import Notice, Wish
from stoker.model.run.report import Outcome, Report, joined_metrics
from stoker.model.run.run import Attempt, AttemptState, Member, Run, RunState

STOP_PATIENCE_S = 45.0  # agents end a script in 10 s; one that has not by now is stopped from outside
LONGEST_NOTICE_S = 86_400.0  # the longest notice that is accepted from a machine
MOST_NOTICES = 20  # accepted per attempt, and one more per hour, since a script can write any number
LONGEST_WORDS = 4000  # the longest message of a node that is kept with an attempt


def advance(run: Run, seen: Sighting, now: datetime) -> Decision:
    """The next facts of one run. May be repeated: without news it changes nothing."""
    if run.state.ended:
        return tend_kept(run, seen, now)
    if run.state in (RunState.QUEUED, RunState.PAUSED):
        return _waiting(run, seen, now)
    if seen.report:
        seen = replace(seen, report=in_time(seen.report, _newest(run), now))
    if seen.report and seen.report.outcome:
        return conclude(run, seen.report, seen.report.outcome, now)
    return _under_way(run, seen, now)


def begin(run: Run, now: datetime, offers: Sequence[Offer] = (), nodes: int | None = None, fewer: str = "") -> Decision:
    """A queued run gets its nodes: called once placement has found room for all of them. `offers` is one for each node;
    none where the provider has but one kind. `fewer` says why `nodes` are not as many as the job prefers."""
    number, nodes = len(run.attempts) + 1, nodes or len(offers) or run.job.most_nodes
    offers = in_one_network(run, offers)
    peers = tuple(
        Member(
            number,
            node_key(run, number, node),
            AttemptState.ASKED,
            now,
            offer=offers[node] if offers else None,
            node=node,
        )
        for node in range(1, nodes)
    )
    key, first = node_key(run, number), offers[0] if offers else None
    attempt = Attempt(number, key, AttemptState.ASKED, now, offer=first, peers=peers, fewer=fewer)
    started = replace(run, state=RunState.STARTING, reason="", cause="", hint="", attempts=(*run.attempts, attempt))
    for member in attempt.members:
        started = meter.asked(started, member.key, member.offer.usd_per_hour, now) if member.offer else started
    text = f"attempt {number} asked for {_what(attempt.members)}"
    begun = Decision(started, (StartNode(started),)).noting(now, "attempt-asked", text)
    few = f"attempt {number} has {nodes} of {run.job.most_nodes} nodes: {fewer}"
    return begun.noting(now, "fewer-nodes", few) if fewer else begun


def _what(parts: Sequence[Member]) -> str:
    """Describes the requested nodes for the timeline."""
    offers = [member.offer for member in parts if member.offer]
    again = sum(bool(offer.again) for offer in offers)
    kinds = Counter(f"{'spot ' if offer.spot else ''}{offer.size} in {offer.place}" for offer in offers)
    if len(parts) == 1:
        what = f"a {next(iter(kinds))}" if kinds else "a node"
        if any(offer.waits for offer in offers):
            return f"an idle node of its cluster, {what}"
        return f"its machine again, {what}" if again else what
    idle = sum(bool(offer.waits) for offer in offers)
    what = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) if kinds else f"{len(parts)} nodes"
    what = f"{what}; {idle} of them are idle nodes of its cluster" if idle else what
    return f"{what}; {again - idle} of them are its machines again" if again > idle else what


def ask_ahead(run: Run, member: Member, offer: Offer, now: datetime) -> Decision:
    """This node is about to be evicted: the one that replaces it is asked for while it still saves."""
    key = spare_key(run, member)
    warned = meter.asked(run.with_member(replace(member, spare=offer)), key, offer.usd_per_hour, now)
    text = f"a {offer.size} in {offer.place} was asked for, to resume on"
    return Decision(warned, (StartSpare(warned),)).noting(now, "asked-ahead", text)


def cancelled_unseen(run: Run, said: Report | None, now: datetime) -> Decision | None:
    """The end of a run that nobody wants any more, although its provider was not asked, as without a login: it waits,
    or its node has said its last words. None where a node may be at work. What it had is tended, and paid for, until it
    is seen gone."""
    if run.wish is not Wish.CANCEL or run.state.ended:
        return None
    if run.state in (RunState.QUEUED, RunState.PAUSED):
        return _waiting(run, Sighting(), now)
    if said and said.outcome and not _newest(run).peers:  # of a gang others may be at work
        return conclude(run, in_time(said, _newest(run), now), said.outcome, now)
    return None


def give_up(run: Run, why: str, now: datetime) -> Decision:
    """The end of a run about which nothing can be decided, for whatever reason. Nothing that its node said is used."""
    stop = tuple(StopNode(run.job.on, member.key) for member in run.attempt.members) if run.attempt else ()
    run = replace(run, kept_until=None)
    if run.state.ended:
        return Decision(run, stop)
    if run.attempt and not run.attempt.state.over:
        run = run.with_newest(
            replace(run.attempt, state=AttemptState.LOST, ended_at=now, message=why, cause=Cause.UNDECIDED)
        )
    if run.wish is Wish.CANCEL:
        return _cancelled(run, now).doing(*stop)
    return _end(run, RunState.FAILED, now, why, 125, Cause.UNDECIDED).doing(*stop)


def _waiting(run: Run, seen: Sighting, now: datetime) -> Decision:
    if run.wish is Wish.CANCEL:
        before = "cancelled before it started" if run.state is RunState.QUEUED else "cancelled while it was paused"
        return _cancelled(run, now, before)
    spare = {sight.key for sight in seen.nodes if may_resume(run, sight)}
    return Decision(run, tuple(StopNode(run.job.on, key) for key in seen.leftovers if key not in spare))


def _under_way(run: Run, seen: Sighting, now: datetime) -> Decision:
    attempt = _newest(run)
    if seen.node and seen.node.unfinished:  # the server that was creating it died: there is nothing to lose
        seen = replace(seen, node=None)
    if seen.report:
        said = seen.report
        run = amounts(run, said)
        run = marked(run, said, now)
        attempt = _newest(run)
    if seen.refused and not attempt.refused:
        return refused(run, attempt, seen.refused, now)
    if fate := gone(attempt, seen):
        return _ended_by(run, fate, now)
    if seen.report and (heard := hear(run, attempt, seen.report, now)):
        return heard
    if fate := missed(run, attempt, seen, now):
        return _ended_by(run, fate, now)
    if seen.node and not seen.report and is_unasked(run, attempt, seen):
        return Decision(run, (StartNode(run),))
    if run.wish is Wish.CANCEL:
        told = Decision(run, (TellAgent(run),))
        late = seen.wished_s > STOP_PATIENCE_S or (seen.node and seen.node.waits)  # no agent is there to be told
        return told.doing(StopNode(run.job.on, attempt.key)) if late else told
    if seen.node is None and attempt.fused:  # it was released before its first report: a second one is not paid for
        return fuse.burnt(run, now)
    if seen.node is None:
        return asking(run, seen, now)
    if seen.node.waits and not seen.report:
        return in_queue(run, (attempt,), seen.node.waits, now)
    if run.state is RunState.STARTING and run.reason:
        run = replace(run, reason="", cause="", hint="")  # what it waited for has been repaired
    after = progress(run, seen.report, now) if seen.report else Decision(run)
    moved = attend(after.run, seen, now)
    actions = (*after.actions, *moved.actions, TellAgent(moved.run))
    return Decision(moved.run, actions, (*after.events, *moved.events))


def asking(run: Run, seen: Sighting, now: datetime) -> Decision:
    """Requests a missing node again, also while its store is unavailable. This does not cost an attempt."""
    waits = f"waits until somebody repairs this: {seen.waits}" if seen.waits else run.reason
    cause, hint = (seen.waits_code, seen.waits_hint) if seen.waits else (run.cause, run.hint)
    after = replace(run, reason=waits, cause=cause, hint=hint)
    if _newest(run).key in seen.unasked and (now - _newest(run).asked_at).total_seconds() > meter.MARK_S:
        after = after.with_newest(replace(_newest(run), asked_at=now))
    asked = Decision(after, (StartNode(after),))
    return asked.noting(now, "waits", f"the run {waits}") if waits != run.reason else asked


def in_queue(run: Run, members: Sequence[Member], why: str, now: datetime) -> Decision:
    """The provider's own queue: the time in it does not count as the node's."""
    reason = f"waits in the queue of {run.job.on}: {why}"
    after = replace(run, reason=reason, cause=Cause.PROVIDER_QUEUE, hint="")
    for member in members:
        if (now - member.asked_at).total_seconds() > meter.MARK_S:
            after = after.with_member(replace(member, asked_at=now))
    return Decision(after).noting(now, "waits", f"the run {reason}") if reason != run.reason else Decision(after)


def in_time(report: Report, attempt: Member, now: datetime) -> Report:
    """The node's clock may be wrong, so its times are limited to those between the start of the attempt and now."""

    def within(at: datetime | None, since: datetime) -> datetime | None:
        return at and min(max(at, since), now)

    started_at = within(report.started_at, attempt.asked_at)
    return replace(report, started_at=started_at, ended_at=within(report.ended_at, started_at or attempt.asked_at))


def marked(run: Run, report: Report, now: datetime, *, final: bool = False) -> Run:
    """With what the report says of its progress: which attempts have saved, and, where that matters, how far it is."""
    saves = saves_in(report)
    if any(one.number in saves and not one.saved for one in run.attempts):
        marked = (replace(one, saved=True) if one.number in saves else one for one in run.attempts)
        run = replace(run, attempts=tuple(marked))
    if not run.job.deadline:
        return run
    first = not any(one.last for one in run.attempts[:-1])
    after = noted(_newest(run), report, now, first=first, final=final)
    return run if after is _newest(run) else run.with_newest(after)


_AMOUNTS = (
    "output_files",
    "output_bytes",
    "checkpoint_files",
    "checkpoint_bytes",
    "stray",
    "stray_files",
    "stray_bytes",
)


def amounts(run: Run, report: Report) -> Run:
    """What there is to bring back, as the report has it. Names are a node's word, and bounded here."""
    said = {name: getattr(report, name) for name in _AMOUNTS}
    said["stray"] = tuple(cut(name) for name in report.stray[:8])
    return run if all(getattr(run, name) == value for name, value in said.items()) else replace(run, **said)


def progress(run: Run, report: Report, now: datetime) -> Decision:
    attempt = _newest(run)
    if attempt.started_at or not report.started_at:
        return Decision(run)
    run = replace(run.with_software(report), started_at=run.started_at or report.started_at)
    running = replace(attempt, state=AttemptState.RUNNING, started_at=report.started_at)
    after = replace(run, state=RunState.RUNNING).with_newest(running)
    return Decision(after).noting(now, "running", f"attempt {attempt.number} is running")


def conclude(run: Run, report: Report, outcome: Outcome, now: datetime) -> Decision:
    run = marked(run, report, now, final=True)
    ended = replace(
        _newest(run),
        state=AttemptState.ENDED,
        started_at=report.started_at,
        ended_at=report.ended_at or now,
        outcome=outcome,
        exit_code=report.exit_code,
        message=cut(report.message),
        cause=report.cause,
        hint=cut(report.hint),
        stays=report.stays,
    )
    report = replace(report, message=ended.message, hint=ended.hint)
    run = amounts(run.with_newest(ended), report)
    run = replace(
        run,
        started_at=run.started_at or report.started_at,
        metrics=joined_metrics(run.metrics, report.metrics),
        data_figures=report.data,
    )
    run = run.with_software(report)
    match outcome:
        case Outcome.SUCCEEDED | Outcome.TARGET_REACHED:
            if missing := unmeasured(run):
                return _end(run, RunState.FAILED, now, missing, 125, Cause.METRIC_MISSING)
            if outcome is Outcome.TARGET_REACHED and (waits := searching.paused(run, now)):
                return waits
            return _end(searching.scored(run), RunState.SUCCEEDED, now, report.message, 0, report.cause)
        case Outcome.CANCELLED if run.wish is Wish.CANCEL:
            return _cancelled(run, now, report.message or "cancelled")
        case Outcome.BUDGET_REACHED:
            return _burnt(run, now)
        case Outcome.EVICTED:
            return evicted(run, now)
        case Outcome.NOT_READY:
            unfit = run.with_newest(replace(ended, trouble=NOT_READY))
            return _again_or_end(unfit, report.message or "its machine did not get ready", now)
        case Outcome.CANCELLED:  # not by a user: the machine was shut down under the agent
            return _again_or_end(run, report.message or "its node was shut down", now)
        case Outcome.FAILED if _failures(run) <= run.job.retries and run.wish is Wish.GO_ON:
            retry = f"retry {_failures(run)} of {run.job.retries}"
            text = f"attempt {ended.number} failed ({report.message}); trying again, {retry}"
            return _queued(run, "waits to try again", Cause.RETRY).noting(now, "retry", text)
        case _:
            failed = keep(replace(run, hint=report.hint), now)
            code = report.exit_code or 125
            return note_kept(_end(failed, RunState.FAILED, now, report.message, code, report.cause), now)


def evicted(run: Run, now: datetime, words: str = "") -> Decision:
    """Evictions count neither as losses nor as failures. A move is not an eviction."""
    attempt = _newest(run)
    state = AttemptState.MOVED if attempt.moving or attempt.leaves else AttemptState.EVICTED
    message = words or attempt.message
    run = run.with_newest(replace(attempt, state=state, ended_at=attempt.ended_at or now, message=message))
    if run.wish is Wish.CANCEL:
        return _cancelled(run, now)
    if why := haste(run):
        return _end(run, RunState.FAILED, now, why, 125, Cause.ENDED_AT_ONCE)
    if why := used_up(run):
        hint = "give the cluster a longer `time`, or save checkpoints more often"
        return _end(replace(run, hint=hint), RunState.FAILED, now, why, 125, Cause.NO_PROGRESS)
    if attempt.yielded:
        reason = f"paused to make room for {attempt.yielded}, which has a higher priority"
        waits = _queued(run, reason, Cause.YIELDED)
        return waits.noting(now, "paused-for", f"attempt {attempt.number} has saved and ended: {reason}")
    if attempt.paused:
        waits = _queued(run, "", "")  # its queue says what it waits for
        text = f"attempt {attempt.number} has ended: cluster `{attempt.paused}` is paused"
        return waits.noting(now, "cluster-paused", text)
    if attempt.moving:
        moves = _queued(run, "moves to another node", Cause.MOVED)
        return moves.noting(now, "moved", f"attempt {attempt.number} has saved and ended, to go on elsewhere")
    again = _queued(run, "was evicted; waits for a new node", Cause.EVICTED)
    notice = f"with {attempt.notice.seconds:.3g} s notice" if attempt.notice else "without notice"
    why = f": {words}" if words else ""
    return again.noting(now, "evicted", f"attempt {attempt.number} was evicted {notice}{why}; starting another")


def _burnt(run: Run, now: datetime) -> Decision:
    """The node stopped because of its own fuse."""
    if run.wish is Wish.CANCEL:
        return _cancelled(run, now)
    return fuse.burnt(run, now)


def hear(run: Run, attempt: Member, report: Report, now: datetime) -> Decision | None:
    """The notice that the cloud gave the machine. Its times are by its own clock; ours are counted from now."""
    if attempt.notice and attempt.notice.drill:
        return None
    if report.notice and not attempt.notice:
        if attempt.notices >= MOST_NOTICES + (now - attempt.asked_at).total_seconds() / 3600:
            return None  # it was told of the last one that was believed
        left_s = min(max((report.notice.deadline - report.at).total_seconds(), 0.0), LONGEST_NOTICE_S)
        returns = report.notice.returns
        notice = Notice(now, now + timedelta(seconds=left_s), drill=False, returns=returns)
        what = "a restart of its machine" if returns else "its eviction"
        text = f"attempt {attempt.number} was given {left_s:.0f} s notice of {what}"
        heard = replace(attempt, notice=notice, notices=attempt.notices + 1)
        return Decision(run.with_member(heard)).noting(now, "notice", text)
    if attempt.notice and not report.notice:
        kept = run.with_member(replace(attempt, notice=None, spare=None))
        text = f"the notice of attempt {attempt.number} was withdrawn"
        return Decision(kept).noting(now, "notice-withdrawn", text)
    return None


def refused(run: Run, attempt: Member, why: str, now: datetime) -> Decision:
    """Reported once per attempt, since a script that forges reports does so with every heartbeat."""
    text = f"a report of attempt {attempt.number} was not used: {why}"
    return Decision(run.with_member(replace(attempt, refused=why))).noting(now, "report-refused", text)


def _ended_by(run: Run, fate: Fate, now: datetime) -> Decision:
    stop = (StopNode(run.job.on, _newest(run).key),) if fate.stop else ()
    if fate.evicted:
        return evicted(run, now, fate.words).doing(*stop)
    run = replace(run, hint=fate.hint or run.hint)
    return lost(run, fate.why, now, fate.cause, fate.trouble).doing(*stop)


def lost(run: Run, why: str, now: datetime, cause: str, trouble: str = "") -> Decision:
    cause = trouble or cause
    lost = replace(_newest(run), state=AttemptState.LOST, ended_at=now, message=why, cause=cause, trouble=trouble)
    return _again_or_end(run.with_newest(lost), why, now)


def _again_or_end(run: Run, why: str, now: datetime) -> Decision:
    """After an attempt that ended for another reason than the script."""
    if run.wish is Wish.CANCEL:
        return _cancelled(run, now)
    if _newest(run).fused:
        return fuse.burnt(run, now)
    number = _newest(run).number
    if final := verdict(run, why):
        return _end(run, RunState.FAILED, now, final.words, 125, final.cause)
    if _newest(run).trouble in WAITED_FOR:
        waits = _queued(run, f"waits until somebody repairs this: {why}", _newest(run).trouble)
        return waits.noting(now, "waits", f"attempt {number}: {why}; the run waits until somebody repairs this")
    again = _queued(run, "waits for a new node", _newest(run).trouble or Cause.LOST)
    return again.noting(now, "lost", f"attempt {number} was lost: {why}; starting another")


def _queued(run: Run, reason: str, cause: str) -> Decision:
    return Decision(replace(run, state=RunState.QUEUED, reason=reason, cause=cause))


def _cancelled(run: Run, now: datetime, reason: str = "cancelled") -> Decision:
    return _end(run, RunState.CANCELLED, now, reason, 130, Cause.CANCELLED)


def _end(run: Run, state: RunState, now: datetime, reason: str, exit_code: int, cause: str) -> Decision:
    ended = replace(run, state=state, reason=reason, cause=cause, ended_at=now, exit_code=exit_code)
    text = f"{state}: {reason}" if reason else str(state)
    return Decision(ended, (Land(ended),) if ended.landing else ()).noting(now, str(state), text)


def _newest(run: Run) -> Attempt:
    return run.attempts[-1]


def _failures(run: Run) -> int:
    return sum(attempt.outcome is Outcome.FAILED for attempt in run.attempts)


def cut(words: str) -> str:
    return words if len(words) <= LONGEST_WORDS else f"{words[:LONGEST_WORDS]}…"
