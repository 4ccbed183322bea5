"""The recommender's folder as a user has it: its programs, its modules, and small data to try them on."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "ncf"
SMALL = "generated:240x240x9600"  # learned in seconds
QUICK = (
    "--data", SMALL, "--epochs", "8", "--batch_size", "2048", "--learning_rate", "0.004", "--piece", "1024",
    "--factors", "16", "--layers", "64", "64", "32", "16", "--dropout", "0.2",
)  # fmt: skip


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "RANK", "WORLD_"))}
    return {**kept, "OMP_WAIT_POLICY": "PASSIVE", "PYTHONDONTWRITEBYTECODE": "1", **more}


def program(name: str, *args: object, folder: Path, code: int = 0, **env: str) -> str:
    """Runs one of the example's programs to its end; what it printed."""
    command = [sys.executable, str(FOLDER / name), *map(str, args)]
    done = subprocess.run(command, cwd=folder, env=environment(**env), capture_output=True, text=True, timeout=100)
    assert done.returncode == code, f"{name}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def modules(*names: str) -> list[Any]:
    """Modules of the example, which have plain names: imported without leaving those names to other examples."""
    before = dict(sys.modules)
    sys.path.insert(0, str(FOLDER))
    try:
        return [import_module(name) for name in names]
    finally:
        sys.path.remove(str(FOLDER))
        for name in set(sys.modules) - set(before):
            if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
