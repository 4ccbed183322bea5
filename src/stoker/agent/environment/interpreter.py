"""The Python that a run's commands find."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.attempt.endings import Broken
from stoker.agent.machine.machine import NodeFolder


@dataclass(frozen=True, slots=True)
class Interpreter:
    python: str
    bin: str = ""  # to go first in PATH; empty: PATH leads to this Python already
    venv: str = ""  # empty: it is not in one


def interpreter(python: str, folder: NodeFolder, path: str) -> Interpreter:
    """How `python` comes to mean this Python. Raises Broken where it cannot be run."""
    check_python(python)
    home = Path(python).parent
    if (home.parent / "pyvenv.cfg").exists():
        return Interpreter(python, str(home), str(home.parent))
    if _same(which("python", path), python):
        return Interpreter(python)
    if _same(str(home / "python"), python):
        return Interpreter(python, str(home))
    return Interpreter(python, str(_shim(python, folder.commands)))


def check_python(python: str) -> None:
    if not os.access(python, os.X_OK) or not Path(python).is_file():
        raise Broken(
            f"the Python of this run, `{python}`, is not on this machine",
            "name one that is with `--set environment.python=...`",
        )


def which(name: str, path: str) -> str | None:
    """As `shutil.which`, which takes longer to import than a search does."""
    for folder in path.split(os.pathsep):
        found = os.path.join(folder, name)  # noqa: PTH118  # text in, text out
        if os.access(found, os.X_OK) and os.path.isfile(found):  # noqa: PTH113  # as above
            return found
    return None


def _same(one: str | None, other: str) -> bool:
    return one is not None and Path(one).exists() and Path(one).samefile(other)


def _shim(python: str, commands: Path) -> Path:
    """A folder in which this Python is called `python`. Not by a link: it would look for its packages beside that."""
    commands.mkdir(mode=0o700, exist_ok=True)
    for name in ("python", "python3"):
        (commands / name).write_text(f'#!/bin/sh\nexec {shlex.quote(python)} "$@"\n')
        (commands / name).chmod(0o700)
    return commands
