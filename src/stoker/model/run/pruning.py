"""Which runs are no longer wanted: a rule that a person gives, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PruneRule:
    """Ended runs that ended longer ago than this go. The newest run of each experiment always stays."""

    older_than_s: float
    keep_best: bool = False  # also the best of each experiment, by the metric that its job names
    experiment: str = ""  # only runs of this job; empty: of all


@dataclass(frozen=True, slots=True)
class Spared:
    """A run that is old enough to go, and why it stays."""

    name: str
    why: str


# What runs take up, in bytes.


@dataclass(frozen=True, slots=True)
class RunSizes:
    """Of one run. All but the last two are in its store."""

    code: int = 0  # may be shared with other runs
    checkpoints: int = 0
    outputs: int = 0  # with what its script left elsewhere
    logs: int = 0  # with metrics, events and everything else that agents report
    here: int = 0  # on the server's computer: outputs that were brought back, and the folder of its node
    trouble: str = ""  # why some of it is not known; empty: all is

    @property
    def stored(self) -> int:
        return self.code + self.checkpoints + self.outputs + self.logs


@dataclass(frozen=True, slots=True)
class Sizes:
    """`total` counts what several runs share once; `home` are other parts of Stoker's folder, by name."""

    runs: Mapping[str, RunSizes]
    total: int = 0
    home: Mapping[str, int] = field(default_factory=dict)
