"""Creates a run: uploads the code that the server lacks, then submits the job. All steps may be repeated. A rerun can
have the environment that an old run really had, whatever its job asked for."""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from stoker.client.api.connection import Connection
from stoker.client.data import marks
from stoker.client.data.marks import DataUse
from stoker.client.settings import ClientSettings
from stoker.client.software.environments import freeze
from stoker.client.software.packages import PYTHON
from stoker.client.source import screening
from stoker.client.source.tree import SourceTree
from stoker.client.submit.preparation import Prepared, packages_here, prepare, secrets_of, unmet_ranks
from stoker.errors import BadInput, Conflict, Corrupt, JobInvalid, NotFound, Problem, ServerUnavailable, SnapshotRefused
from stoker.model import wire
from stoker.model.cause import Cause
from stoker.model.job.job import THIS_COMPUTER, Environment, Job
from stoker.model.job.sections import LOCK, OWN_IMAGES
from stoker.model.orders import Terminal
from stoker.model.run.run import Run, Submission
from stoker.model.run.sweep import SweepState
from stoker.model.snapshot import Entry, Snapshot
from stoker.stores.trees.blobstream import blob_stream

T = TypeVar("T")
Progress = Callable[[int, int], None]  # bytes sent, bytes to send
Notice = Callable[[str], None]  # a line for a person

_TRIES = 3
_MANY_S = 300.0  # for the answer to a hundred thousand trials
_LARGE_BYTES = 100_000_000  # of code: reported before the upload


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a submission says besides its job."""

    name: str = ""  # of the run; empty: `<job name>-<n>`
    store: str = ""  # of the run; empty: the workspace's
    terminal: Terminal | None = None
    datasets: Mapping[str, str] = field(default_factory=dict)  # they replace local data, by the names of inputs


def submit(
    job: Job,
    folder: Path,
    settings: ClientSettings,
    connection: Connection,
    options: RunOptions | None = None,
    *,
    progress: Progress | None = None,
    notice: Notice = lambda _: None,
) -> Run:
    """Uploads the code that the server lacks, then submits the job. `progress` is called for every chunk. `notice`
    receives, once, messages about secrets that are not uploaded, and about large code."""
    if job.matrix:
        hint = "`Client.sweep` submits its trials"
        raise BadInput("a job with a `matrix` is a sweep of many runs", hint=hint, cause=Cause.IS_A_SWEEP)
    return _sent(job, folder, settings, connection, options or RunOptions(), _post, progress, notice)


def submit_sweep(
    job: Job,
    folder: Path,
    settings: ClientSettings,
    connection: Connection,
    options: RunOptions | None = None,
    *,
    progress: Progress | None = None,
    notice: Notice = lambda _: None,
) -> SweepState:
    """The same for a job with a `matrix`: all of its trials, with one upload and one request."""
    if not job.matrix:
        raise JobInvalid([Problem("matrix", "nothing", "the values of the trials, as `{lr: [1e-3, 1e-2]}`")])
    return _sent(job, folder, settings, connection, options or RunOptions(), _post_sweep, progress, notice)


def _sent(
    job: Job,
    folder: Path,
    settings: ClientSettings,
    connection: Connection,
    options: RunOptions,
    post: Callable[[Submission, Connection], T],
    progress: Progress | None,
    notice: Notice,
) -> T:
    key, told, elsewhere = os.urandom(16).hex(), False, is_elsewhere(job, connection)
    for _ in range(_TRIES):
        prepared = prepare(job, folder, settings, elsewhere=elsewhere)
        hear: Notice = (lambda _: None) if told else notice
        for line in _worth_knowing(prepared):
            hear(line)
        told = True
        try:
            _send(prepared.tree, connection, progress, options.store, hear)
            submission = prepared.submission(key, options.name, settings)
            submission = replace(submission, store=options.store, terminal=options.terminal)
            return post(_moved(submission, options.datasets, prepared.data), connection)
        except (Corrupt, SnapshotRefused, NotFound) as error:
            failed = error  # a file changed during the upload: retry
    raise failed


@dataclass(frozen=True, slots=True)
class Again:
    """How an old run is run again."""

    job: Job  # the old run's job, or a changed one
    from_checkpoint: bool = False  # it starts from the old run's last checkpoint
    resumes: bool = False  # the same, and it continues that run instead of repeating it


def submit_again(
    old: Run, again: Again, settings: ClientSettings, connection: Connection, *, name: str = "", store: str = ""
) -> Run:
    """With the exact snapshot, software and data of an old run; secrets come from the environment again."""
    uses = [_used_again(name, path) for name, path in old.data.items()]
    elsewhere = is_elsewhere(again.job, connection)
    submission = Submission(
        key=os.urandom(16).hex(),
        job=again.job,
        snapshot=old.snapshot,
        python=old.python,
        person=settings.person,
        data=dict(old.data),
        pins={name: order.dataset or order.id for name, order in old.inputs.items() if order.id},
        data_marks={use.name: use.mark for use in uses if use.mark},
        packages=packages_here(again.job, old.python, elsewhere=elsewhere),
        software=old.software if elsewhere else None,
        lock=old.lock,
        git=old.git,
        name=name,
        rerun_of="" if again.resumes else old.name,
        start_from=old.name if again.resumes or again.from_checkpoint else "",
        resumes=again.resumes,
        store=store,
        land_in=old.land_in if settings.local else "",
        here={name: old.here[name] for name in old.here if settings.local and name not in again.job.secrets},
        secrets=secrets_of(again.job, settings),
    )
    return _post(submission, connection)


def _moved(submission: Submission, datasets: Mapping[str, str], uses: Sequence[DataUse]) -> Submission:
    if not datasets:
        return submission
    from stoker.client.data.datasets import moved  # needed only for local data

    paths = {name: path for name, path in submission.data.items() if name not in datasets}
    return replace(submission, job=moved(submission.job, datasets, uses), data=paths)


def is_elsewhere(job: Job, connection: Connection) -> bool:
    """The job's nodes do not share the files of this computer. For a local run the server is not asked."""
    if job.on == THIS_COMPUTER:
        return False
    try:
        told = connection.get(f"/v1/providers/{quote(job.on, safe='')}")
    except NotFound:
        return False  # the submission reports it
    return not told["shares_files"]


def _worth_knowing(prepared: Prepared) -> list[str]:
    return [*screening.lines(prepared.tree.findings), *prepared.notes, *unmet_ranks(prepared.job)]


def job_again(old: Run) -> Job:
    """The job of an old run, to run it again. Keeping the node of a failed run applies only to the run it was requested
    for."""
    return replace(old.job, keep_failed=None, search=None, on=old.place)


def register(snapshot: Snapshot, connection: Connection, *, store: str = "") -> list[str]:
    """The hashes of what the server lacks; once it lacks nothing, it keeps the snapshot."""
    missing: list[str] = connection.post(f"/v1/snapshots{_in(store)}", wire.to_plain(snapshot))["missing"]
    return missing


def lacked(snapshot: Snapshot, connection: Connection) -> list[str]:
    """The hashes of what the server lacks. It is only asked, and remembers nothing."""
    hashes = sorted({entry.sha256 for entry in snapshot.entries if entry.sha256})
    missing: list[str] = connection.post("/v1/blobs/missing", {"hashes": hashes})["missing"]
    return missing


def large(snapshot: Snapshot, new: Mapping[str, int]) -> list[str]:
    """Hundreds of megabytes are rarely code."""
    if sum(new.values()) < _LARGE_BYTES:
        return []
    largest = sorted((entry for entry in snapshot.entries if entry.sha256 in new), key=lambda one: -one.size_bytes)[:3]
    names = ", ".join(f"`{one.path}` ({one.size_bytes / 1e6:.0f} MB)" for one in largest)
    total = sum(new.values()) / 1e6
    return [f"uploading {total:.0f} MB as code: {names}; list data under `data`, or exclude it in .stokerignore"]


def _send(tree: SourceTree, connection: Connection, progress: Progress | None, store: str, notice: Notice) -> None:
    for number in range(_TRIES):
        missing = register(tree.snapshot, connection, store=store)
        if not missing:
            return
        new = _sizes(tree.snapshot.entries, missing)
        for line in large(tree.snapshot, new) if not number else ():
            notice(line)
        total = sum(new.values())
        with suppress(ServerUnavailable):  # restarted during the upload: the rest is still missing
            connection.upload(f"/v1/blobs{_in(store)}", _told(tree.stream(missing), total, progress))
    raise ServerUnavailable("the code could not be uploaded: the connection broke every time", hint="retry")


def _in(store: str) -> str:
    return f"?store={quote(store, safe='')}" if store else ""


def _sizes(entries: Iterable[Entry], missing: Iterable[str]) -> dict[str, int]:
    wanted = set(missing)
    return {entry.sha256: entry.size_bytes for entry in entries if entry.sha256 in wanted}


def _told(chunks: Iterable[bytes], total: int, progress: Progress | None) -> Iterator[bytes]:
    sent = 0
    for chunk in chunks:
        yield chunk
        sent += len(chunk)
        if progress:
            progress(min(sent, total), total)


def _post(submission: Submission, connection: Connection) -> Run:
    """May be sent twice: the key makes it one run."""
    return wire.from_plain(Run, connection.post("/v1/runs", wire.to_plain(submission)))


def _post_sweep(submission: Submission, connection: Connection) -> SweepState:
    told = connection.post("/v1/sweeps", wire.to_plain(submission), timeout_s=_MANY_S)
    return wire.from_plain(SweepState, told)


def _used_again(name: str, path: str) -> DataUse:
    try:
        return marks.look_again(name, path)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BadInput(f"data `{name}` of that run not found at {path}: {reason}") from error


def exactly(old: Run, again: Again, connection: Connection, settings: ClientSettings) -> tuple[Run, Again]:
    """The old run with a snapshot whose lock is what its node had, and the job that installs it, with the same
    Python; of a run in a container, the job with the same image."""
    if old.job.environment.contained:
        return old, replace(again, job=replace(again.job, environment=_same_image(old)))
    version = old.packages.get(PYTHON, "")
    if not version:
        raise Conflict(
            f"it is unknown which packages the node of `{old.name}` had",
            hint=f"without them: `stoker rerun {old.name}`",
            cause=Cause.PACKAGES_UNKNOWN,
        )
    wanted = again.job.environment
    fixed = bool(old.lock or (old.software and old.software.packages) or _is_lock(wanted.requirements or ""))
    if fixed:
        named = wanted.python if "/" in (wanted.python or "") else version
        return old, replace(again, job=replace(again.job, environment=replace(wanted, python=named)))
    lock = freeze(old, connection, settings).text
    snapshot = _with_file(old, LOCK, lock.encode(), connection)
    environment = replace(wanted, requirements=LOCK, python=version)
    sha256 = hashlib.sha256(lock.encode()).hexdigest()
    return replace(old, snapshot=snapshot, lock=sha256), replace(again, job=replace(again.job, environment=environment))


def _same_image(old: Run) -> Environment:
    """By what tells it from all others: not what its tag or its Dockerfile means today."""
    if not old.image:
        raise Conflict(
            f"it is unknown which image `{old.name}` had: its script has not started",
            hint=f"without it: `stoker rerun {old.name}`",
            cause=Cause.PACKAGES_UNKNOWN,
        )
    wanted = old.job.environment
    named = wanted.registry or wanted.image or OWN_IMAGES
    repository = named.partition("@")[0]
    if ":" in repository.rpartition("/")[2]:
        repository = repository.rpartition(":")[0]
    return Environment(image=f"{repository}@{old.image}", login=wanted.login)


def _is_lock(name: str) -> bool:
    return name.endswith("uv.lock") or bool(re.search(r"pylock(\..+)?\.toml$", name))


def _with_file(old: Run, path: str, data: bytes, connection: Connection) -> str:
    """The id of the snapshot of a run with one more file, uploaded."""
    before = wire.from_plain(Snapshot, connection.get(f"/v1/snapshots/{old.snapshot}"))
    entry = Entry(path, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
    snapshot = Snapshot((*(one for one in before.entries if one.path != path), entry))
    missing = register(snapshot, connection, store=old.store)
    if missing:
        connection.upload(
            f"/v1/blobs?store={quote(old.store, safe='')}",
            blob_stream([(entry.sha256, len(data), lambda: io.BytesIO(data))]),
        )
        register(snapshot, connection, store=old.store)
    return snapshot.id
