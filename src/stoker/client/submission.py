"""Making a run: first the plan, a value that says exactly what would happen, then the deed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from stoker.client import datamark
from stoker.client.connection import Connection
from stoker.client.datamark import DataUse
from stoker.client.git import GitLook
from stoker.client.packages import packages_of
from stoker.client.settings import Settings
from stoker.client.tree import Tree, scan
from stoker.errors import BadInput, Corrupt, JobInvalid, NotFound, Problem, ServerUnavailable, SnapshotRefused
from stoker.model import wire
from stoker.model.job import Job, references
from stoker.model.node import Offer
from stoker.model.run import Run
from stoker.model.snapshot import Entry, EntryKind, Git, Snapshot
from stoker.model.submission import Submission

Progress = Callable[[int, int], None]  # bytes sent, bytes to send

LAND_IN = "outputs"  # beside the job file
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """What a submission would do, and nothing done yet."""

    job: Job
    source: Path
    snapshot: Snapshot
    left_out: tuple[str, ...]  # folders of the source that a run makes itself, and so are not taken along
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
    free: int | None  # nodes that could be had now; None: unknown
    queued_ahead: int

    @property
    def files(self) -> int:
        return sum(entry.kind is EntryKind.FILE for entry in self.snapshot.entries)

    @property
    def size_bytes(self) -> int:
        return self.snapshot.size_bytes

    def plain(self) -> dict[str, Any]:
        """As JSON shows it: the snapshot as its id and counts."""
        told = {
            name: wire.to_plain(getattr(self, name)) for name in self.__slots__ if name not in ("source", "snapshot")
        }
        return told | {
            "source": str(self.source),
            "snapshot": self.snapshot.id,
            "files": self.files,
            "size_bytes": self.size_bytes,
        }


def plan(job: Job, folder: Path, settings: Settings, connection: Connection) -> Plan:
    """Looks, asks, and changes nothing. Raises what `submit` would: JobInvalid, SnapshotRefused, BadInput."""
    prepared = _prepare(job, folder, settings)
    answer = connection.post("/v1/plan", {"job": job.plain()})
    missing = set(_register(prepared.tree.snapshot, connection))
    new = {entry.sha256: entry.size_bytes for entry in prepared.tree.snapshot.entries if entry.sha256 in missing}
    return Plan(
        job=job,
        source=prepared.tree.root,
        snapshot=prepared.tree.snapshot,
        left_out=tuple(path for path in prepared.left_out if (prepared.tree.root / path).exists()),
        new_files=len(new),
        new_bytes=sum(new.values()),
        git=prepared.git.facts(),
        python=settings.python,
        environment=_environment(job, settings.python),
        data=prepared.data,
        command=job.run,
        meanings=_meanings(job, prepared.data),
        secrets=tuple(prepared.secrets),
        land_in=prepared.land_in,
        offer=wire.from_plain(Offer, answer["offer"]) if answer.get("offer") else None,
        free=answer.get("free"),
        queued_ahead=answer.get("queued_ahead") or 0,
    )


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
    key = os.urandom(16).hex()
    for _ in range(_TRIES):
        prepared = _prepare(job, folder, settings)
        try:
            _send(prepared.tree, connection, progress)
            return _post(prepared.submission(key, name, settings), connection)
        except (Corrupt, SnapshotRefused, NotFound) as error:
            failed = error  # a file changed under the upload: look again
    raise failed


def submit_again(old: Run, settings: Settings, connection: Connection) -> Run:
    """The very snapshot, software, data and command of an old run; secrets come from the environment again."""
    uses = [_used_again(name, path) for name, path in old.data.items()]
    submission = Submission(
        key=os.urandom(16).hex(),
        job=old.job,
        snapshot=old.snapshot,
        python=old.python,
        person=settings.person,
        data=dict(old.data),
        data_marks={use.name: use.mark for use in uses if use.mark},
        packages=packages_of(old.python),
        git=old.git,
        rerun_of=old.name,
        land_in=old.land_in if settings.local else "",
        secrets=_secrets(old.job, settings),
    )
    return _post(submission, connection)


@dataclass(frozen=True, slots=True)
class _Prepared:
    job: Job
    tree: Tree
    left_out: tuple[str, ...]
    git: GitLook
    data: tuple[DataUse, ...]
    secrets: Mapping[str, str]
    land_in: str

    def submission(self, key: str, name: str, settings: Settings) -> Submission:
        return Submission(
            key=key,
            job=self.job,
            snapshot=self.tree.snapshot.id,
            python=settings.python,
            person=settings.person,
            name=name,
            data={use.name: use.where for use in self.data if not use.where.startswith("dataset ")},
            data_marks={use.name: use.mark for use in self.data if use.mark},
            packages=packages_of(settings.python),
            git=self.git.facts(),
            land_in=self.land_in,
            secrets=self.secrets,
        )


def _prepare(job: Job, folder: Path, settings: Settings) -> _Prepared:
    """Everything that can be found out without the server."""
    folder = folder.absolute()
    source = Path(os.path.normpath(folder / Path(job.source).expanduser()))
    _check_source(job, source)
    git = GitLook(source)
    data = datamark.look(job, folder)
    secrets = _secrets(job, settings)
    land_in = folder / LAND_IN
    left_out = _left_out(job, source, land_in)
    tree = scan(source, index=_index(settings, source), exclude=left_out)
    _check_taken_along(job, tree.snapshot)
    return _Prepared(job, tree, left_out, git, data, secrets, str(land_in) if settings.local else "")


def _check_source(job: Job, source: Path) -> None:
    if not source.is_dir():
        found = f"`{job.source}`" + (", which is a file" if source.exists() else "")
        raise JobInvalid([Problem("source", found, f"a folder; {source} is none")])


def _left_out(job: Job, source: Path, land_in: Path) -> tuple[str, ...]:
    """What a run makes is not part of its code: stale checkpoints would be taken for its own, and every run would
    carry the outputs of those before it."""
    own = [job.outputs, *job.checkpoints]
    if land_in.is_relative_to(source):
        own.append(land_in.relative_to(source).as_posix())
    return tuple(dict.fromkeys(own))


def _check_taken_along(job: Job, snapshot: Snapshot) -> None:
    """The files the job names must be part of the code, or the run would fail where nobody is looking."""
    named = {"requirements": job.environment.requirements, "dockerfile": job.environment.dockerfile}
    paths = {entry.path for entry in snapshot.entries if entry.kind is not EntryKind.FOLDER}
    problems = [
        Problem(f"environment.{field}", f"`{path}`", f"a file in `{job.source}` that no ignore file leaves out")
        for field, path in named.items()
        if path and str(PurePosixPath(path)) not in paths
    ]
    if problems:
        raise JobInvalid(problems)


def _secrets(job: Job, settings: Settings) -> dict[str, str]:
    found = {name: settings.variable(name) for name in job.secrets}
    missing = [name for name, value in found.items() if value is None]
    if missing:
        names = ", ".join(f"`{name}`" for name in missing)
        what = "secret" if len(missing) == 1 else "secrets"
        raise BadInput(
            f"the {what} {names} of the job cannot be found in the environment", hint=f"export {missing[0]}=…"
        )
    return {name: value for name, value in found.items() if value is not None}


def _index(settings: Settings, source: Path) -> Path:
    """One per source folder, so that two projects do not make each other forget."""
    return settings.home.trees / hashlib.sha256(os.fsencode(source)).hexdigest()[:32]


def _environment(job: Job, python: str) -> str:
    wanted = job.environment
    if wanted.image:
        return f"the image {wanted.image}"
    if wanted.dockerfile:
        return f"an image built from {wanted.dockerfile}"
    interpreter = wanted.python or python
    return f"{interpreter} with {wanted.requirements}" if wanted.requirements else f"{interpreter} as it is"


def _meanings(job: Job, data: Iterable[DataUse]) -> dict[str, str]:
    folders = {"outputs": job.outputs, "checkpoints": next(iter(job.checkpoints), "checkpoints")}
    known = {name: f"the run's own folder `{path}`" for name, path in folders.items()}
    known |= {f"data.{use.name}": use.where for use in data}
    return {name: known[name] for name in references(job) if f"${{{name}}}" in job.run}


def _used_again(name: str, path: str) -> DataUse:
    if datamark.is_url(path):
        return DataUse(name, path)
    try:
        return datamark.look_again(name, path)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BadInput(f"the data `{name}` of that run is no longer at {path}: {reason}") from error


def _register(snapshot: Snapshot, connection: Connection) -> list[str]:
    missing: list[str] = connection.post("/v1/snapshots", wire.to_plain(snapshot))["missing"]
    return missing


def _send(tree: Tree, connection: Connection, progress: Progress | None) -> None:
    for _ in range(_TRIES):
        missing = _register(tree.snapshot, connection)
        if not missing:
            return
        total = sum(_sizes(tree.snapshot.entries, missing))
        with suppress(ServerUnavailable):  # restarted in the middle: what has not arrived is still missing
            connection.upload("/v1/blobs", _told(tree.stream(missing), total, progress))
    raise ServerUnavailable("the code could not be sent: the connection broke every time", hint="try again")


def _sizes(entries: Iterable[Entry], missing: Iterable[str]) -> Iterator[int]:
    wanted = set(missing)
    return iter({entry.sha256: entry.size_bytes for entry in entries if entry.sha256 in wanted}.values())


def _told(chunks: Iterable[bytes], total: int, progress: Progress | None) -> Iterator[bytes]:
    sent = 0
    for chunk in chunks:
        yield chunk
        sent += len(chunk)
        if progress:
            progress(min(sent, total), total)


def _post(submission: Submission, connection: Connection) -> Run:
    """May be sent twice: the key makes one run of it."""
    return wire.from_plain(Run, connection.post("/v1/runs", wire.to_plain(submission)))
