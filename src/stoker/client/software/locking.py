"""The lock of a run's environment: exact versions with their hashes, resolved before anything is submitted or paid for.

A lock is a requirements file that uv and pip read. It travels with the code as `sections.LOCK`; an environment of the
same lock, Python and platform is the same environment.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from stoker.client.settings import ClientSettings
from stoker.client.software.declared import Declared, declared
from stoker.client.software.packages import PYTHON, cloud, normal, packages_of
from stoker.client.software.wheels import UNREACHED, from_outside, tool
from stoker.errors import JobInvalid, Problem
from stoker.files import write_whole
from stoker.model.environment import tool_settings
from stoker.model.job.job import Job
from stoker.model.job.sections import LOCK
from stoker.stores.trees.clearing import mark_used

CLOUD = "x86_64-manylinux_2_28"  # the machines of clouds
_WITHIN_S = 600.0  # a package without a wheel may have to be built, to know what it requires
_EDITION = 1
_SETTING = re.compile(r"(UV|PIP)_.*")
_LOCAL = re.compile(r"^(-e\b|\.{0,2}/|.* @ (file:|\.{0,2}/))", re.M)  # it refers to files of the run itself
_UNSURE = re.compile(r"failed to build|build backend|build isolation|git executable|failed to clone", re.I)
_CONDA_TOOLS = ("micromamba", "mamba", "conda")


@dataclass(frozen=True, slots=True)
class Lock:
    """`text` is empty where there is none: the node then installs from the file itself."""

    python: str = ""
    text: str = ""
    notes: tuple[str, ...] = ()
    named: str = ""  # the Python that the file itself names; empty: none

    @property
    def id(self) -> str:
        """The same for the same environment."""
        return hashlib.sha256(self.text.encode()).hexdigest() if self.text else ""

    @property
    def packages(self) -> int:
        return sum(1 for line in self.text.splitlines() if re.match(r"[A-Za-z0-9]", line))


def lock(job: Job, root: Path, settings: ClientSettings, *, elsewhere: bool, upgrade: bool = False) -> Lock:
    """Of the file that the job names; from the cache where it was locked before. Raises JobInvalid where it cannot be
    installed on such a machine, with the resolver's reason."""
    name = job.environment.requirements
    if not name or Path(name).name == "uv.lock" or _has_uv_lock(root / name) or _is_pylock(name):
        return Lock()
    wanted = declared(root / name, name, _surroundings(_python(job, "", settings), elsewhere=elsewhere))
    python = _python(job, wanted.python, settings)
    if wanted.conda:
        _check_conda(name, wanted, settings, elsewhere=elsewhere)
        return Lock(python)
    found = _locked(job, root, settings, wanted, python, elsewhere=elsewhere, upgrade=upgrade)
    return replace(found, named=wanted.python)


def _locked(
    job: Job, root: Path, settings: ClientSettings, wanted: Declared, python: str, *, elsewhere: bool, upgrade: bool
) -> Lock:
    file = root / str(job.environment.requirements)
    head = f"# python {python} on {CLOUD if elsewhere else here()}\n"
    if wanted.locked:
        return Lock(python, head + wanted.text)
    place = settings.home.software
    place.mkdir(parents=True, exist_ok=True)
    env = _settings(job, settings, elsewhere=elsewhere)
    kept = place / f"{_key(head, wanted, env)}.lock"
    with suppress(OSError):
        if not upgrade:
            text = kept.read_text()
            mark_used(kept)
            return Lock(python, text)
    found = _resolved(wanted, file, python, env, elsewhere=elsewhere)
    if found.text:
        found = replace(found, text=head + found.text)
        write_whole(kept, found.text.encode())
    return found


def files(lock: Lock, place: Path) -> dict[str, Path]:
    """What is added to the snapshot, by its path there."""
    if not lock.text:
        return {}
    listed = place / f"{lock.id[:32]}.lock.txt"
    if not listed.exists():
        place.mkdir(parents=True, exist_ok=True)
        write_whole(listed, lock.text.encode())
    mark_used(listed)
    return {LOCK: listed}


def here() -> str:
    return f"{sys.platform}-{platform.machine()}"


def _python(job: Job, declared: str, settings: ClientSettings) -> str:
    """Its minor version."""
    named = job.environment.python or declared
    version = named if named and "/" not in named else packages_of(named or settings.python).get(PYTHON, "")
    return ".".join((version or platform.python_version()).split(".")[:2])


def _surroundings(python: str, *, elsewhere: bool) -> dict[str, str]:
    """The values of markers there."""
    own = {"sys_platform": sys.platform, "platform_system": platform.system(), "platform_machine": platform.machine()}
    return cloud(python) | ({} if elsewhere else own)


def _has_uv_lock(file: Path) -> bool:
    return file.name == "pyproject.toml" and file.with_name("uv.lock").is_file()


def _is_pylock(name: str) -> bool:
    return re.fullmatch(r"pylock(\..+)?\.toml", Path(name).name) is not None


def _check_conda(name: str, wanted: Declared, settings: ClientSettings, *, elsewhere: bool) -> None:
    """Only a conda tool installs these; whether other computers have one is known there."""
    if elsewhere or any(shutil.which(one, path=settings.variable("PATH")) for one in _CONDA_TOOLS):
        return
    few = ", ".join(wanted.conda[:3]) + (", …" if len(wanted.conda) > 3 else "")
    expected = (
        f"`micromamba`, `mamba` or `conda` on this computer to install {few}: activate that environment and leave out "
        "`environment`, or list the packages under `pip:`"
    )
    raise JobInvalid([Problem("environment.requirements", f"`{name}`", expected)])


def _settings(job: Job, settings: ClientSettings, *, elsewhere: bool) -> dict[str, str]:
    """The variables of the resolver, as on the machine that installs."""
    own = {name: value for name, value in job.env.items() if _SETTING.fullmatch(name)}
    given = settings.for_tools()
    secret = {name: given[name] for name in job.secrets if _SETTING.fullmatch(name) and name in given}
    return from_outside(given, {**own, **secret}) if elsewhere else tool_settings({**given, **own, **secret})


def _key(head: str, wanted: Declared, env: Mapping[str, str]) -> str:
    told = sorted(f"{name}={value}" for name, value in env.items() if _SETTING.fullmatch(name))
    return hashlib.sha256(json.dumps([_EDITION, head, *wanted.content(), *told]).encode()).hexdigest()[:32]


def _resolved(wanted: Declared, file: Path, python: str, env: Mapping[str, str], *, elsewhere: bool) -> Lock:
    uv = tool(env)
    if uv is None:
        return Lock(python, notes=(f"`{file.name}` is not locked, because uv is not installed: pip install uv",))
    words = [uv, "pip", "compile", "--quiet", "--generate-hashes", "--no-annotate", "--no-header", "--no-strip-extras"]
    words += ["--python-version", python, *(["--python-platform", CLOUD] if elsewhere else [])]
    try:
        source = "-" if wanted.text else str(file)
        done = subprocess.run(
            [*words, source],
            env={**env, "UV_PYTHON_DOWNLOADS": "never"},
            input=wanted.text,
            cwd=file.parent,
            capture_output=True,
            text=True,
            timeout=_WITHIN_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Lock(python, notes=(f"`{file.name}` is not locked: {error}",))
    if done.returncode:
        return Lock(python, notes=(_unlocked(file.name, _said(done.stderr)),))
    return Lock(python) if _LOCAL.search(done.stdout) else Lock(python, _as_hashed(done.stdout, wanted, file.name))


def _as_hashed(text: str, wanted: Declared, name: str) -> str:
    """Without the hashes that the file itself leaves out. Raises JobInvalid where none is left of a package."""
    given = {one: hashes for file in wanted.files.values() for one, hashes in _hashes(file) if hashes}
    for one, hashes in _hashes(text):
        if one in given:
            for other in hashes - given[one]:
                text = text.replace(f" \\\n    --hash={other}", "")
            if not hashes & given[one]:
                expected = f"hashes that match: the index has other files of `{one}` than the file names"
                raise JobInvalid([Problem("environment.requirements", f"`{name}`", expected)])
    return text


def _hashes(text: str) -> Iterator[tuple[str, set[str]]]:
    for line in text.replace("\\\n", " ").splitlines():
        if found := re.match(r"([A-Za-z0-9][\w.-]*)", line):
            yield normal(found[1]), set(re.findall(r"--hash=(\S+)", line))


def _unlocked(name: str, said: str) -> str:
    """Why there is no lock, where a machine may still be able to install the file. Raises JobInvalid where not."""
    if UNREACHED.search(said) and "No solution" not in said:
        return f"`{name}` is not locked, because the package index does not answer: {said}"
    if _UNSURE.search(said):
        return f"`{name}` is not locked, and the machine has to build it with its own tools: {said}"
    raise JobInvalid([Problem("environment.requirements", f"`{name}`", f"packages that can be installed: {said}")])


def _said(text: str) -> str:
    return " ".join(_told(text))[:600]


def _told(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if found := line.strip(" ×╰─▶│├┬\t"):
            yield found.removeprefix("error: ")
