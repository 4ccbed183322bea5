"""Local data that a remote run reads: uploaded to the store first, as a version of a dataset."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stoker.client.api.connection import Connection
from stoker.client.data import marks
from stoker.client.data.datasets import Datasets
from stoker.client.data.marks import DataUse
from stoker.client.progress import TransferProgress
from stoker.errors import NotFound
from stoker.model.job.job import DataInput, Job

ASSUMED_BYTES_PER_S = 10_000_000  # a good home connection: the first estimate, before anything is measured
_LONGEST = 80


@dataclass(frozen=True, slots=True)
class DataMove:
    """An input of the job, and the dataset it becomes. `known`: its newest version has as many files and bytes."""

    use: DataUse
    dataset: str
    known: bool = False

    @property
    def expected_s(self) -> float:
        return self.use.size_bytes / ASSUMED_BYTES_PER_S


Agree = Callable[[Sequence[DataMove]], TransferProgress]  # raises if the user refuses


def moves(job: Job, folder: Path, connection: Connection, datasets: Datasets) -> list[DataMove]:
    """What the job reads on this computer but its machines cannot. The server knows which machines can."""
    uses = {use.name: use for use in marks.look(job, folder) if use.local}
    if not uses:
        return []
    wanted = connection.post("/v1/plan", {"job": job.plain()}).get("to_store", ())
    return [_move(job, uses[name], datasets) for name in wanted if name in uses]


def dataset_name(job: Job, name: str) -> str:
    """Named after the experiment, so that no other dataset gets a version of it."""
    return re.sub(r"[^a-z0-9._-]+", "-", f"{job.name}-{name}".lower())[:_LONGEST].strip("-._")


def moved(job: Job, made: Mapping[str, str], uses: Sequence[DataUse]) -> Job:
    """The job with datasets, by their reference, instead of paths. A single file stays a file: its dataset is a
    folder."""
    data = dict(job.data)
    for use in uses:
        if use.name in made:
            given, path = data[use.name], Path(use.where)
            file = None if path.is_dir() else path.name
            data[use.name] = DataInput(dataset=made[use.name], file=file, at=given.at, mode=given.mode)
    return replace(job, data=data)


def _move(job: Job, use: DataUse, datasets: Datasets) -> DataMove:
    name = dataset_name(job, use.name)
    try:
        newest = datasets.show(name)
    except NotFound:
        return DataMove(use, name)
    return DataMove(use, name, (newest.files, newest.size_bytes) == (use.files, use.size_bytes))
