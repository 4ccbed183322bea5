"""The environment of a job: a Python, or a venv built from its recipe, once for all runs with the same one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from stoker.agent.attempt.endings import AttemptBroken
from stoker.agent.environment.python import bring_python, bring_uv, check_python, find_python, version_of, which
from stoker.agent.environment.recipe import (
    EnvironmentKind,
    Recipe,
    identity,
    interpretation,
    is_shareable,
    new_built,
    note_built,
    read_built,
    read_recipe,
    read_taken,
    spelled_out,
)
from stoker.agent.environment.shelf import Shelf, VenvGoods
from stoker.agent.machine.machine import NodeFolder, NodeMachine, remove_tree
from stoker.agent.notice.stopping import Stopping
from stoker.agent.processes.family import MARK
from stoker.files import take
from stoker.model.cause import Cause
from stoker.model.environment import BuiltEnvironment, tool_settings
from stoker.model.job.sections import LOCK
from stoker.model.orders import Orders, lock_of, users_of
from stoker.model.run.report import MOST_PACKAGES
from stoker.stores import Store

Tell = Callable[[str, str], None]

# Folder names are enough: importing the packages would take seconds.
ASK_PACKAGES = """
import json, os, sys
found = {}
for place in sys.path:
    try:
        names = os.listdir(place) if place.endswith(("site-packages", "dist-packages")) else ()
    except OSError:
        continue
    for name in names:
        if name.endswith((".dist-info", ".egg-info")):
            package, _, version = name.rpartition(".")[0].partition("-")
            found.setdefault(package.lower().replace("_", "-").replace(".", "-"), version.partition("-py")[0])
print(json.dumps({"python": "%d.%d.%d" % sys.version_info[:3], **dict(sorted(found.items()))}))
"""


@dataclass(frozen=True, slots=True)
class RunPython:
    """What a run is started with."""

    python: str
    imports: str = ""  # an additional folder to import from
    environment: str = ""  # the id of its environment; empty: a Python of the machine


def prepare(orders: Orders, machine: NodeMachine, log: Path, stopping: Stopping, tell: Tell, store: Store) -> RunPython:
    """Raises Broken, or Stopped."""
    wanted, software = orders.job.environment, orders.software
    taken = software is not None and software.packages > 0 and wanted.is_taken_along
    environ = _environ(orders, machine)
    uv = machine.uv or which("uv", environ.get("PATH", ""))
    if software and not uv and (taken or wanted.requirements):
        uv = bring_uv(software.uv, machine.environments, tell)
    python, uv = _python(orders, machine, uv, tell)
    check_python(python)
    if not wanted.requirements and not taken:
        return RunPython(python)
    shelf = Shelf(store, orders.shelf, orders.key, stopping, tell) if orders.shelf else None
    workshop = Workshop(
        machine.folder, machine.environments, uv, environ, orders.key, log, stopping, tell, orders.job.name, shelf
    )
    work = machine.folder.work
    recipe = read_recipe(work, wanted.requirements, _kinds(work, python)) if wanted.requirements else read_taken(work)
    return build(workshop, recipe, python, orders.snapshot)


def _kinds(work: Path, python: str) -> tuple[str, ...]:
    """What a lock may be for, to count for this Python on this machine."""
    told = version_of(python) if (work / LOCK).exists() else None
    system, minor = os.uname(), ".".join(told[0].split(".")[:2]) if told else ""
    here = f"{sys.platform}-{system.machine}"
    cloud = ("x86_64-manylinux_2_28",) if here == "linux-x86_64" else ()
    return tuple(f"python {minor} on {one}" for one in (here, *cloud)) if minor else ()


def packages(python: str) -> dict[str, str]:
    """The packages of this Python by name, and its own version. Empty where it does not run."""
    try:
        asked = [python, "-I", "-c", ASK_PACKAGES]
        told = subprocess.run(asked, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return {}
    return read_packages(told.stdout)


def read_packages(said: str) -> dict[str, str]:
    """What a Python answers to `ASK_PACKAGES`. Empty where that is something else."""
    try:
        found = dict(json.loads(said))
    except (ValueError, TypeError):
        return {}
    return {name[:200]: str(version)[:100] for name, version in list(found.items())[:MOST_PACKAGES]}


def _environ(orders: Orders, machine: NodeMachine) -> dict[str, str]:
    """A system service has no home folder, so uv needs to know where to cache downloads."""
    own = {name: value for name, value in orders.job.env.items() if name.startswith(("UV_", "PIP_"))}
    if not orders.software:
        return {**machine.variables, **own}
    kept = {"UV_CACHE_DIR": str(machine.environments / "cache"), "UV_PYTHON_INSTALL_DIR": _pythons(machine)}
    return {**kept, **machine.variables, **own}


def _pythons(machine: NodeMachine) -> str:
    return str(machine.environments / "pythons")


def _python(orders: Orders, machine: NodeMachine, uv: str | None, tell: Tell) -> tuple[str, str | None]:
    """The Python that the job names. On a machine without it, uv downloads it; where that fails, too, and the job does
    not insist, the machine's own is used."""
    wanted, software, usual = orders.job.environment, orders.software, orders.python or sys.executable
    named, environ = wanted.python or (software.python if software else ""), _environ(orders, machine)
    if not named or wanted.kept:  # what a provider keeps has the Python that the agent was started with
        return usual, uv
    try:
        return find_python(named, usual, uv, environ), uv
    except AttemptBroken as missing:
        if "/" in named:
            raise
        uv = uv or (bring_uv(software.uv, machine.environments, tell) if software else None)
        if uv and (brought := bring_python(named, uv, environ, tell)):
            return brought, uv
        if wanted.python:
            raise
        tell("environment", f"{missing.message}: using `{usual}` instead")
        return usual, uv


_SETTINGS = re.compile(
    r"(UV|PIP)_.*(INDEX|FIND_LINKS|PRE|CONSTRAINT|OVERRIDE|BINARY|RESOLUTION|EXCLUDE_NEWER|TORCH_BACKEND|NO_DEPS).*"
)


@dataclass(frozen=True, slots=True)
class Workshop:
    """What a build needs to know about the node."""

    folder: NodeFolder
    environments: Path
    uv: str | None  # None: use pip
    variables: Mapping[str, str]
    key: str
    log: Path  # output of the tools
    stopping: Stopping
    tell: Callable[[str, str], None]
    name: str = ""  # of the experiment
    shelf: Shelf | None = None  # where nodes share what they build; None: nowhere


def build(workshop: Workshop, recipe: Recipe, python: str, snapshot: str) -> RunPython:
    """With the recipe's venv: built unless it exists here, or another node has built it. Raises Broken, or Stopped."""
    name = recipe.label
    settings = {**tool_settings(workshop.variables), "CONDA_ALWAYS_YES": "1", "MAMBA_ALWAYS_YES": "1"}
    print_ = recipe.fingerprint(*_circumstances(python, settings, workshop), *([snapshot] if recipe.tied else []))
    venv = workshop.folder.environment if recipe.private else workshop.environments / print_
    with locked(venv, workshop):
        if not recipe.private:
            note_user(venv, workshop.key)
        built = read_built(venv)
        if built:
            workshop.tell("environment", f"reusing {name} from an earlier run")
        else:
            built = _made(workshop, recipe, python, venv, settings)
            note_built(venv, built)
    return RunPython(str(venv / "bin" / "python"), _own_code(recipe), built.id)


def _made(workshop: Workshop, recipe: Recipe, python: str, venv: Path, settings: Mapping[str, str]) -> BuiltEnvironment:
    """Restored from the store, or installed; nothing of an earlier try is used."""
    seen = interpretation(python)
    choices = {name: value for name, value in settings.items() if _SETTINGS.fullmatch(name)}
    new = new_built(identity(recipe, seen, choices), workshop.name, recipe, seen)
    shelf = workshop.shelf
    if not (shelf and workshop.uv and is_shareable(recipe)):
        return _installed(workshop, recipe, python, venv, settings, new)

    def make() -> None:
        remove_tree(venv)
        carry_out(_make_venv(str(workshop.uv), python, venv), f"restore {recipe.label}", settings, workshop)

    shared = shelf.share(new.id, VenvGoods(shelf, venv, make))
    try:
        if found := shared.restore():
            return found
        new = _installed(workshop, recipe, python, venv, settings, new)
        shared.offer(new)
    except BaseException:
        shared.release()
        raise
    return new


def _installed(
    workshop: Workshop, recipe: Recipe, python: str, venv: Path, settings: Mapping[str, str], new: BuiltEnvironment
) -> BuiltEnvironment:
    start = time.monotonic()
    remove_tree(venv)
    listed = _listed(recipe, workshop)
    for step in steps(recipe, python, venv, _tool(recipe, workshop), listed):
        carry_out(step, f"install {recipe.label}", {**settings, "UV_PROJECT_ENVIRONMENT": str(venv)}, workshop)
    took_s = time.monotonic() - start
    workshop.tell("environment", f"{recipe.label} was installed in {took_s:.1f} s")
    found = packages(str(venv / "bin" / "python"))
    return replace(new, packages=found, built_s=round(took_s, 1))


def _own_code(recipe: Recipe) -> str:
    """The folder of a project's packages: not installed, since other runs use the venv too."""
    if recipe.kind not in (EnvironmentKind.PROJECT, EnvironmentKind.UV_LOCK) or recipe.private:
        return ""
    folder = recipe.file.parent
    return str(folder / "src" if (folder / "src").is_dir() else folder)


def _listed(recipe: Recipe, workshop: Workshop) -> Path:
    """The file that tools install from."""
    if recipe.kind is not EnvironmentKind.TAKEN:
        return recipe.listed or recipe.file
    workshop.folder.packages.write_text(spelled_out(recipe))
    return workshop.folder.packages


def steps(recipe: Recipe, python: str, venv: Path, uv: str | None, listed: Path | None = None) -> list[list[str]]:
    """The commands that build it, in order. `listed` is the file to install from, if it is not the recipe's own."""
    listed = listed or recipe.listed or recipe.file
    inside = str(venv / "bin" / "python")
    if recipe.kind is EnvironmentKind.CONDA and not recipe.listed:
        return [[str(uv), "env", "create", "--quiet", "--prefix", str(venv), "--file", str(listed)]]
    if not uv:
        if recipe.kind in (EnvironmentKind.UV_LOCK, EnvironmentKind.PYLOCK):
            raise AttemptBroken(
                f"installing `{recipe.file.name}` requires uv, which is not on this machine",
                "install uv",
                cause=Cause.INSTALL_FAILED,
            )
        plain = recipe.kind is EnvironmentKind.PROJECT and not recipe.listed
        wanted = _dependencies(recipe.file) if plain else ["-r", str(listed)]
        install = [[inside, "-m", "pip", "install", *wanted]] if wanted else []
        return [[python, "-m", "venv", str(venv)], *install]
    make = _make_venv(uv, python, venv)
    if recipe.kind is EnvironmentKind.UV_LOCK:
        own = [] if recipe.private else ["--no-install-project"]
        sync = [uv, "sync", "--quiet", "--frozen", "--python", python, "--project", str(recipe.file.parent), *own]
        return [sync] if recipe.private else [make, sync]
    # These exact versions worked together, whatever their metadata says; what this machine needs in addition, such as
    # GPU libraries, is resolved from the metadata.
    exactly = ["--override", str(listed)] if recipe.kind is EnvironmentKind.TAKEN else []
    return [make, [uv, "pip", "install", "--quiet", "--python", inside, "-r", str(listed), *exactly]]


def _make_venv(uv: str, python: str, venv: Path) -> list[str]:
    """Its commands find their Python beside them: it works in another folder, too."""
    return [uv, "venv", "--quiet", "--no-project", "--relocatable", "--python", python, str(venv)]


def _tool(recipe: Recipe, workshop: Workshop) -> str | None:
    """What installs it; None: pip."""
    if recipe.kind is not EnvironmentKind.CONDA or recipe.listed:
        return workshop.uv
    for name in ("micromamba", "mamba", "conda"):
        if found := which(name, workshop.variables.get("PATH", "")):
            return found
    raise AttemptBroken(
        f"`{recipe.file.name}` has packages that only conda installs, and micromamba is not on this machine",
        "install micromamba there, or list the packages under `pip:`",
        cause=Cause.INSTALL_FAILED,
    )


def _dependencies(project: Path) -> list[str]:
    try:
        found = tomllib.loads(project.read_text()).get("project", {}).get("dependencies", [])
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AttemptBroken(f"`{project.name}` cannot be read: {error}", cause=Cause.ENVIRONMENT_INVALID) from None
    return [str(one) for one in found]


def _circumstances(python: str, settings: Mapping[str, str], workshop: Workshop) -> Iterator[str]:
    """What a venv depends on besides its recipe."""
    real = Path(python).resolve()
    seen = real.stat()
    system = os.uname()
    yield from (str(real), str(seen.st_size), str(seen.st_mtime_ns), system.sysname, system.machine)
    yield "uv" if workshop.uv else "pip"
    yield from sorted(f"{name}={value}" for name, value in settings.items() if _SETTINGS.fullmatch(name))


def note_user(venv: Path, key: str) -> None:
    """Under the lock. The venv stays until the run of this node is removed."""
    users_of(venv).mkdir(mode=0o700, exist_ok=True)
    (users_of(venv) / key.partition("-")[0]).touch()


@contextmanager
def locked(venv: Path, workshop: Workshop) -> Iterator[None]:
    """One builder at a time; the others wait, and then find it built. Raises Stopped."""
    venv.parent.mkdir(parents=True, exist_ok=True)
    lock = _opened(lock_of(venv))
    try:
        told = False
        while True:
            if take(lock):
                if _is_there(lock, lock_of(venv)):
                    break
                os.close(lock)
                lock = _opened(lock_of(venv))
            else:
                if not told:
                    workshop.tell("environment", "another run is building the same environment: waiting for it")
                told = True
                workshop.stopping.check()
                workshop.stopping.wait(0.1)
        yield
    finally:
        os.close(lock)


def _opened(file: Path) -> int:
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_there(lock: int, file: Path) -> bool:
    """Removing a venv also removes its lock file: a lock that was opened before then protects nothing."""
    try:
        return os.path.samestat(os.fstat(lock), file.stat())
    except FileNotFoundError:
        return False


def carry_out(step: list[str], what: str, settings: Mapping[str, str], workshop: Workshop) -> None:
    """Raises Broken with the last output of a step that failed, or Stopped."""
    workshop.stopping.check()
    env = {**settings, MARK: workshop.key}
    with workshop.log.open("ab") as log:
        start = log.tell()
        try:
            process = subprocess.Popen(
                step,
                cwd=workshop.folder.work,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        except OSError as error:
            raise AttemptBroken(
                f"`{step[0]}` could not be started: {error.strerror}", cause=Cause.INSTALL_FAILED
            ) from None
        while process.poll() is None:
            if workshop.stopping.outcome:
                process.kill()
                process.wait()
            workshop.stopping.wait(0.1)
    workshop.stopping.check()
    if process.returncode:
        reason = _reason(workshop.log, start)
        raise AttemptBroken(
            f"could not {what}: {reason}", "see its output with `stoker logs`", cause=Cause.INSTALL_FAILED
        )


def _reason(log: Path, start: int) -> str:
    """The tool's own last output, as one line."""
    with log.open("rb") as file:
        file.seek(start)
        said = file.read().decode(errors="replace")
    lines = [line.strip(" ×╰─▶│├┬\t") for line in said.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("hint:", "Using ", "Resolved ", "[notice]"))]
    found = " ".join(lines[-6:])
    return found if len(found) <= 500 else f"{found[:497]}..."
