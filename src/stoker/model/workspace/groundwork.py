"""What an administrator lays down once in a cloud, so that practitioners can use it: its pieces, and who lays them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Protocol

from stoker.model.node import Need
from stoker.model.workspace.handover import AccountForm, Handover
from stoker.model.workspace.store import Finding


@dataclass(frozen=True, slots=True)
class Option:
    """Something an administrator may say of the groundwork, as on a command line: `--region`."""

    name: str  # with its dashes
    help: str
    metavar: str = ""  # empty: a flag
    many: bool = False
    teardown: bool = False  # taking it away needs it as well

    @property
    def key(self) -> str:
        """What its value is found by."""
        return self.name.lstrip("-").replace("-", "_")


@dataclass(frozen=True, slots=True)
class GivenOptions:
    """What was said: options by their keys, texts for one, tuples for many, booleans for flags."""

    options: Mapping[str, Any]
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)  # of whoever asks
    twin: Mapping[str, Any] | None = field(default=None, repr=False)  # the twin's address and login; None: the cloud
    folder: Path | None = None  # Stoker's own, where the account is that runs use; None: the options describe one

    def text(self, key: str) -> str:
        return str(self.options.get(key) or "").strip()

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(str(one).strip() for one in self.options.get(key) or ())

    def flag(self, key: str) -> bool:
        return bool(self.options.get(key))


class PieceState(StrEnum):
    MISSING = "missing"
    CHANGED = "changed"  # it exists, and differs from what was requested
    THERE = "there"
    LIVE = "live"  # machines of a run: they belong to the run, and still use the groundwork
    FOREIGN = "foreign"  # somebody else has put it there


@dataclass(frozen=True, slots=True)
class GroundworkPiece:
    """One thing of the groundwork. `usd_per_month` is what it costs as it is made, and None where nobody can tell;
    `cost` says the rest in words, such as a price per GB; or that nobody could look how much data there is."""

    kind: str
    name: str
    why: str
    state: PieceState
    usd_per_month: Decimal | None = Decimal(0)
    cost: str = ""
    size_bytes: int | None = None  # of the data in it, where that was looked at


class Groundwork(Protocol):
    """A provider's own, found by its entry point in the group `stoker.groundworks`. Made without arguments."""

    options: ClassVar[Sequence[Option]]
    form: ClassVar[AccountForm]  # what its hand-over may say of an account

    def plan(self, asked: GivenOptions) -> list[GroundworkPiece]:
        """What is wanted, in the order it is made, and how much of it is there. Changes nothing."""
        ...

    def lay(self, asked: GivenOptions, tell: Callable[[GroundworkPiece], None]) -> Handover:
        """Makes what is missing and changes what differs; `tell` hears of each. May be repeated at any time, and mends
        what a crash has left half done."""
        ...

    def preflight(self, asked: GivenOptions, needs: Sequence[Need]) -> Iterator[Finding]:
        """Whether a run with one of these needs could start, asked of the cloud itself. Costs nothing, and leaves
        nothing behind. What an administrator is about to set up is asked for only as far as it can be there."""
        ...

    def recording(self, asked: GivenOptions, file: Path) -> AbstractContextManager[None]:
        """While it is open, every request to the cloud and its answer are written to the file, without secrets: those
        of this program, and those of the server that runs are given to."""
        ...

    def drill(self, asked: GivenOptions, key: str) -> str:
        """Has the cloud evict the machine of a node, as it does with spot machines. Returns what the cloud will do to
        restore it, in words; empty: nothing. Raises NotFound where there is no such machine."""
        ...

    def survey(self, asked: GivenOptions) -> list[GroundworkPiece]:
        """What is there of it, and what would be lost with it."""
        ...

    def remove(self, asked: GivenOptions, tell: Callable[[GroundworkPiece], None]) -> list[GroundworkPiece]:
        """Removes everything that `survey` shows. Returns what is left then, as the cloud says it: nothing."""
        ...
