"""Everything that a submission needs and that requires no server: code, data, software, secrets, and checks."""

from __future__ import annotations

import hashlib
import os
import re
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
from stoker.client.submit.surroundings import EnvFile, FromShell, GitLook, read_env_file, take
from stoker.errors import BadInput, JobInvalid, Problem
from stoker.model.cause import Cause
from stoker.model.job.commandline import ShellCommand, commands
from stoker.model.job.fields import nearest
from stoker.model.job.job import Job, Launcher
from stoker.model.job.sections import is_folder, is_ours
from stoker.model.job.trials import sample
from stoker.model.run.run import Submission
from stoker.model.snapshot import EntryKind, Snapshot

if TYPE_CHECKING:
    from stoker.client.software.locking import Lock
    from stoker.client.software.taking import Along

_CODE = (".py", ".pyx", ".ipynb", ".sh", ".bash", ".toml", ".cfg", ".ini", ".yaml", ".yml", ".md", ".c", ".cpp", ".cu")
# These programs create no files; any other program may.
_HARMLESS = ("cd", "export", "set", "echo", "mkdir", "pip", "ulimit", "source", ".", "unset", "sleep", "date", "ls")


def check(job: Job, tree: SourceTree) -> None:
    """Raises JobInvalid if the script of the command does not exist, or a checkpoint is a file of the source."""
    problems = [*_missing_scripts(job, tree), *_sources_as_checkpoints(job, tree)]
    if problems:
        raise JobInvalid(problems)


def unmet_ranks(job: Job) -> list[str]:
    """A launcher in the command starts ranks that meet neither those of other nodes nor of the job's own launcher."""
    job = sample(job)
    several = job.most_nodes > 1 or job.processes != 1
    if not several and job.launcher in (Launcher.AUTO, Launcher.PLAIN):
        return []
    return [
        f"`{one.launcher}` in `run` starts its own ranks on each node, or for each process, and they do not meet those"
        " of the others: set `launcher: torchrun` and `processes`, and start the script with `python` in `run`"
        for one in commands(job.run)
        if one.launcher
    ][:1]


def is_source(job: Job, source: Path, path: str) -> bool:
    """Whether this file is code, or what the command starts: not something that a script would write."""
    if not (source / path).is_file():
        return False
    return path.endswith(_CODE) or any(command.script == path for command in commands(job.run))


def _sources_as_checkpoints(job: Job, tree: SourceTree) -> Iterator[Problem]:
    named = [*((one, one) for one in job.checkpoints), *(("", path) for path in tree.matched)]
    for pattern, path in named:
        if is_source(job, tree.root, path):
            found = (
                f"`{path}`, a file of your code" if pattern else f"a glob that matches `{path}`, a file of your code"
            )
            yield Problem("checkpoints", found, "what the script writes: a folder, a file or a glob")


def _missing_scripts(job: Job, tree: SourceTree) -> Iterator[Problem]:
    folder = ""
    known = {entry.path for entry in tree.snapshot.entries if entry.kind is not EntryKind.FOLDER}
    for command in commands(job.run):
        words = command.program
        if words[:1] == ("cd",):
            if len(words) != 2 or not _plain(words[1]):
                return
            folder = os.path.normpath(f"{folder}/{words[1]}" if folder else words[1])
            continue
        if words and (path := _needed(command, folder, known)):
            expected = _expected(tree.root, path, known)
            yield Problem("run", f"`{path}`", expected, _near(path, known))
            return
        if words and words[0] not in _HARMLESS and not command.trains:
            return


def _needed(command: ShellCommand, folder: str, known: set[str]) -> str:
    """What the command starts but the source lacks; empty if there is nothing, or it cannot be determined."""
    if _plain(command.script):
        path = os.path.normpath(f"{folder}/{command.script}" if folder else command.script)
        return "" if path in known or path.startswith("..") else path
    if re.fullmatch(r"[A-Za-z_][\w.]*", command.module):
        begin = f"{folder}/" if folder else ""
        package, *rest = command.module.split(".")
        ours = any(path.startswith(f"{begin}{package}/") for path in known)
        path = begin + "/".join([package, *rest])
        if ours and rest and not {f"{path}.py", f"{path}/__main__.py", f"{path}.so"} & known:
            return f"{path}.py"
    return ""


def _plain(path: str) -> bool:
    """Relative, and without shell expansions."""
    return bool(path) and not path.startswith(("/", "~", "-")) and not set(path) & set("$`*?[{")


def _expected(root: Path, path: str, known: set[str]) -> str:
    if (root / path).is_file():
        return f"a file that is uploaded: an ignore file excludes `{path}`"
    scripts = sorted(one for one in known if one.endswith(".py") and "/" not in one)[:5]
    return "a file in the source" + (f", such as {', '.join(f'`{one}`' for one in scripts)}" if scripts else "")


def _near(path: str, known: Iterable[str]) -> str:
    suffix = PurePosixPath(path).suffix
    alike = [one for one in known if one.endswith(suffix)][:2000]
    same = [one for one in alike if PurePosixPath(one).name == PurePosixPath(path).name]
    return same[0] if same else nearest(path, alike)


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
    lock: Lock | None = None  # of the file that `environment` names
    told: tuple[str, ...] = ()  # by the registries of images

    @property
    def notes(self) -> tuple[str, ...]:
        """What is worth knowing of the software."""
        return (*(self.along.notes if self.along else ()), *(self.lock.notes if self.lock else ()), *self.told)

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
            lock=self.lock.id if self.lock else "",
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
    check(job, tree)
    job = replace(job, env={**taken.everywhere, **from_file.variables, **job.env})
    along = None
    if elsewhere and _gets_python(job):
        from stoker.client.software import taking  # not needed for a run on this computer

        along = taking.take(job, tree, settings)
        tree = tree.with_files(taking.files(along, settings.home.software), is_ours)
    lock = None
    if job.environment.requirements:
        from stoker.client.software import locking  # not needed where no file is named

        lock = locking.lock(job, source, settings, elsewhere=elsewhere)
        tree = tree.with_files(locking.files(lock, settings.home.software), is_ours)
        if lock.named and not job.environment.python:
            job = replace(job, environment=replace(job.environment, python=lock.named))
    told: tuple[str, ...] = ()
    if elsewhere and job.environment.contained:
        from stoker.client.software.images import check_images  # not needed where no image is named

        told = check_images(job, source, settings, secrets)
    place = str(land_in) if settings.local else ""
    given = tuple(from_file.variables)
    return Prepared(job, tree, left_out, git, data, secrets, place, given, taken, elsewhere, along, lock, told)


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
        raise BadInput(
            f"the {what} {names} of the job not found in the environment",
            hint=f"export {missing[0]}=…",
            cause=Cause.VARIABLE_MISSING,
        )
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
    kept = [one.rstrip("/") for one in job.checkpoints if not is_source(job, source, one)]
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
    texts |= {f"environment.build_args.{name}": value for name, value in job.environment.build_args.items()}
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
