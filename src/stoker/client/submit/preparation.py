"""Everything that a submission needs and that requires no server: code, data, software and secrets."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from stoker.client.data import marks
from stoker.client.data.marks import DataUse
from stoker.client.settings import ClientSettings
from stoker.client.software.packages import packages_of
from stoker.client.source import screening
from stoker.client.source.secretvalues import sure_kind
from stoker.client.source.tree import SourceTree, scan
from stoker.client.submit import checks
from stoker.client.submit.git import GitLook
from stoker.client.submit.variables import EnvFile, FromShell, read_env_file, take
from stoker.errors import BadInput, JobInvalid, Problem
from stoker.model.job.checkpointpaths import is_folder
from stoker.model.job.job import Job
from stoker.model.job.software import is_ours
from stoker.model.job.submission import Submission
from stoker.model.snapshot import EntryKind, Snapshot

if TYPE_CHECKING:
    from stoker.client.software.taking import Along

LAND_IN = "outputs"  # next to the job file


class Prepared(NamedTuple):
    """A submission without its key and name. The job includes the variables taken from the shell."""

    job: Job
    tree: SourceTree
    left_out: tuple[str, ...]
    git: GitLook
    data: tuple[DataUse, ...]
    secrets: Mapping[str, str]
    land_in: str
    from_file: tuple[str, ...]  # names of variables from `env_file`
    taken: FromShell  # from the shell
    elsewhere: bool = False  # its nodes do not share the files of this computer
    along: Along | None = None  # packages of the submitting Python

    def submission(self, key: str, name: str, settings: ClientSettings) -> Submission:
        return Submission(
            key=key,
            job=self.job,
            snapshot=self.tree.snapshot.id,
            python=settings.python,
            person=settings.person,
            name=name,
            data={use.name: use.where for use in self.data if use.local},
            data_marks={use.name: use.mark for use in self.data if use.mark},
            packages=packages_here(self.job, settings.python, elsewhere=self.elsewhere),
            software=self.along.software if self.along else None,
            git=self.git.facts(),
            land_in=self.land_in,
            here=self.taken.here if settings.local else {},
            secrets=self.secrets,
        )


def prepare(job: Job, folder: Path, settings: ClientSettings, *, elsewhere: bool = False) -> Prepared:
    """`elsewhere`: its nodes do not share the files of this computer. Raises JobInvalid, SnapshotRefused or BadInput if
    something that the job names does not exist."""
    folder = folder.absolute()
    source = Path(os.path.normpath(folder / Path(job.source).expanduser()))
    _check_source(job, source)
    job = _with_folders(job, source)
    git = GitLook(source)
    data = marks.look(job, folder)
    from_file = _env_file(job, folder, settings)
    secrets = secrets_of(job, settings, from_file.secrets)
    taken = take(settings.shell, {*job.env, *from_file.variables}, job.secrets, source)
    land_in = folder / LAND_IN
    read_there = dict(_given_by_path(job, data))
    filed = [_env_path(job, folder)] if from_file.secrets else []  # secrets in it are not uploaded
    left_out = _left_out(job, source, [land_in, *read_there.values(), *filed])
    job = _with_places(job, source, read_there)
    _check_no_secret(job)
    tree = scan(source, index=index_of(settings, source), exclude=left_out, needed=_named_by(job))
    screening.check(tree.findings)
    _check_taken_along(job, tree.snapshot)
    checks.check(job, tree)
    job = replace(job, env={**taken.everywhere, **from_file.variables, **job.env})
    along = None
    if elsewhere and _gets_python(job):
        from stoker.client.software import taking  # not needed for a run on this computer

        along = taking.take(job, tree, settings)
        tree = tree.with_files(taking.files(along, settings.home.software), is_ours)
    place = str(land_in) if settings.local else ""
    given = tuple(from_file.variables)
    return Prepared(job, tree, left_out, git, data, secrets, place, given, taken, elsewhere, along)


def packages_here(job: Job, python: str, *, elsewhere: bool) -> dict[str, str]:
    """The environment of the run, if that is the unchanged submitting Python. Otherwise its node reports it."""
    wanted = job.environment
    own = wanted.requirements or wanted.image or wanted.dockerfile or wanted.python
    return {} if elsewhere or own else packages_of(python)


def _gets_python(job: Job) -> bool:
    """Its nodes get a Python like the submitting one."""
    wanted = job.environment
    return wanted.is_taken_along or bool(wanted.requirements and "/" not in (wanted.python or ""))


def _env_file(job: Job, folder: Path, settings: ClientSettings) -> EnvFile:
    if not job.env_file:
        return EnvFile()
    return read_env_file(_env_path(job, folder), job.secrets, settings.shell)


def _env_path(job: Job, folder: Path) -> Path:
    return Path(os.path.normpath(folder / Path(job.env_file or "").expanduser()))


def secrets_of(job: Job, settings: ClientSettings, filed: Mapping[str, str] | None = None) -> dict[str, str]:
    """The values of the job's secrets; `filed` are those in its `env_file`. Raises BadInput with the names of those
    that the environment lacks."""
    found = {name: settings.variable(name) or (filed or {}).get(name) for name in job.secrets}
    missing = [name for name, value in found.items() if value is None]
    if missing:
        names = ", ".join(f"`{name}`" for name in missing)
        what = "secret" if len(missing) == 1 else "secrets"
        raise BadInput(f"the {what} {names} of the job not found in the environment", hint=f"export {missing[0]}=…")
    return {name: value for name, value in found.items() if value is not None}


def _check_source(job: Job, source: Path) -> None:
    if not source.is_dir():
        found = f"`{job.source}`" + (", which is a file" if source.exists() else "")
        raise JobInvalid([Problem("source", found, f"a folder; {source} is not one")])


def _with_folders(job: Job, source: Path) -> Job:
    """A checkpoint whose name looks like a file, and that is a folder here, counts as a folder."""
    kept = tuple(f"{one}/" if not is_folder(one) and (source / one).is_dir() else one for one in job.checkpoints)
    return job if kept == job.checkpoints else replace(job, checkpoints=kept)


def _left_out(job: Job, source: Path, folders: Iterable[Path]) -> tuple[str, ...]:
    """Products of a run are not part of its code: it would use stale checkpoints as its own, and every run would upload
    the outputs of earlier ones."""
    inside = [folder for folder in folders if source in folder.parents]
    kept = [one.rstrip("/") for one in job.checkpoints if not checks.is_source(job, source, one)]
    own = [job.outputs, *kept, *(folder.relative_to(source).as_posix() for folder in inside)]
    return tuple(dict.fromkeys(own))


def _given_by_path(job: Job, data: Iterable[DataUse]) -> Iterator[tuple[str, Path]]:
    """Data folders that the command names, or that exist by themselves: they are read in place."""
    for use in data:
        told = f"${{data.{use.name}}}" in job.run or job.data[use.name].at
        if use.local and told and Path(use.where).is_dir():
            yield use.name, Path(use.where)


def _with_places(job: Job, source: Path, folders: Mapping[str, Path]) -> Job:
    """A folder that is excluded from the code is still found in its place: scripts may contain its path, too. Not one
    among the products of runs, such as the outputs of an earlier run."""
    data = dict(job.data)
    written = [PurePosixPath(one) for one in (job.outputs, LAND_IN, *job.checkpoints)]
    for name, folder in folders.items():
        if source in folder.parents and not data[name].at:
            place = PurePosixPath(folder.relative_to(source).as_posix())
            if not any(place.is_relative_to(one) or one.is_relative_to(place) for one in written):
                data[name] = replace(data[name], at=str(place))
    return job if data == dict(job.data) else replace(job, data=data)


def _check_taken_along(job: Job, snapshot: Snapshot) -> None:
    """The files that the job names must be part of the code, or the run would fail later."""
    named = {"requirements": job.environment.requirements, "dockerfile": job.environment.dockerfile}
    paths = {entry.path for entry in snapshot.entries if entry.kind is not EntryKind.FOLDER}
    problems = [
        Problem(f"environment.{field}", f"`{path}`", f"a file in `{job.source}` that no ignore file excludes")
        for field, path in named.items()
        if path and str(PurePosixPath(path)) not in paths
    ]
    if problems:
        raise JobInvalid(problems)


def _named_by(job: Job) -> set[str]:
    """Paths that may be files of the source which the run requires."""
    try:
        words = shlex.split(job.run)
    except ValueError:  # for a shell of another kind
        words = job.run.split()
    named = [*words, job.environment.requirements, job.environment.dockerfile]
    return {str(PurePosixPath(word)) for word in named if word}


def _check_no_secret(job: Job) -> None:
    """The content of the job is stored: only the names under `secrets` are stored without their values."""
    texts = {"run": job.run, **{f"env.{name}": value for name, value in job.env.items()}}
    problems = [
        Problem(field, f"a secret ({kind})", "a variable's name under `secrets`, with its value in your environment")
        for field, text in texts.items()
        if (kind := sure_kind(text))
    ]
    if problems:
        raise JobInvalid(problems)


def index_of(settings: ClientSettings, source: Path) -> Path:
    """One per source folder, so that two projects do not overwrite each other's."""
    return settings.home.trees / hashlib.sha256(os.fsencode(source)).hexdigest()[:32]
