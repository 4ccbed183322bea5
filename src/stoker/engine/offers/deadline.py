"""Whether a run still meets its deadline, and what that means for the machine it takes next.

Time that is not work, such as waiting and moving, comes out of the slack: the time until the deadline minus the work
that is left. Slack never grows. A run waits for spot while it has slack to spare, uses on-demand when it has not, and
keeps some of it for future evictions. After "Can't Be Late" (Wu et al., NSDI 2024), where slack shrinks in proportion
to the work; here part of it may be spent sooner, since spot found late in a run is as good.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum, auto

from stoker.engine.decision import SUPPOSED_EVICTIONS, rate_per_hour
from stoker.model.run.report import Mark, Report
from stoker.model.run.run import Attempt, Run

SUPPOSED_START_S = 300.0  # from the request for a machine to the script's first step
SUPPOSED_LOSS_S = 300.0  # of work lost by an eviction
LEAST_CHANGE_S = 60.0
CAUTION = 1.25  # factor for how much longer than usual the next move may take
MARK_EVERY_S = 30.0  # a mark changes the facts: not at every heartbeat
HELD_BACK = (
    0.4  # share of the slack that would be left if it shrank in proportion to the work; measured by the policy bench
)
SLOWEST = 1e-12  # share of the work per second; a slower metric does not measure progress
SUPPOSED_SHARE = 0.5  # of the deadline is assumed to be work, by default


class Urgency(Enum):
    RELAXED = auto()  # only spot: there is time to wait for it
    STEADY = auto()  # spot if it is available soon, on-demand otherwise
    URGENT = auto()  # on-demand: an eviction would miss the deadline


@dataclass(frozen=True, slots=True)
class Outlook:
    left_s: float  # until the deadline
    work_s: float  # work left, at the speed so far
    change_s: float  # the cost of resuming elsewhere after an eviction: the start, and repeated work
    evictions: float  # to be expected while the work lasts
    whole_slack_s: float  # the initial slack
    share: float  # of the work that is left
    waited_s: float  # since it last had a machine
    measured: bool  # the script has reported its progress

    @property
    def slack_s(self) -> float:
        return self.left_s - self.work_s

    @property
    def urgency(self) -> Urgency:
        """For a run that waits for a machine: it has to start once in any case, and again if it is evicted. If its
        runtime is unknown it does not wait: it has to run for that to be known."""
        spare_s = self.slack_s - 2 * self.change_s
        if spare_s < 0:
            return Urgency.URGENT
        return Urgency.RELAXED if self.measured and spare_s > self.held_back_s else Urgency.STEADY

    @property
    def held_back_s(self) -> float:
        """What waiting does not use: for future evictions, and for waits for spot later."""
        return max(self.evictions * self.change_s, HELD_BACK * self.whole_slack_s * self.share)

    @property
    def waits(self) -> bool:
        """For spot, if there is none now. Waiting as long as an on-demand machine takes to start costs no time."""
        soon = self.urgency is Urgency.STEADY and self.waited_s < self.change_s
        return soon or self.urgency is Urgency.RELAXED

    @property
    def may_let_go(self) -> bool:
        """For a run on-demand: it could wait for spot for long."""
        lasting_s = self.held_back_s + 6 * self.change_s
        return self.urgency is Urgency.RELAXED and self.slack_s > lasting_s and self.may_leave

    @property
    def endangered(self) -> bool:
        """For a run on spot: an eviction now would miss the deadline, and a prepared move would not."""
        return self.slack_s < self.change_s

    @property
    def may_leave(self) -> bool:
        """For a run on-demand: it can afford to move to spot, be evicted there and come back, and enough work is left
        for it to pay."""
        return self.slack_s >= 3 * self.change_s and self.work_s >= 4 * self.change_s


def deadline_at(run: Run) -> datetime | None:
    return run.submitted_at + timedelta(seconds=run.job.deadline) if run.job.deadline else None


def outlook(run: Run, now: datetime) -> Outlook | None:
    """None for a run without a deadline."""
    until = deadline_at(run)
    if until is None or run.job.deadline is None:
        return None
    left_s = (until - now).total_seconds()
    change_s = _change_s(run)
    speed = _speed(run)
    whole_s = 1.0 / speed if speed else run.job.time_limit or SUPPOSED_SHARE * run.job.deadline
    share = 1.0 - _reached(run, speed, now) if speed else 1.0
    work_s = share * whole_s
    rate = rate_per_hour(run)
    evictions = (SUPPOSED_EVICTIONS if rate is None else rate) * work_s / 3600
    waited_s = (now - _waits_since(run)).total_seconds()
    return Outlook(left_s, work_s, change_s, evictions, run.job.deadline - whole_s, share, waited_s, bool(speed))


def noted(attempt: Attempt, report: Report, now: datetime, *, first: bool, final: bool = False) -> Attempt:
    """The attempt with the progress of its report. `first`: no earlier attempt made progress: its script starts at
    zero, so that its first reported value is already a measure. `final`: nothing follows."""
    saved = report.effort is not None and bool(report.effort.kept or report.effort.began_from)
    last = attempt.last
    if last is None:
        if report.progress is None and not (first and report.started_at):
            return attempt
        mark = Mark(now, report.progress or 0.0, saved=saved)
        return replace(attempt, first=mark, last=mark)
    progress = last.progress if report.progress is None else report.progress
    if (progress, saved) == (last.progress, last.saved):
        return attempt
    if not final and saved == last.saved and (now - last.at).total_seconds() < MARK_EVERY_S:
        return attempt
    return replace(attempt, last=Mark(now, progress, max(last.stride, progress - last.progress), saved))


def words(run: Run, now: datetime) -> str:
    """Its state, as text; empty for a run without a deadline."""
    view = outlook(run, now)
    if view is None:
        return ""
    if view.left_s <= 0:
        return f"its deadline passed {_spell(-view.left_s)} ago"
    left = f"{_spell(view.left_s)} are left until its deadline"
    if not view.measured:
        supposed = f"{_spell(view.work_s)} of work are assumed"
        return f"{left}; the script does not report its progress yet, so {supposed}"
    missed = "" if view.slack_s >= 0 else ", which can no longer be met"
    return f"{left}{missed}, and {_spell(view.work_s)} of work"


def _waits_since(run: Run) -> datetime:
    had = (one.ended_at for one in reversed(run.attempts) if one.first and one.ended_at)
    return next(had, run.submitted_at)


def _speed(run: Run) -> float:
    """Progress per second, over all attempts; 0 if unknown."""
    spans = list(_spans(run))
    seconds = sum(span for span, _ in spans)
    gained = sum(gain for _, gain in spans)
    speed = gained / seconds if seconds > 0 and gained > 0 else 0.0
    return speed if speed > SLOWEST else 0.0


def _spans(run: Run) -> Iterator[tuple[float, float]]:
    for one in run.attempts:
        if one.first and one.last and one.last.progress > one.first.progress:
            yield (one.last.at - one.first.at).total_seconds(), one.last.progress - one.first.progress


def _reached(run: Run, speed: float, now: datetime) -> float:
    """Its current progress. Between two reports it is extrapolated, but no further than it ever went between two."""
    for attempt in reversed(run.attempts):
        if attempt.last:
            until = attempt.ended_at or now
            since_s = max((until - attempt.last.at).total_seconds(), 0.0)
            return min(attempt.last.progress + min(since_s * speed, attempt.last.stride), 1.0)
    return 0.0


def _change_s(run: Run) -> float:
    """The cost of a move: from the request for a machine until the run is further than before."""
    speed = _speed(run)
    costs = list(_costs(run, speed)) if speed else []
    if not costs:
        return SUPPOSED_START_S + SUPPOSED_LOSS_S
    usual_s = sum(costs) / len(costs)
    if len(costs) == 1 and not any(one.last for one in run.attempts[1:]):
        usual_s += SUPPOSED_LOSS_S  # no eviction has shown yet how much work is lost
    return max(CAUTION * usual_s, LEAST_CHANGE_S)


def _costs(run: Run, speed: float) -> Iterator[float]:
    before = 0.0
    for attempt in run.attempts:
        if attempt.first and attempt.last:
            taken_s = (attempt.first.at - attempt.asked_at).total_seconds()
            yield max(taken_s - (attempt.first.progress - before) / speed, 0.0)
            before = attempt.last.progress


def _spell(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min" if minutes else f"{seconds:.0f} s"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if rest else f"{hours} h"
