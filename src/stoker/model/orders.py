"""What the server tells an agent, through the store: the orders of an attempt, and later wishes about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from stoker.model.job.job import DataMode, Job
from stoker.model.job.search import Rung
from stoker.model.job.sections import Software
from stoker.model.run.money import Fuse


@dataclass(frozen=True, slots=True)
class DataOrder:
    """One input of a run that has to be brought to its nodes: files of a dataset, or what is at a URL.

    Pinned when the run was submitted, so that every attempt, and a rerun, reads the same.
    """

    label: str  # what it is to people: `hymenoptera@3`, or the URL
    mode: DataMode = DataMode.AUTO
    shard: bool = False  # each node takes its part
    dataset: str = ""  # `name@<id>`: what resolves to this very version; empty: files that a URL names
    store: str = ""  # the name of the store that has it
    root: str = ""  # what a node puts before its keys: `layout.elsewhere` where the store is not the run's own
    manifest: str = ""  # the list of files, by the key a node asks for
    id: str = ""  # the manifest's hash
    reads: tuple[str, ...] = ()  # prefixes of keys that a node has to read, the manifest's among them
    files: int = 0
    size_bytes: int = 0
    url: str = ""
    sha256: str = ""  # of what is at the URL; empty: unknown


@dataclass(frozen=True, slots=True)
class Terminal:
    """That of whoever submits, for a script that is to have it."""

    kind: str  # as TERM says
    rows: int = 24
    columns: int = 80

    @property
    def sound(self) -> bool:
        printable = self.kind.isascii() and self.kind.isprintable() and 0 < len(self.kind) < 100
        return printable and all(0 <= size < 1 << 16 for size in (self.rows, self.columns))


@dataclass(frozen=True, slots=True)
class Orders:
    """Everything one agent needs to carry out its part of one attempt. Written once, never changed."""

    run_id: str
    run_name: str
    attempt: int
    node: int
    key: str
    job: Job
    snapshot: str  # id
    python: str  # interpreter to use where the environment names none; empty: the one of the agent
    data: Mapping[str, str] = field(default_factory=dict)  # name to the path the script is given
    nodes: int = 1
    master_address: str = "127.0.0.1"
    evictions_per_hour: float | None = None  # as far as the run has seen; None: it has seen nothing yet
    inputs: Mapping[str, DataOrder] = field(default_factory=dict)  # name to what the node has to bring there first
    fuse: Fuse | None = None  # what it may spend, until wishes say otherwise; None: whatever it costs
    terminal: Terminal | None = None  # that the script gets; None: it has none, and reads nothing
    software: Software | None = None  # what the snapshot has of the submitting Python; None: nothing
    shelf: str = ""  # where in the store nodes share environments that they build; empty: they do not
    widths: tuple[int, ...] = ()  # by attempt: how many nodes it had; empty: as many as this one
    rung: Rung | None = None  # where a trial of a search pauses; None: it runs to its end
    incarnation: int = 1  # of the attempt's machines, which; only the machine itself knows, and nobody writes it

    @property
    def begins(self) -> bool:
        """Nothing of the run is there yet: no attempt before this one, and no machine."""
        return self.attempt == 1 and self.incarnation == 1


class Wish(StrEnum):
    """What the server wants of an attempt under way. Wishes only get stronger."""

    GO_ON = "go-on"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class Notice:
    """The warning that a node will be evicted at `deadline`. Another `at` is another notice."""

    at: datetime
    deadline: datetime
    drill: bool = True  # requested here; otherwise the machine was told by its owner
    returns: bool = False  # the machine is only restarted: it will be there again, with its disk

    @property
    def seconds(self) -> float:
        return (self.deadline - self.at).total_seconds()


@dataclass(frozen=True, slots=True)
class Visit:
    """A command that somebody wants run beside the script, in its folder and with its variables. It runs once, and as
    long as it is wished for."""

    id: str
    words: tuple[str, ...]
    stacks: bool = False  # instead of a command: the stacks of the ranks, as a `Standstill`


@dataclass(frozen=True, slots=True)
class VisitEnd:
    """How a visit ended. `exit_code` is what a shell would show."""

    exit_code: int
    message: str = ""  # why it could not be run, or was ended; empty: it ended by itself


@dataclass(frozen=True, slots=True)
class Wishes:
    wish: Wish = Wish.GO_ON
    reason: str = ""
    notice: Notice | None = None  # None after a notice: it was withdrawn
    fuse: Fuse | None = None  # replaces the one of the orders; None: that one stands
    visits: tuple[Visit, ...] = ()
    broken: str = ""  # why its gang has to end, in words; empty: it works
    hung: str = ""  # why its script is to be restarted, in words; empty: it is not


# What lies beside a venv that runs share on one node: the one place that spells these names.

_USERS = ".runs"
_LOCK = ".lock"


def lock_of(venv: Path) -> Path:
    """Held while the venv is built or removed."""
    return venv.with_name(f"{venv.name}{_LOCK}")


def users_of(venv: Path) -> Path:
    """A folder with an empty file for each run that has used it, named by the run's id. Written under the lock."""
    return venv.with_name(f"{venv.name}{_USERS}")


def venv_used(users: Path) -> Path | None:
    """The venv that such a folder belongs to; None where it is something else."""
    return users.with_name(users.name.removesuffix(_USERS)) if users.name.endswith(_USERS) else None
