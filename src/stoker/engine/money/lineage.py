"""Which work of a run counts: from its newest attempt back, each went on from a checkpoint; what lay behind it is lost.

The times of one attempt are all of its own node's clock, and are compared with each other only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stoker.engine.money.repeating import Repeating
from stoker.model.run.report import Effort, Kept, Phase
from stoker.model.run.run import Attempt, Run

ALL = float("inf")  # seconds of work: however many there were


@dataclass(frozen=True, slots=True)
class Loss:
    """What of an attempt's work was lost, in seconds of running, and where the run went on."""

    seconds: float = 0.0
    went_on_from: Kept | None = None  # None: from nothing, unless nothing was lost
    again: str = ""  # where the script itself began again, below what it had reached


def losses(run: Run) -> Mapping[int, Loss]:
    """By number, of every attempt that has done something. `ALL` where nothing of it was kept.

    A script that begins again in spite of its checkpoint loses what it shows that it repeats.
    """
    found = dict(_by_checkpoints(run))
    repeating = Repeating()
    for attempt in reversed([one for one in run.attempts if one.number in found]):
        loss = found[attempt.number]
        repeated = repeating.repeated(_effort(attempt))
        behind_s = repeated.seconds + unheard_s(attempt)
        if repeated.seconds and behind_s > loss.seconds:
            loss = found[attempt.number] = replace(loss, seconds=behind_s, again=repeated.again)
        if loss.seconds < _effort(attempt).running_s:
            repeating.counts(_effort(attempt))
        if undone_s := _effort(attempt).undone_s:  # on machines that its provider evicted and restored
            found[attempt.number] = replace(found[attempt.number], seconds=found[attempt.number].seconds + undone_s)
    return found


def _by_checkpoints(run: Run) -> Mapping[int, Loss]:
    workers = [one for one in run.attempts if one.effort is not None]
    if not workers:
        return {}
    newest = workers[-1]
    effort = _effort(newest)
    # A run that waits will go on from the newest checkpoint there is; one that is under way, or over, loses nothing.
    waits = newest.state.over and not run.state.ended
    base = (effort.kept or effort.began_from) if waits else effort.began_from
    found: dict[int, Loss] = {} if waits else {newest.number: Loss()}
    for attempt in reversed(workers if waits else workers[:-1]):
        if base is not None and base.attempt > attempt.number:  # of an attempt that nothing is known of
            found[attempt.number] = Loss(0.0, base)
        elif base is None or base.attempt < attempt.number:
            found[attempt.number] = Loss(ALL, base)
        else:
            found[attempt.number] = Loss(_behind(attempt, base), base)
            base = _effort(attempt).began_from
    return found


def steps_lost(attempt: Attempt, loss: Loss) -> float | None:
    """None where the script reports no steps."""
    reached = attempt.effort.step if attempt.effort else None
    if reached is None or loss.again:
        return None
    if loss.went_on_from is None:
        return reached if loss.seconds else 0.0
    kept = loss.went_on_from.step
    return None if kept is None else max(reached - kept, 0.0)


def unheard_s(attempt: Attempt) -> float:
    """How long a node that went without a last word worked on behind the one before: until it was missed."""
    effort = attempt.effort
    if effort is None or effort.at_rest or attempt.outcome is not None or attempt.ended_at is None:
        return 0.0
    return max((attempt.ended_at - effort.at).total_seconds(), 0.0)


def _behind(attempt: Attempt, base: Kept) -> float:
    """Seconds of work behind a checkpoint of the same attempt."""
    effort = _effort(attempt)
    if effort.kept and effort.kept.number == base.number:
        return effort.unsaved_s + unheard_s(attempt)
    saved_s = effort.phases.get(Phase.SAVING, 0.0)
    return max((effort.at - base.at).total_seconds() - saved_s + unheard_s(attempt), 0.0)


def _effort(attempt: Attempt) -> Effort:
    assert attempt.effort is not None
    return attempt.effort
