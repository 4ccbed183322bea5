"""Making a run: first the plan, a value that says exactly what would happen, then the deed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from stoker.client.connection import Connection
from stoker.client.settings import Settings
from stoker.model.job import Job
from stoker.model.node import Offer
from stoker.model.run import Run
from stoker.model.snapshot import Git, Snapshot

Progress = Callable[[int, int], None]  # bytes sent, bytes to send


@dataclass(frozen=True, slots=True)
class DataUse:
    """One of the job's inputs as it will be used. A URL or dataset has no counts: they are the server's to find."""

    name: str
    where: str  # an absolute path, a URL, or `dataset <name>`
    files: int = 0
    size_bytes: int = 0
    newest: datetime | None = None
    counted: bool = False  # the counts were taken, all of them

    @property
    def mark(self) -> str:
        """Changes when the data does: what `diff` compares."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Plan:
    """What a submission would do, and nothing done yet."""

    job: Job
    source: Path
    snapshot: Snapshot
    new_files: int  # those the server lacks
    new_bytes: int
    git: Git | None
    python: str
    environment: str  # the software the run gets, in words
    data: tuple[DataUse, ...]
    command: str  # as the job writes it
    meanings: Mapping[str, str]  # what each `${…}` in the command will be: by the name inside the braces
    secrets: tuple[str, ...]  # names only
    land_in: str  # empty: the client fetches
    offer: Offer | None
    free: bool  # a node is free now
    queued_ahead: int

    @property
    def files(self) -> int:
        raise NotImplementedError

    @property
    def size_bytes(self) -> int:
        raise NotImplementedError


def plan(job: Job, folder: Path, settings: Settings, connection: Connection) -> Plan:
    """Looks, asks, and changes nothing. Raises what `submit` would: JobInvalid, SnapshotRefused, BadInput."""
    raise NotImplementedError


def submit(
    job: Job,
    folder: Path,
    settings: Settings,
    connection: Connection,
    *,
    name: str = "",
    progress: Progress | None = None,
) -> Run:
    """Sends what the server lacks of the code, then the job. `progress` hears of every chunk sent."""
    raise NotImplementedError
