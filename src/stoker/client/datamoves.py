"""Data of this computer that a run elsewhere reads: put into the store first, as a version of a dataset."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from stoker.client import datamark
from stoker.client.connection import Connection
from stoker.client.data.datasets import Datasets
from stoker.client.datamark import DataUse
from stoker.client.progress import Progress
from stoker.errors import BadInput, NotFound
from stoker.model.job import DataInput, Job

ASSUMED_BYTES_PER_S = 10_000_000  # what a good line at home sends: the first guess, before anything is measured
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


Agree = Callable[[Sequence[DataMove]], Progress]  # raises where they are not to be made


def moves(job: Job, folder: Path, connection: Connection, datasets: Datasets) -> list[DataMove]:
    """What the job reads on this computer and its machines cannot. The server knows which machines can. Raises BadInput
    where it could not be where the script expects it: before it is sent, which may take long."""
    uses = {use.name: use for use in datamark.look(job, folder) if use.local}
    if not uses:
        return []
    wanted = connection.post("/v1/plan", {"job": job.plain()}).get("to_store", ())
    found = [uses[name] for name in wanted if name in uses]
    for use in found:
        _at(job.data[use.name], use)
    return [_move(job, use, datasets) for use in found]


def dataset_name(job: Job, name: str) -> str:
    """Of the experiment's own, so that nobody's dataset gets a version of something else."""
    return re.sub(r"[^a-z0-9._-]+", "-", f"{job.name}-{name}".lower())[:_LONGEST].strip("-._")


def moved(job: Job, made: Mapping[str, str], uses: Sequence[DataUse]) -> Job:
    """The job with datasets, by their reference, instead of paths."""
    data, run, resume = dict(job.data), job.run, job.resume
    for use in uses:
        if use.name not in made:
            continue
        given = data[use.name]
        if file := _file(use):  # a dataset is a folder, with this file in it
            told = f"${{data.{use.name}}}"
            run, resume = run.replace(told, f"{told}/{file}"), resume and resume.replace(told, f"{told}/{file}")
        data[use.name] = DataInput(dataset=made[use.name], at=_at(given, use), mode=given.mode)
    return replace(job, data=data, run=run, resume=resume)


def _file(use: DataUse) -> str:
    """Its name, where the input is a single file."""
    return "" if Path(use.where).is_dir() else Path(use.where).name


def _at(given: DataInput, use: DataUse) -> str | None:
    file = _file(use)
    return _folder_for(use, file, given.at) if file and given.at else given.at


def _folder_for(use: DataUse, file: str, at: str) -> str:
    place = PurePosixPath(at)
    if place.name != file or str(place.parent) in (".", "..", "../..", "../../.."):
        hint = f"put `{file}` into a folder of its own, and name that folder under `data`"
        raise BadInput(f"`{use.name}` is a single file, which cannot appear at `{at}` on another machine", hint=hint)
    return str(place.parent)


def _move(job: Job, use: DataUse, datasets: Datasets) -> DataMove:
    name = dataset_name(job, use.name)
    try:
        newest = datasets.show(name)
    except NotFound:
        return DataMove(use, name)
    return DataMove(use, name, (newest.files, newest.size_bytes) == (use.files, use.size_bytes))
