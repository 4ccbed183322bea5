"""What an agent says about its attempt, in the store: rewritten at every heartbeat, final once `outcome` is set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from stoker.model.orders import Notice


class Phase(StrEnum):
    UNPACKING = "unpacking"
    STAGING = "staging"  # the data
    PREPARING = "preparing"  # the environment
    RUNNING = "running"
    SAVING = "saving"  # the script has ended; outputs and logs are being shipped
    DONE = "done"


class Outcome(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # the script's own failure
    BROKEN = "broken"  # the run could not be prepared or kept: retrying the script would not help
    CANCELLED = "cancelled"
    TIMED_OUT = "timed-out"
    TARGET_REACHED = "target-reached"
    EVICTED = "evicted"  # the script saved and ended because a notice said so


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How one rank ended. Exactly one of the two is set once it has."""

    rank: int
    exit_code: int | None = None
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class MetricSummary:
    last: float
    least: float
    most: float
    count: int
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
    read_bytes: int = 0  # that came from the store: so far, while it goes on
    stage_s: float = 0.0
    wait_s: float = 0.0
    wait_share: float = 0.0  # of the time from the beginning of staging to the script's end


@dataclass(frozen=True, slots=True)
class Report:
    """`at` and the other times are the node's clock: compare them with each other, not with the server's."""

    attempt: int
    node: int
    phase: Phase
    at: datetime
    beat: int  # grows by one with every report
    ranks: tuple[RankEnd, ...] = ()
    started_at: datetime | None = None  # the script's start
    ended_at: datetime | None = None  # the script's end
    outcome: Outcome | None = None
    exit_code: int | None = None  # what a shell would show: 128 + signal for a killed script
    message: str = ""
    hint: str = ""
    log_bytes: Mapping[str, int] = field(default_factory=dict)  # by rank; complete once `outcome` is set
    metrics: Mapping[str, MetricSummary] = field(default_factory=dict)
    output_files: int = 0
    output_bytes: int = 0
    data: Mapping[str, DataFigures] = field(default_factory=dict)  # by input
    notice: Notice | None = None  # that the machine itself was given
