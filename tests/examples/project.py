"""The folder of an example as a user has it: its programs, and its modules."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "RANK", "WORLD_"))}
    return {**kept, "OMP_WAIT_POLICY": "PASSIVE", "PYTHONDONTWRITEBYTECODE": "1", **more}


@dataclass(frozen=True)
class Project:
    name: str

    @property
    def folder(self) -> Path:
        return ROOT / "examples" / self.name

    def program(
        self, name: str, *args: object, folder: Path, code: int = 0, python: str = sys.executable, **env: str
    ) -> str:
        """Runs one of the example's programs; returns its output."""
        command = [python, str(self.folder / name), *map(str, args)]
        done = subprocess.run(command, cwd=folder, env=environment(**env), capture_output=True, text=True, timeout=280)
        assert done.returncode == code, f"{name}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def modules(self, *names: str) -> list[Any]:
        """Modules of the example, which have plain names: imported without leaving those names to other examples."""
        before = dict(sys.modules)
        sys.path.insert(0, str(self.folder))
        try:
            return [import_module(name) for name in names]
        finally:
            sys.path.remove(str(self.folder))
            for name in set(sys.modules) - set(before):
                if str(self.folder) in str(getattr(sys.modules[name], "__file__", "")):
                    del sys.modules[name]
