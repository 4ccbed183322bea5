"""Whether a run hangs, and which rank the others wait for, from what its nodes say of the stacks of their ranks.

A run hangs when every node that still works says so: while one of them makes progress, the others may well wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from stoker.engine.decision import Decision, Sighting, TellAgent
from stoker.model.job.sections import HangAction
from stoker.model.orders import Wish
from stoker.model.run.report import GOOD, Phase, RankEnd, Report
from stoker.model.run.run import Run, RunState
from stoker.model.run.stacks import BACKWARD, Hang, RankStacks, Standstill, named_ranks, own, reading, waits_in

MOST_HANGS = 20  # reported for one attempt, since a script can write any number of reports
MOST_RANKS_KEPT = 64  # whose stacks are kept with the run: those that are behind first
MOST_FRAMES_KEPT = 2000  # of all of them
_LONGEST = 2000  # of the words


def noted(decision: Decision, seen: Sighting, now: datetime) -> Decision:
    """With the beginning and the end of a hang, as facts of the attempt and on the timeline."""
    run, attempt = decision.run, decision.run.attempt
    if attempt is None or attempt.state.over or run.state is not RunState.RUNNING or run.wish is not Wish.GO_ON:
        return decision
    nodes = [one.report for one in (seen, *seen.peers)]
    at_work = [one for one in nodes if one is None or _works(one)]
    stands = [one.standstill for one in at_work if one and one.standstill]
    before = attempt.hang
    if before and before.over_at is None:
        moves = any(one and one.standstill is None for one in at_work)
        return _over(decision, before, now) if moves else decision
    if not stands or len(stands) < len(at_work) or (before and before.times >= MOST_HANGS):
        return decision
    left = [end for one in nodes if one and one.outcome in GOOD for end in one.ranks]
    hang = diagnosed(stands, now, before.times + 1 if before else 1, left)
    hung = run.with_newest(replace(attempt, hang=hang))
    told = replace(decision, run=hung).noting(now, "hang", hang.text)
    return told.doing(TellAgent(hung)) if restarts(hung) else told


def restarts(run: Run) -> str:
    """Why the script has to be restarted now; empty: it does not."""
    hang = run.attempt.hang if run.attempt else None
    if not hang or hang.over_at or not run.job.hang or run.job.hang.action is not HangAction.RESTART:
        return ""
    return f"it hung: {hang.text}"


def diagnosed(stands: Sequence[Standstill], now: datetime, times: int = 1, left: Sequence[RankEnd] = ()) -> Hang:
    """`left` are ranks of nodes that have ended well: the others may wait for them."""
    known = [*(one for stand in stands for one in stand.ranks), *(one.stacks for one in left)]
    ranks = sorted(known, key=lambda one: one.rank)
    quiet_s = min(stand.quiet_s for stand in stands)
    late, words = behind(ranks)
    text = f"no progress for {_spelled(quiet_s)}: {words}"
    return Hang(now, quiet_s, text[:_LONGEST], _kept(ranks, late), times=times)


def behind(ranks: Sequence[RankStacks]) -> tuple[list[int], str]:
    """The ranks that the others wait for, and who is where, in words."""
    waiting: dict[str, list[int]] = {}
    places = {one.rank: _place(one) for one in ranks}
    for one in ranks:
        waiting.setdefault(waits_in(one.frames), []).append(one.rank)
    elsewhere = waiting.pop("", [])
    if not waiting:
        return [], "; ".join(_together(places, alone=len(ranks) == 1)) or "no rank said where it is"
    waits = ", ".join(f"{named_ranks(some)} in {_operation(name)}" for name, some in waiting.items())
    if elsewhere:
        verb = "is behind" if len(elsewhere) == 1 else "are behind"
        there = "; ".join(_together({rank: places[rank] for rank in elsewhere}, alone=len(elsewhere) == 1))
        return elsewhere, f"{named_ranks(elsewhere)} {verb}: {there}; {_wait(waiting, waits)}"
    if len(waiting) > 1:
        fewest = min(waiting.values(), key=len)
        late = fewest if sum(len(some) == len(fewest) for some in waiting.values()) == 1 else []
        return late, f"the ranks wait in different operations: {waits}"
    name = next(iter(waiting))
    lines = _by_place(places)
    if len(ranks) == 1 or len(lines) == 1:
        verb = "waits" if len(ranks) == 1 else "wait"
        return [], f"{named_ranks(list(places))} {verb} in {_operation(name)}, {next(iter(lines))}" + (
            "" if len(ranks) == 1 else ": no rank is behind, so look at the network between them"
        )
    fewest = min(lines.values(), key=len)
    late = fewest if len(fewest) * 2 < len(ranks) else []
    return late, f"all ranks wait in {_operation(name)}, but at different lines: {'; '.join(_together(places))}"


def _works(report: Report) -> bool:
    return report.outcome is None and report.phase not in (Phase.SAVING, Phase.DONE)


def _over(decision: Decision, hang: Hang, now: datetime) -> Decision:
    attempt = decision.run.attempts[-1]
    after = decision.run.with_newest(replace(attempt, hang=replace(hang, over_at=now)))
    lasted = _spelled(hang.quiet_s + max((now - hang.at).total_seconds(), 0.0))
    return replace(decision, run=after).noting(now, "hang-over", f"it makes progress again, after {lasted}")


def _place(one: RankStacks) -> str:
    frame = own(one.frames)
    if frame is None:
        return one.note or "no stack was taken"
    inner = one.frames[0]
    inside = f", inside {inner.function} of {inner.file}" if inner is not frame else ""
    if worker := next((found for stack in one.stacks[1:] if (found := reading(stack.frames))), None):
        inside = f", whose worker is at {worker.place}"
    return f"at {frame.place}{inside}"


def _by_place(places: dict[int, str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for rank, place in places.items():
        found.setdefault(place, []).append(rank)
    return found


def _together(places: dict[int, str], *, alone: bool = False) -> list[str]:
    """Ranks at the same place are one sentence."""
    if alone:
        return [f"it is {place}" if place.startswith("at ") else place for place in places.values()]
    return [
        f"{named_ranks(some)} {'is' if len(some) == 1 else 'are'} {place}" if place.startswith("at ") else
        f"{named_ranks(some)}: {place}"
        for place, some in _by_place(places).items()
    ]  # fmt: skip


def _wait(waiting: dict[str, list[int]], waits: str) -> str:
    first, *more = waiting.items()
    some = first[1]
    if more:
        return f"the others wait: {waits}"
    return f"{named_ranks(some)} {'waits' if len(some) == 1 else 'wait'} in {_operation(first[0])}"


def _operation(name: str) -> str:
    return "the backward pass, for the gradients of the others" if name == BACKWARD else name


def _kept(ranks: Sequence[RankStacks], late: Sequence[int]) -> tuple[RankStacks, ...]:
    ordered = sorted(ranks, key=lambda one: one.rank not in late)[:MOST_RANKS_KEPT]
    room, kept = MOST_FRAMES_KEPT, []
    for one in ordered:
        stacks = []
        for stack in one.stacks:
            if len(stack.frames) <= room:
                room -= len(stack.frames)
                stacks.append(stack)
        kept.append(replace(one, stacks=tuple(stacks)))
    return tuple(kept)


def _spelled(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
