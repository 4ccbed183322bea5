"""The input and the output of every decision: the observations of a run; the next facts, the actions, and the events
for the timeline."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from stoker.errors import Conflict
from stoker.model.cause import Cause
from stoker.model.node import NodeSight
from stoker.model.orders import Notice, Wish
from stoker.model.run.money import Fuse
from stoker.model.run.report import Report
from stoker.model.run.run import Attempt, AttemptState, Event, Run, RunState


@dataclass(frozen=True, slots=True)
class Sighting:
    """`node` and `report` are the newest attempt's. None means: checked, and there is none."""

    node: NodeSight | None = None
    report: Report | None = None
    unmarked: bool = False  # its provider shows its machine under the key of an earlier attempt, or not yet
    spare: NodeSight | None = None  # of the node that was requested in advance
    leftovers: tuple[str, ...] = ()  # keys of earlier attempts whose nodes still exist
    nodes: tuple[NodeSight, ...] = ()  # all existing nodes of the run, including spares and leftovers: for the meter
    still: tuple[str, ...] = ()  # those of them that cannot work any more, and only cost
    refused: str = ""  # why its node's last report is not used
    refused_s: float = 0.0  # since its reports became unusable, by the server's monotonic clock
    silent_s: float = 0.0  # since the report last changed, by the server's monotonic clock
    deaf: bool = False  # the store is unavailable: a missing report proves nothing
    overstay_s: float = 0.0  # a node that is still seen so long behind its notice is not stopped yet
    patience_s: float = 120.0  # a node of its provider that is silent for longer than this is lost
    wished_s: float = 0.0  # since the server first told this attempt's agent to stop, likewise
    renewed_at: datetime | None = None  # when this server last renewed the node's lease
    outlives_s: float = 0.0  # the longest that a node stays without contact with the server; 0: unknown
    unasked: tuple[str, ...] = ()  # keys of nodes that could not be requested yet: they cost nothing
    waits: str = ""  # why that of the newest attempt could not: a person has to fix it
    waits_hint: str = ""  # what to do about it
    waits_code: str = ""  # the code of that error, such as `store-denied`
    lingers_s: float = 0.0  # the longest that it stays after its last report, likewise
    said_at: datetime | None = None  # when its store got the last report, by the store's own clock; None: not yet
    trouble: str = ""  # why the provider could not start the node
    trouble_hint: str = ""  # what to do about it
    trouble_code: str = ""  # the code of that error, such as `no-capacity`
    peers: tuple[Sighting, ...] = ()  # the same for the other nodes of a gang, without what concerns the whole run
    growth: tuple[NodeSight | None, ...] = ()  # of each node that was requested in addition to these; None: not there


@dataclass(frozen=True, slots=True)
class Decision:
    run: Run
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()

    def noting(self, now: datetime, kind: str, text: str) -> Decision:
        return Decision(self.run, self.actions, (*self.events, Event(now, kind, text)))

    def doing(self, *actions: Action) -> Decision:
        return Decision(self.run, (*self.actions, *actions), self.events)


# The actions of the engine. Each is keyed by run and attempt and may be executed again without harm.


@dataclass(frozen=True, slots=True)
class StartNode:
    """Write the newest attempt's orders, then request its node from the provider."""

    run: Run
    fuse: Fuse | None = None  # what it may spend


@dataclass(frozen=True, slots=True)
class StartSpare:
    """Request the node of the attempt after the newest one. It waits for orders that may never come."""

    run: Run
    fuse: Fuse | None = None  # what it may spend, until its orders arrive


@dataclass(frozen=True, slots=True)
class TellAgent:
    """Write the run's wish where the newest attempt's agent reads it."""

    run: Run
    fuse: Fuse | None = None  # what it may spend from now on; None: unchanged


@dataclass(frozen=True, slots=True)
class StopNode:
    """Release everything with this key, whatever it is still doing."""

    provider: str
    key: str


@dataclass(frozen=True, slots=True)
class Land:
    """Download the run's outputs to the folder it was submitted from."""

    run: Run


Action = StartNode | StartSpare | TellAgent | StopNode | Land


# The prior before anything is observed: a tenth of an eviction in one hour.
SUPPOSED_EVICTIONS = 0.1
SUPPOSED_HOURS = 1.0


def rate_per_hour(run: Run) -> float | None:
    """How often the run's nodes were evicted, to decide how often to save. Attempts without a node do not count. None
    if no other attempt has ended."""
    over = [attempt for attempt in run.attempts if attempt.state.over and attempt.started_at]
    spans = [one.ended_at - one.started_at for one in over if one.started_at and one.ended_at]
    hours = sum(max(span.total_seconds(), 0.0) for span in spans) / 3600
    evictions = sum(one.state in (AttemptState.EVICTED, AttemptState.LOST) for one in over)
    return (evictions + SUPPOSED_EVICTIONS) / (hours + SUPPOSED_HOURS) if over else None


def cancelled(run: Run, now: datetime) -> Decision:
    """Tells the run to end, unless it has ended or was told already."""
    if run.state.ended or run.wish is Wish.CANCEL:
        return Decision(run)
    return Decision(replace(run, wish=Wish.CANCEL)).noting(now, "cancel-asked", "cancellation requested")


def evict(run: Run, notice_s: float, now: datetime) -> Decision:
    """Announces that the newest attempt's node is evicted in so many seconds."""
    attempt = _attempt(run)
    notice = Notice(now, now + timedelta(seconds=notice_s))
    text = f"attempt {attempt.number} got {notice_s:g} s notice of its eviction"
    return Decision(_with(run, replace(attempt, notice=notice))).noting(now, "notice", text)


def withdraw(run: Run, now: datetime) -> Decision:
    """The node stays."""
    attempt = _attempt(run)
    if attempt.notice is None:
        raise Conflict(
            f"`{run.name}` has no notice to withdraw",
            hint=f"give one with `stoker evict {run.name}`",
            cause=Cause.NO_NOTICE,
        )
    kept = Decision(_with(run, replace(attempt, notice=None)))
    return kept.noting(now, "notice-withdrawn", f"the eviction notice of attempt {attempt.number} was withdrawn")


def _attempt(run: Run) -> Attempt:
    if run.attempt is None or run.state not in (RunState.STARTING, RunState.RUNNING):
        raise Conflict(
            f"`{run.name}` has no node to evict: it is {run.state}", hint=f"stoker show {run.name}", cause=Cause.NO_NODE
        )
    return run.attempt


def _with(run: Run, attempt: Attempt) -> Run:
    return run.with_newest(attempt)
