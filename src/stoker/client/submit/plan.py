"""The plan: a value that describes exactly what a submission would do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.client.api.connection import Connection
from stoker.client.data.marks import DataUse
from stoker.client.script import opened
from stoker.client.settings import ClientSettings
from stoker.client.source.screening import SecretFinding
from stoker.client.submit.preparation import prepare, unmet_ranks
from stoker.client.submit.sending import is_elsewhere, lacked, large
from stoker.model import wire
from stoker.model.job.job import Job
from stoker.model.job.references import references
from stoker.model.job.sections import CheckpointPaths
from stoker.model.node import Offer
from stoker.model.orders import DataOrder
from stoker.model.snapshot import EntryKind, Git, Snapshot

if TYPE_CHECKING:
    from stoker.client.software.taking import Along

_MOST_NAMED = 6


@dataclass(frozen=True, slots=True)
class Plan:
    """What a submission would do; nothing is done."""

    job: Job
    source: Path
    snapshot: Snapshot
    left_out: tuple[str, ...]  # folders of the source that are not uploaded: products of runs, and data read in place
    new_files: int  # those the server lacks
    new_bytes: int
    git: Git | None
    python: str
    environment: str  # the software of the run, as text
    packages: tuple[str, ...]  # packages of the submitting Python, as requirement lines for the machine
    data: tuple[DataUse, ...]
    command: str  # as in the job
    meanings: Mapping[str, str]  # the value of each `${…}` in the command, by the name inside the braces
    secrets: tuple[str, ...]  # names only
    taken: Mapping[str, str]  # variables taken from the shell
    from_file: tuple[str, ...]  # names of variables from `env_file`
    land_in: str  # empty: the client fetches
    offer: Offer | None
    free: int | None  # nodes available now; None: unknown
    queued_ahead: int
    alone: str = ""  # what happens to the run while this computer is off
    notes: tuple[str, ...] = ()  # settings of the job without effect there
    findings: tuple[SecretFinding, ...] = ()  # secrets in the source, and whether they would be uploaded
    to_store: tuple[
        str, ...
    ] = ()  # inputs that are uploaded to the store first, because the machines cannot read them here

    @property
    def files(self) -> int:
        return sum(entry.kind is EntryKind.FILE for entry in self.snapshot.entries)

    @property
    def size_bytes(self) -> int:
        return self.snapshot.size_bytes

    def plain(self) -> dict[str, Any]:
        """For JSON: the snapshot as its id and counts."""
        told = {
            name: wire.to_plain(getattr(self, name)) for name in self.__slots__ if name not in ("source", "snapshot")
        }
        return told | {
            "source": str(self.source),
            "snapshot": self.snapshot.id,
            "files": self.files,
            "size_bytes": self.size_bytes,
        }


def plan(job: Job, folder: Path, settings: ClientSettings, connection: Connection) -> Plan:
    """Checks and queries, and changes nothing. Raises what `submit` would: JobInvalid, SnapshotRefused, BadInput."""
    elsewhere = is_elsewhere(job, connection)
    prepared = prepare(job, folder, settings, elsewhere=elsewhere)
    asked = {"job": job.plain(), "person": settings.person, "locked": bool(prepared.lock and prepared.lock.text)}
    answer = connection.post("/v1/plan", asked)
    here = settings.local and not elsewhere
    data = tuple(_pinned(use, answer.get("inputs", {})) for use in prepared.data)
    missing = set(lacked(prepared.tree.snapshot, connection))
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
        environment=_environment(job, settings.python, prepared.along),
        packages=prepared.along.lines if prepared.along else (),
        data=data,
        command=job.run,
        meanings=_meanings(job, data),
        secrets=tuple(prepared.secrets),
        taken={**prepared.taken.everywhere, **(prepared.taken.here if here else {})},
        from_file=prepared.from_file,
        land_in=prepared.land_in,
        offer=wire.from_plain(Offer, answer["offer"]) if answer.get("offer") else None,
        free=answer.get("free"),
        queued_ahead=answer.get("queued_ahead") or 0,
        alone=str(answer.get("alone", "")),
        notes=(
            *answer.get("notes", ()),
            *prepared.taken.notes,
            *unmet_ranks(job),
            *opened.missing(job, prepared.tree),
            *large(prepared.tree.snapshot, new),
            *prepared.notes,
        ),
        findings=prepared.tree.findings,
        to_store=tuple(answer.get("to_store", ())),
    )


def _pinned(use: DataUse, inputs: Mapping[str, Any]) -> DataUse:
    """With what the server knows of it: its current version and size."""
    if use.name not in inputs:
        return use
    order = wire.from_plain(DataOrder, inputs[use.name])
    return replace(use, where=order.label, files=order.files, size_bytes=order.size_bytes, counted=True)


def _environment(job: Job, python: str, taken: Along | None) -> str:
    wanted = job.environment
    if wanted.image:
        return f"the image {wanted.image}"
    if wanted.dockerfile:
        return f"an image built from {wanted.dockerfile}"
    if taken:
        return _installed(job, taken)
    interpreter = wanted.python or python
    return f"{interpreter} with {wanted.requirements}" if wanted.requirements else f"{interpreter}, unchanged"


def _installed(job: Job, taken: Along) -> str:
    """The software of a machine in a cloud."""
    own, named = taken.software, f"Python {taken.software.python}"
    if job.environment.requirements:
        return f"{named} with {job.environment.requirements}, installed on the machine"
    if not own.packages:
        return f"{named}; the script imports no other package"
    shown = ", ".join(taken.names[:_MOST_NAMED])
    more = f" and {own.packages - _MOST_NAMED} more" if own.packages > _MOST_NAMED else ""
    sent = ", ".join(sorted(Path(one).name for one in taken.wheels))
    amount = f"{_count(own.packages)}, {_about(own.size_bytes, least=taken.is_least)}"
    lines = [
        f"{named}, {amount}, installed on the machine: {shown}{more}",
        f"uploaded, because no index has it: {sent}" if sent else "",
        f"{_count(taken.left_out)} of this computer not included, because the script does not import them"
        if taken.left_out
        else "",
    ]
    return "\n".join(line for line in lines if line)


def _count(packages: int) -> str:
    return f"{packages} package{'s' if packages != 1 else ''}"


def _about(size_bytes: int, *, least: bool) -> str:
    word = "at least" if least else "about"
    return f"{word} {size_bytes / 1e6:,.0f} MB" if size_bytes > 1e6 or least else "less than 1 MB"


def _meanings(job: Job, data: Iterable[DataUse]) -> dict[str, str]:
    folders = {"outputs": job.outputs, "checkpoints": CheckpointPaths(job.checkpoints).folders[0]}
    known = {name: f"the run's own folder `{path}`" for name, path in folders.items()}
    known |= {f"data.{use.name}": use.where for use in data}
    known |= {f"matrix.{name}": "the trial's value" for name in (job.matrix.names if job.matrix else ())}
    known["resume"] = f"`{job.resume}` if there is a checkpoint to resume from; otherwise empty"
    return {name: known[name] for name in references(job) if f"${{{name}}}" in job.run}
