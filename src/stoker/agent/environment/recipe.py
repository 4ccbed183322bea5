"""What an environment is built from (a requirements, project or lock file, and all files it depends on), and its
identity: by content for every node, and by its folder on this one."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from stoker.agent.attempt.endings import AttemptBroken
from stoker.errors import Malformed
from stoker.model import untrusted
from stoker.model.cause import Cause
from stoker.model.environment import COMPLETE, HEAD_BYTES, ONLY_BUILDS, BuiltEnvironment
from stoker.model.job.sections import LIST, LOCK, WHEELS
from stoker.model.wire import dump


class EnvironmentKind(StrEnum):
    REQUIREMENTS = "requirements"  # requirements*.txt and the like
    PROJECT = "project"  # pyproject.toml, or a poetry.lock beside it
    CONDA = "conda"  # environment.yml
    UV_LOCK = "uv-lock"  # uv.lock beside a pyproject.toml
    PYLOCK = "pylock"  # pylock.toml
    TAKEN = "taken"  # packages of the Python that submitted the run


@dataclass(frozen=True, slots=True)
class Recipe:
    """`files` are all contents that matter, by path. `tied`: it installs code of the run itself, so the result serves
    only runs of the same code. `private`: it even refers to the working directory, so the result serves this run
    alone."""

    kind: EnvironmentKind
    file: Path
    files: Mapping[str, bytes]
    tied: bool = False
    private: bool = False
    listed: Path | None = None  # the lock to install from; None: the file itself

    @property
    def label(self) -> str:
        """How messages name it."""
        return "the packages of your environment" if self.kind is EnvironmentKind.TAKEN else f"`{self.file.name}`"

    def fingerprint(self, *others: str) -> str:
        """Identifies what is built from it. `others` is what it also depends on: interpreter, platform, settings."""
        found = hashlib.sha256(json.dumps([self.kind, *others]).encode())
        for name, content in sorted(self.files.items()):
            found.update(f"\0{name}\0{len(content)}\0".encode() + content)
        return found.hexdigest()[:32]


def read_recipe(work: Path, name: str, locked_for: Collection[str] = ()) -> Recipe:
    """`locked_for` is what a lock must be for, to count here. Raises Broken where the file is missing, or of an
    unsupported kind."""
    file = work / name
    if not file.is_file():
        hint = "is it excluded by `.gitignore` or `.stokerignore`?"
        raise AttemptBroken(
            f"`{name}`, the environment of this run, is not in its source", hint, cause=Cause.ENVIRONMENT_MISSING
        )
    kind = _kind(file)
    if locked_for and _head(work / LOCK) in locked_for:
        lock = work / LOCK
        return Recipe(kind, file, {LOCK: lock.read_bytes()}, listed=lock)
    if kind is EnvironmentKind.UV_LOCK:
        return _uv_lock(work, file.with_name("pyproject.toml"), file.with_name("uv.lock"))
    if file.name == "poetry.lock":
        raise AttemptBroken(
            f"`{name}` was not submitted with its packages for this machine",
            "submit it with the same version of Stoker, and set `environment.python`",
            cause=Cause.ENVIRONMENT_INVALID,
        )
    if kind is EnvironmentKind.REQUIREMENTS:
        return _requirements(work, file)
    local = kind is EnvironmentKind.PROJECT and _is_tied(file)
    return Recipe(kind, file, {name: file.read_bytes()}, local, local)


def _kind(file: Path) -> EnvironmentKind:
    if file.name == "uv.lock" or (file.name == "pyproject.toml" and file.with_name("uv.lock").is_file()):
        return EnvironmentKind.UV_LOCK
    if file.name in ("pyproject.toml", "poetry.lock"):
        return EnvironmentKind.PROJECT
    if re.fullmatch(r"pylock(\..+)?\.toml", file.name):
        return EnvironmentKind.PYLOCK
    return EnvironmentKind.CONDA if file.suffix in (".yml", ".yaml") else EnvironmentKind.REQUIREMENTS


def _head(lock: Path) -> str:
    """What a lock is for, by its first line; empty where there is none."""
    try:
        with lock.open(encoding="utf-8") as file:
            return file.readline().removeprefix("# ").strip()
    except OSError:
        return ""


def read_taken(work: Path) -> Recipe:
    """The list that was uploaded with the run, and its wheels. It serves every run with the same list."""
    listed = work / LIST
    wheels = sorted((listed.parent / WHEELS).glob("*.whl"))
    files = {file.relative_to(work).as_posix(): file.read_bytes() for file in (listed, *wheels)}
    return Recipe(EnvironmentKind.TAKEN, listed, files)


def spelled_out(recipe: Recipe) -> str:
    """Its list with the current paths of wheels, as tools expect them."""
    folder = recipe.file.parent.absolute().as_uri()
    return re.sub(rf" @ (?={WHEELS}/)", f" @ {folder}/", recipe.file.read_text())


def _uv_lock(work: Path, project: Path, lock: Path) -> Recipe:
    if not project.is_file():
        raise AttemptBroken(
            "`uv.lock` requires its `pyproject.toml` in the same folder, which is missing",
            cause=Cause.ENVIRONMENT_INVALID,
        )
    files = {file.relative_to(work).as_posix(): file.read_bytes() for file in (project, lock)}
    local = _is_tied(project)
    return Recipe(EnvironmentKind.UV_LOCK, project, files, local, local)


def _is_tied(project: Path) -> bool:
    """A workspace, or a source given as a path, is installed as a reference to its folder."""
    return _LOCAL_SOURCE.search(project.read_bytes()) is not None


_LOCAL_SOURCE = re.compile(rb"tool\.uv\.workspace|^\s*(workspace|path)\s*=|\{[^}]*\b(workspace|path)\s*=", re.M)


def _requirements(work: Path, top: Path) -> Recipe:
    files: dict[str, bytes] = {}
    tied = private = False
    waiting = [top]
    while waiting:
        file = waiting.pop().resolve()
        name = file.relative_to(work.resolve()).as_posix() if file.is_relative_to(work.resolve()) else str(file)
        if name in files:
            continue
        try:
            files[name] = file.read_bytes()
        except OSError as error:
            shown = top.relative_to(work)
            raise AttemptBroken(
                f"could not read `{name}`, which `{shown}` includes: {error.strerror}", cause=Cause.ENVIRONMENT_INVALID
            ) from None
        for line in _lines(files[name].decode(errors="replace")):
            waiting += [file.parent / included for included in _included(line)]
            private = private or _is_editable(line)
            tied = tied or private or _is_local(line)
    return Recipe(EnvironmentKind.REQUIREMENTS, top, files, tied, private)


def _lines(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).strip()
        if line:
            yield line


def _included(line: str) -> list[str]:
    found = re.fullmatch(r"(?:-r|-c|--requirement|--constraint)(?:\s+|=)?(\S.*)", line)
    return [shlex.split(found[1])[0]] if found and "://" not in found[1] else []


def _is_editable(line: str) -> bool:
    return re.match(r"(-e|--editable)\b", line) is not None


def _is_local(line: str) -> bool:
    """A folder or file to install, or a folder to search, instead of a name."""
    option = re.match(r"(-f|--find-links)[\s=]+(.*)", line)
    if line.startswith("-") and not option:
        return False
    target = option[2] if option else line.partition(" @ ")[2] or line
    target = re.split(r"\s*;|\s--", target, maxsplit=1)[0].strip()
    return target.startswith((".", "/", "file:")) or ("/" in target and "://" not in target)


# Packages that are compiled for one of these do not work with another.
_ASK = """
import json, os, sys
try:
    libc = os.confstr("CS_GNU_LIBC_VERSION")
except (AttributeError, ValueError, OSError):
    libc = ""
version, tag = "%d.%d.%d" % sys.version_info[:3], sys.implementation.cache_tag
print(json.dumps([version, tag, sys.platform, os.uname().machine, libc or "musl"]))
"""


@dataclass(frozen=True, slots=True)
class Interpretation:
    """What packages are installed for."""

    version: str
    tag: str  # of the implementation, such as `cpython-311`
    platform: str


def interpretation(python: str) -> Interpretation:
    """Raises AttemptBroken where it does not run."""
    try:
        asked = [python, "-I", "-S", "-c", _ASK]
        told = subprocess.run(asked, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        version, tag, system, machine, libc = json.loads(told.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        raise AttemptBroken(
            f"`{python}` does not run", "check `environment.python`", cause=Cause.PYTHON_MISSING
        ) from None
    return Interpretation(version, tag, f"{system}-{machine}, {libc}")


def identity(recipe: Recipe, seen: Interpretation, choices: Mapping[str, str]) -> str:
    """The same on every node where the same is installed. `choices` are settings of the tools: with a lock they change
    nothing, because it has the hash of every file."""
    locked = recipe.listed or recipe.kind in (EnvironmentKind.UV_LOCK, EnvironmentKind.PYLOCK)
    told = [] if locked else sorted(f"{name}={value}" for name, value in choices.items())
    named = json.dumps([recipe.fingerprint(), seen.version, seen.tag, seen.platform, told])
    return hashlib.sha256(named.encode()).hexdigest()[:32]


def is_shareable(recipe: Recipe) -> bool:
    """Any node that installs it gets the same, and it refers to no file of the run."""
    exact = recipe.listed or recipe.kind in (EnvironmentKind.UV_LOCK, EnvironmentKind.PYLOCK, EnvironmentKind.TAKEN)
    return bool(exact and not recipe.tied and not recipe.private)


def new_built(id: str, name: str, recipe: Recipe, seen: Interpretation) -> BuiltEnvironment:
    source = "the packages of a Python" if recipe.kind is EnvironmentKind.TAKEN else recipe.file.name
    return BuiltEnvironment(id, name.removesuffix(ONLY_BUILDS), source, seen.version, seen.platform, datetime.now(UTC))


def read_built(venv: Path) -> BuiltEnvironment | None:
    """None where it was never completed. One that an older agent built has no id."""
    try:
        data = (venv / COMPLETE).read_bytes()
    except OSError:
        return None
    if not os.access(venv / "bin" / "python", os.X_OK):
        return None
    try:
        return untrusted.load(BuiltEnvironment, data[:HEAD_BYTES], datetime.now(UTC))
    except Malformed:
        return BuiltEnvironment("", "", "", "", "", datetime.now(UTC))


def note_built(venv: Path, built: BuiltEnvironment) -> None:
    (venv / COMPLETE).write_bytes(dump(built))
