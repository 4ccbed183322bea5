"""What an agent says about its attempt, in the store, and what the nodes of a gang tell each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from stoker.model.node import Offer
from stoker.model.orders import Notice
from stoker.model.run.stacks import RankStacks, Standstill
from stoker.model.untrusted import Most, Seconds, Within


class Phase(StrEnum):
    UNPACKING = "unpacking"
    STAGING = "staging"  # the data
    PREPARING = "preparing"  # the environment
    RUNNING = "running"
    SAVING = "saving"  # the script has ended; outputs and logs are being shipped
    DONE = "done"


PhaseName = Annotated[str, Phase]

MOST_PACKAGES = 5000
MOST_METRICS = 1000  # names in a summary
_LONGEST_NAME = 400
Version = Annotated[str, Most(100)]


class Outcome(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # the script's own failure
    BROKEN = "broken"  # the run could not be prepared or kept: retrying the script would not help
    CANCELLED = "cancelled"
    TIMED_OUT = "timed-out"
    TARGET_REACHED = "target-reached"
    EVICTED = "evicted"  # the script saved and ended because a notice said so
    NOT_READY = "not-ready"  # its machine lacks what the script needs, such as a GPU driver: another size may have it
    BUDGET_REACHED = "budget-reached"  # saved and ended by the node's own fuse, before the money was spent
    PEER_ENDED = "peer-ended"  # another node of its gang ended, and it could not continue without it


GOOD = (Outcome.SUCCEEDED, Outcome.TARGET_REACHED)


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How one rank ended. Exactly one of the two is set once it has."""

    rank: int
    exit_code: int | None = None
    signal: int | None = None

    @property
    def stacks(self) -> RankStacks:
        """For whoever asks where the ranks are."""
        how = f"was killed by signal {self.signal}" if self.signal else f"ended with exit code {self.exit_code}"
        return RankStacks(self.rank, note=how)


@dataclass(frozen=True, slots=True)
class MetricSummary:
    last: float
    least: float
    most: float
    count: int
    step: float | None = None

    def joined(self, later: MetricSummary) -> MetricSummary:
        """With what a later attempt measured. Values that are not numbers do not count for minimum and maximum."""
        least = min((one for one in (self.least, later.least) if one == one), default=later.least)
        most = max((one for one in (self.most, later.most) if one == one), default=later.most)
        return replace(later, least=least, most=most, count=self.count + later.count)


def joined_metrics(before: Mapping[str, MetricSummary], later: Mapping[str, MetricSummary]) -> dict[str, MetricSummary]:
    """Of a whole run, attempt by attempt. Metrics that only an earlier one had stay."""
    joined = {name: before[name].joined(one) if name in before else one for name, one in later.items()}
    return dict(list({**before, **joined}.items())[:MOST_METRICS])


def summed(points: Iterable[tuple[Mapping[str, float | None], float | None]]) -> dict[str, MetricSummary]:
    """Of points: the values that were reported together, and their step. What is not a number does not count."""
    known: dict[str, MetricSummary] = {}
    for values, step in points:
        for name, value in values.items():
            if value is None or (name not in known and len(known) >= MOST_METRICS):
                continue
            one = MetricSummary(value, value, value, 1, step)
            known[name] = known[name].joined(one) if name in known else one
    return known


@dataclass(frozen=True, slots=True)
class Measured:
    """One line of a metrics file: what a rank reported at one moment. None: it was not a finite number."""

    at: Annotated[float, Within(-6e10, 2.5e11)]  # unix seconds, in years that calendars have
    rank: int
    values: Annotated[Mapping[str, float | None], Most(10 * MOST_METRICS, _LONGEST_NAME)]
    step: float | None = None


@dataclass(frozen=True, slots=True)
class DataFigures:
    """How one input was read on one node.

    `wait_s` is the time in which the script could not go on for want of it: all of `stage_s`, before it started, and,
    of a mount, the moments in which it was seen reading from it and doing nothing else.
    """

    way: str  # link, download or mount
    files: int = 0
    size_bytes: int = 0
    cached_bytes: int = 0  # of which were on the node already
    read_bytes: int = 0  # read from the store so far
    stage_s: float = 0.0
    wait_s: float = 0.0
    wait_share: float = 0.0  # of the time from the beginning of staging to the script's end


@dataclass(frozen=True, slots=True)
class Kept:
    """A checkpoint in the store. `at` is when what is in it was last written, by the clock of the node that did."""

    attempt: int
    number: int
    at: datetime
    step: float | None = None


@dataclass(frozen=True, slots=True)
class Climb:
    """How a counter of the script went up: its epochs, its steps, or the number in lines that it prints."""

    name: Annotated[str, Most(_LONGEST_NAME)]
    seconds: Annotated[tuple[float, ...], Most(100)] = ()  # of running, when each of the values was first seen
    values: Annotated[tuple[float, ...], Most(100)] = ()  # rising
    named: bool = True  # what it counts is known by its name; else it may be anything


MOST_EVICTIONS = 1000  # that an attempt counts: its receipt has a line for each


@dataclass(frozen=True, slots=True)
class Effort:
    """What a node's time has gone into, in seconds of its steady clock. `at`, by its other one, is when it was counted.

    What lies before the agent's first word and behind its last is not in it.
    """

    at: datetime
    phases: Mapping[PhaseName, Seconds] = field(default_factory=dict)  # by `Phase`, the one under way so far
    restored_s: float = 0.0  # of unpacking: the restore of a checkpoint
    blocked_s: float = 0.0  # of running: the script waited for saves of its own, or behind its last one for its end
    waited_s: float = 0.0  # of running: it waited for its data
    unsaved_s: float = 0.0  # of running: the end of it that is in no checkpoint
    undone_s: Seconds = (
        0.0  # of running: on earlier machines of the attempt, behind the checkpoint it then resumed from
    )
    # Of the attempt's earlier machines, evicted with nobody there: when each was last heard, by its own clock.
    evicted_at: Annotated[tuple[datetime, ...], Most(MOST_EVICTIONS)] = ()
    at_rest: bool = False  # it has made its last save, and does nothing more: it waits for its end
    step: float | None = None  # the last one reported
    began_from: Kept | None = None  # None: from nothing
    kept: Kept | None = None  # its own newest; None: it has committed none
    climbs: Annotated[tuple[Climb, ...], Most(16)] = ()  # what the script itself shows of how far it came

    @property
    def counted_s(self) -> float:
        return sum(self.phases.values())

    @property
    def running_s(self) -> float:
        return self.phases.get(Phase.RUNNING, 0.0)


@dataclass(frozen=True, slots=True)
class Report:
    """`at` and the other times are the node's clock: compare them with each other, not with the server's."""

    attempt: int
    node: int
    phase: Phase
    at: datetime
    beat: int  # grows by one with every report
    ranks: Annotated[tuple[RankEnd, ...], Most(10_000)] = ()
    started_at: datetime | None = None  # the script's start
    ended_at: datetime | None = None  # the script's end
    outcome: Outcome | None = None
    exit_code: int | None = None  # what a shell would show: 128 + signal for a killed script
    message: str = ""
    cause: Annotated[str, Most(40)] = ""  # of the message: a `Cause`, the code of an error, or the outcome
    hint: str = ""
    # By rank; complete once `outcome` is set.
    log_bytes: Annotated[Mapping[str, int], Most(10_000, 20)] = field(default_factory=dict)
    metrics: Annotated[Mapping[str, MetricSummary], Most(MOST_METRICS, _LONGEST_NAME)] = field(default_factory=dict)
    output_files: int = 0
    output_bytes: int = 0
    checkpoint_files: int = 0  # of the newest checkpoint, what does not lie among the outputs
    checkpoint_bytes: int = 0
    stray: tuple[str, ...] = ()  # what else it left, in names, the likeliest to be wanted first
    stray_files: int = 0  # of which are in the store
    stray_bytes: int = 0
    data: Annotated[Mapping[str, DataFigures], Most(1000, _LONGEST_NAME)] = field(default_factory=dict)  # by input
    # Name to version, of the Python that the script is run with; empty: as the submission has it.
    packages: Annotated[Mapping[str, Version], Most(MOST_PACKAGES, 200)] = field(default_factory=dict)
    image: Annotated[str, Most(200)] = ""  # the digest of the image that the script runs in; empty: it runs in none
    environment: Annotated[str, Most(64)] = ""  # the id of the environment that it was started in; empty: none
    system: Annotated[Mapping[str, Annotated[str, Most(200)]], Most(50, 100)] = field(default_factory=dict)
    notice: Notice | None = None  # that the machine itself was given
    stays: bool = False  # its machine is there for the next attempt, as after a restart
    progress: Annotated[float, Within(0, 1)] | None = None  # 0 to 1, as the script reports it; None: it has not
    save_s: float = 0.0  # what saving and uploading everything has taken at most, as far as the node has seen
    effort: Effort | None = None
    standstill: Standstill | None = None  # its ranks make no progress; None: they do, or nobody looks


# How far a script is: what it reported, and when that was seen.


@dataclass(frozen=True, slots=True)
class Mark:
    """One moment of an attempt, by the server's clock: no two clocks have to agree."""

    at: datetime
    progress: float  # 0 to 1, as the script reported it
    stride: float = 0.0  # the greatest step between two values of this attempt so far
    saved: bool = False  # a checkpoint of the attempt was safe by then


@dataclass(frozen=True, slots=True)
class Refusal:
    """An offer that was requested in advance, and was unavailable."""

    offer: Offer
    at: datetime
    room: int = 0  # how many of the nodes that were requested at once may be available; 0: unknown


def joined(reports: Sequence[Report]) -> Report:
    """The totals of a gang's nodes. For a metric that several report, the first node's counts."""
    first = reports[0]
    if len(reports) == 1:
        return first
    metrics = {name: one for report in reversed(reports) for name, one in report.metrics.items()}
    return replace(
        first,
        metrics=metrics,
        output_files=sum(one.output_files for one in reports),
        output_bytes=sum(one.output_bytes for one in reports),
        checkpoint_files=first.checkpoint_files or max(one.checkpoint_files for one in reports),
        checkpoint_bytes=first.checkpoint_bytes or max(one.checkpoint_bytes for one in reports),
        stray=tuple(name for one in reports for name in one.stray),
        stray_files=sum(one.stray_files for one in reports),
        stray_bytes=sum(one.stray_bytes for one in reports),
        log_bytes={rank: size for one in reports for rank, size in one.log_bytes.items()},
        progress=next((one.progress for one in reports if one.progress is not None), None),
        save_s=max(one.save_s for one in reports),
    )


Address = Annotated[str, Most(100)]
Port = Annotated[int, Within(0, 65_535)]


@dataclass(frozen=True, slots=True)
class SavedSet:
    """A checkpoint that a node could restore."""

    attempt: int
    number: int
    saves: Mapping[str, int] = field(default_factory=dict)  # see `CheckpointSet`
    steps: Annotated[tuple[int, ...], Most(100)] = ()  # that `stoker.checkpoint` has saved for all ranks of the node

    @property
    def position(self) -> tuple[int, int]:
        return self.attempt, self.number


@dataclass(frozen=True, slots=True)
class Ready:
    """A node has its environment, its data and its checkpoint, and could start its ranks."""

    node: int
    round: int  # one more each time that nodes restore another checkpoint
    processes: int
    addresses: Annotated[tuple[Address, ...], Most(100)] = ()  # of the first node; of a peer, those that reach it
    port: Port = 0  # that it listens at, until others have tried to reach it
    resumes: bool = False  # it has restored a checkpoint
    label: float | None = None  # of that, by which it belongs to those of other nodes; None: nothing tells
    own: Annotated[tuple[Address, ...], Most(100)] = ()  # of this node
    free: Annotated[tuple[Port, ...], Most(1024)] = ()  # a free port for each of its ranks
    code: Annotated[str, Most(100)] = ""  # the snapshot that it has unpacked
    restored: SavedSet | None = None
    sets: Annotated[tuple[SavedSet, ...], Most(100)] = ()  # that it could restore, newest first
    written: float | None = None  # when, if the numbers in the names may be those of ranks; see `label`


@dataclass(frozen=True, slots=True)
class SharePoint:
    """Where the other nodes can ask this one for contents of datasets."""

    node: int
    addresses: Annotated[tuple[Address, ...], Most(100)]
    port: Port
    secret: Annotated[str, Most(64)]  # 32 bytes in hexadecimal digits


@dataclass(frozen=True, slots=True)
class Go:
    """What the first node says once it has heard of all: start, restore another checkpoint first, or why neither."""

    round: int
    port: Port = 0  # at which the ranks meet
    address: Address = ""  # of the first node, as its own ranks name it
    restore: bool = False  # another checkpoint first
    label: float | None = None  # none is restored that has a later one; None: none is at all
    trouble: Annotated[str, Most(4000)] = ""
    hint: Annotated[str, Most(4000)] = ""
    sets: Annotated[tuple[SavedSet, ...], Most(1024)] = ()  # by node: what it restores; empty: the label says
    workers: Annotated[tuple[Address, ...], Most(65_536)] = ()  # `address:port` for each rank; empty: not all are known
    secret: Annotated[str, Most(100)] = field(default="", repr=False)  # which proves that a caller is of this attempt


@dataclass(frozen=True, slots=True)
class PeerEnd:
    """A node has ended, and its peers cannot continue without it."""

    node: int
    outcome: Outcome
    message: Annotated[str, Most(4000)] = ""


@dataclass(frozen=True, slots=True)
class PeerNotice:
    """The machine of a node was given notice; None: the notice was withdrawn."""

    node: int
    notice: Notice | None = None
