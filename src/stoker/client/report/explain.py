"""The stacks of the ranks of a hung run as lines of text. Pure. What happened to a run and why, in sentences, from its
facts, its receipt and its timeline. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from stoker.client.report.spelling import count, duration, share, step, usd
from stoker.model.job.sections import HangAction
from stoker.model.run.receipt import Part, Receipt, Stay, Taken
from stoker.model.run.report import Outcome, Phase
from stoker.model.run.run import Attempt, AttemptState, Event, Run, RunState
from stoker.model.run.stacks import RankStacks, StackFrame, ThreadStack, waits_in


def stack_lines(ranks: Sequence[RankStacks]) -> Iterator[str]:
    """Each rank with the stack of the thread that trains, innermost frame first, then its other threads and workers."""
    shown: dict[tuple[StackFrame, ...], int] = {}
    for one in ranks:
        if one.frames and one.frames in shown:
            yield f"  rank {one.rank}: the same stack as rank {shown[one.frames]}"
            continue
        shown[one.frames] = one.rank
        if not one.stacks:
            yield f"  rank {one.rank}: {one.note or 'no stack was kept'}"
        for place, stack in enumerate(one.stacks):
            waits = waits_in(stack.frames) if place == 0 else ""
            where = f", waits in {waits}" if waits else ""
            yield f"  rank {one.rank}, {stack.name}{where}:"
            yield from _frames(stack)


def _frames(stack: ThreadStack) -> Iterator[str]:
    for frame in stack.frames:
        code = f"    {frame.code}" if frame.code else ""
        yield f"    {frame.file}:{frame.line} in {frame.function}{code}"


Clock = Callable[[datetime], str]  # formats a time

# Events worth reporting besides the facts.
_TOLD = frozenset(
    {
        "budget",
        "budget-warning",
        "cancel-asked",
        "checkpoint-caught-up",
        "checkpoint-failed",
        "checkpoint-left-out",
        "data-repaired",
        "data-waits",
        "deadline",
        "fewer-nodes",
        "fuse-blown",
        "gpus",
        "grows-later",
        "hang-over",
        "held",
        "kept",
        "landing-failed",
        "left-behind",
        "machine-restored",
        "moving",
        "not-ready",
        "notice-withdrawn",
        "output-unreadable",
        "outputs-lost",
        "paused",
        "price",
        "quarantined",
        "released",
        "report-refused",
        "restore-failed",
        "restore-waits",
        "retry",
        "rung",
        "target-reached",
    }
)
_EACH = ("price", "rung", "checkpoint-left-out", "machine-restored")  # each event is different
_SAME_S = 10.0  # events of server and agent within this time are the same event


@dataclass(frozen=True, slots=True)
class _Line:
    at: datetime
    text: str


def explain(run: Run, receipt: Receipt, events: Sequence[Event], clock: Clock) -> list[str]:
    """One sentence for each thing that happened, oldest first; the last ones give its state, and what to do."""
    lines = [_Line(run.submitted_at, _submitted(run, clock))]
    lines += _attempts(run, receipt, clock)
    lines += _hangs(run, clock)
    lines += [_Line(one.at, f"{clock(one.at)} {one.text}") for one in _worth_telling(events)]
    lines.sort(key=lambda line: line.at)
    return [line.text for line in lines] + list(_standing(run, receipt, clock))


def _worth_telling(events: Sequence[Event]) -> Iterator[Event]:
    told: dict[str, datetime] = {}
    for one in sorted(events, key=lambda event: event.at):
        if one.kind not in _TOLD:
            continue
        before = told.get(one.kind)
        told[one.kind] = one.at
        if before is None or one.kind in _EACH or (one.at - before).total_seconds() >= _SAME_S:
            yield one


def _submitted(run: Run, clock: Clock) -> str:
    by = f" by {run.person}" if run.person else ""
    again = f", as a rerun of {run.rerun_of}" if run.rerun_of else ""
    if run.start:
        again += f", {'to resume' if run.resumes else 'from the last checkpoint of'} {run.start.name}"
    return f"{clock(run.submitted_at)} {run.name} was submitted{by} to run on {run.place}{again}"


def _attempts(run: Run, receipt: Receipt, clock: Clock) -> Iterator[_Line]:
    stays = {stay.attempt: stay for stay in receipt.stays}
    taken = {one.attempt: one for one in receipt.taken if not one.alone}  # of the others, the node itself tells
    refused: list[Attempt] = []
    before: Attempt | None = None
    for attempt in run.attempts:
        unready = attempt.outcome is Outcome.NOT_READY  # it was had, and paid for
        if attempt.trouble and not unready:
            refused.append(attempt)
            continue
        yield from _refusals(refused, clock)
        refused = []
        again = taken[before.number].again if before and before.number in taken else ""
        yield from _began(attempt, before, stays.get(attempt.number), run.job.on, clock, again)
        yield from _ended(attempt, taken.get(attempt.number), clock)
        before = before if unready else attempt
    yield from _refusals(refused, clock)


def _hangs(run: Run, clock: Clock) -> Iterator[_Line]:
    """The stacks are of use as long as it hangs, or where it was the last thing that the attempt did."""
    for attempt in run.attempts:
        if hang := attempt.hang:
            yield _Line(hang.at, f"{clock(hang.at)} {hang.text}")
            if hang.over_at is None:
                yield from (_Line(hang.at, line) for line in stack_lines(hang.ranks))


def _refusals(refused: Sequence[Attempt], clock: Clock) -> Iterator[_Line]:
    """Several in a row are one sentence."""
    if not refused:
        return
    last = refused[-1]
    tries = "" if len(refused) == 1 else f" ({len(refused)} tries since {clock(refused[0].asked_at)})"
    at = last.ended_at or last.asked_at
    yield _Line(at, f"{clock(at)} {_node(last, 'a node')} was not available{tries}: {last.message or last.trouble}")


def _began(
    attempt: Attempt, before: Attempt | None, stay: Stay | None, on: str, clock: Clock, again: str
) -> Iterator[_Line]:
    began = attempt.started_at
    if began is None:
        yield _Line(
            attempt.asked_at,
            f"{clock(attempt.asked_at)} {_node(attempt, f'a node of {on}')} was requested",
        )
        return
    if before is None or before.ended_at is None:
        waited = f"{duration((began - attempt.asked_at).total_seconds())} after the request"
        yield _Line(
            began, f"{clock(began)} the script started on {_node(attempt, on)}, {waited}{_spent_on(attempt, stay)}"
        )
        return
    gap = duration((began - before.ended_at).total_seconds())
    where = f" in {attempt.offer.place}" if attempt.offer and attempt.offer.place else ""
    unused = attempt.effort.began_from if again and attempt.effort else None
    how = f"it resumed from {_base(attempt)}" if not again else f"the script started over at {again}"
    why = f"; {_base(attempt)} was restored, but the script did not use it" if unused else ""
    yield _Line(began, f"{clock(began)} {how}, on a new node{where} {gap} later{why}")


def _node(attempt: Attempt, otherwise: str) -> str:
    """The kind of machine, if its provider has several."""
    offer = attempt.offer
    if offer is None or not offer.usd_per_hour:
        return otherwise
    return f"a {'spot ' if offer.spot else ''}{offer.size} in {offer.place}"


def _spent_on(attempt: Attempt, stay: Stay | None) -> str:
    """What the wait consisted of, if that is significant."""
    phases = attempt.effort.phases if attempt.effort else {}
    machine = float(stay.parts[Part.PROVISIONING].seconds) if stay else 0.0
    setting_up = phases.get(Phase.UNPACKING, 0.0) + phases.get(Phase.PREPARING, 0.0)
    waits = (("the machine", machine), ("set-up", setting_up), ("data", phases.get(Phase.STAGING, 0.0)))
    worth = [f"{duration(seconds)} for {name}" for name, seconds in waits if seconds >= 1]
    return f" ({', '.join(worth)})" if worth else ""


def _base(attempt: Attempt) -> str:
    kept = attempt.effort.began_from if attempt.effort else None
    if kept is None:
        return "the beginning" if attempt.effort else "its last checkpoint"
    return f"step {step(kept.step)}" if kept.step is not None else f"checkpoint {kept.number} of attempt {kept.attempt}"


def _ended(attempt: Attempt, taken: Taken | None, clock: Clock) -> Iterator[_Line]:
    at = attempt.ended_at
    if at is None:
        return
    if taken:
        yield _Line(at, f"{clock(at)} {_how_taken(attempt, taken)}{_lost(taken)}")
    elif attempt.outcome is Outcome.FAILED:
        code = f" (exit code {attempt.exit_code})" if attempt.exit_code is not None else ""
        why = f": {attempt.message}" if attempt.message else ""
        yield _Line(at, f"{clock(at)} the script failed{code}{why}")
    elif attempt.outcome is Outcome.NOT_READY:
        yield _Line(at, f"{clock(at)} its node was released: {attempt.message}")
    elif attempt.outcome is Outcome.BROKEN:
        yield _Line(at, f"{clock(at)} the run could not be executed: {attempt.message}")


def _how_taken(attempt: Attempt, taken: Taken) -> str:
    if attempt.paused:
        return f"its cluster `{attempt.paused}` was paused"
    if attempt.yielded:
        return f"it was paused to make room for {attempt.yielded}, which has a higher priority"
    if taken.how == AttemptState.MOVED and attempt.fewer:
        return f"it saved and ended, to resume with more nodes: {attempt.moving}"
    if taken.how == AttemptState.MOVED:
        return "Stoker moved it to another node" + (f": {attempt.moving}" if attempt.moving else "")
    if taken.how == AttemptState.LOST:
        return f"its node was lost: {attempt.message}" if attempt.message else "its node was lost"
    warned = "without notice" if taken.notice_s is None else f"with {duration(taken.notice_s)} notice"
    drill = ", which was a drill" if attempt.notice and attempt.notice.drill else ""
    said = f": {attempt.message}" if attempt.message and attempt.outcome is None else ""
    return f"it was evicted {warned}{drill}{said}"


def _lost(taken: Taken) -> str:
    """`; step 4,100 was already saved; 38 s of work repeated; $0.04`"""
    parts = []
    if taken.again:
        parts.append(f"the script started over at {taken.again}")
    elif taken.safe_step is not None and taken.steps_lost == 0:
        parts.append(f"step {step(taken.safe_step)} was already saved")
    elif taken.safe_step is not None and taken.step is not None:
        parts.append(f"step {step(taken.safe_step)} of {step(taken.step)} was saved")
    if taken.redone.seconds >= 1 or taken.steps_lost:
        steps = f" ({count(int(taken.steps_lost), 'step')})" if taken.steps_lost else ""
        parts.append(f"{duration(float(taken.redone.seconds))} of work repeated{steps}")
        parts += [usd(taken.redone.usd)] if taken.redone.usd else []
    elif not parts:
        parts.append("no work was lost")
    return "".join(f"; {part}" for part in parts)


def _standing(run: Run, receipt: Receipt, clock: Clock) -> Iterator[str]:
    at = f"{clock(run.ended_at)} " if run.ended_at else ""
    reason = f": {run.reason}" if run.reason else ""
    match run.state:
        case RunState.SUCCEEDED:
            yield f"{at}it succeeded{reason}"
        case RunState.FAILED:
            yield f"{at}it failed{reason}"
        case RunState.CANCELLED:
            yield f"{at}it was cancelled"
        case RunState.QUEUED:
            yield f"it is waiting{reason}" if reason else "it is waiting for a node"
        case RunState.STARTING:
            yield f"its node is starting{reason}"
        case RunState.RUNNING:
            yield "it is running, and makes no progress" if _hanging(run) else f"it is running{reason}"
        case _:
            yield f"it is {run.state}{reason}"
    if bill := _bill(receipt):
        yield bill
    if run.land_problem:
        yield f"its outputs could not be downloaded: {run.land_problem}; retry with `stoker fetch {run.name}`"
    if todo := run.hint or _todo(run):
        yield f"next: {todo}"


def _hanging(run: Run) -> bool:
    hang = run.attempt.hang if run.attempt else None
    restarts = run.job.hang and run.job.hang.action is HangAction.RESTART
    return run.state is RunState.RUNNING and hang is not None and hang.over_at is None and not restarts


def _bill(receipt: Receipt) -> str:
    if receipt.free:
        return ""
    so_far = "it cost" if receipt.final else "it has cost"
    useful, redone = receipt.parts[Part.USEFUL].usd, receipt.parts[Part.REDONE].usd
    parts = [f"{share(useful, receipt.usd)} of it for useful work"]
    parts += [f"{usd(redone)} for repeated work"] if redone else []
    return f"{so_far} {usd(receipt.usd)}, {', '.join(parts)}"


def _todo(run: Run) -> str:
    if _hanging(run):
        return f"find the cause in the stacks above; Stoker does not end the run: `stoker cancel {run.name}` does"
    if run.state is RunState.FAILED:
        logs = f"stoker logs {run.name}"
        logs = run.hint if run.hint.startswith(logs) else logs  # of the rank that failed first
        return f"read its output with `{logs}`, then run `stoker rerun {run.name}`"
    return ""
