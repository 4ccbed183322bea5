"""What a venv is: by its content for every node, and by its folder on this one."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from stoker.agent.attempt.endings import AttemptBroken
from stoker.agent.environment.recipe import EnvironmentKind, Recipe
from stoker.errors import Malformed
from stoker.model import untrusted
from stoker.model.cause import Cause
from stoker.model.environment import COMPLETE, HEAD_BYTES, ONLY_BUILDS, BuiltEnvironment
from stoker.model.wire import dump

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
