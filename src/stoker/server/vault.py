"""Secret values of runs that have not ended: one 0600 file each, and nowhere else."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path


class Vault:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, run_id: str, values: Mapping[str, str]) -> None:
        if not values:
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self._path(run_id), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            json.dump(dict(values), file)

    def values(self, run_id: str) -> dict[str, str]:
        try:
            values: dict[str, str] = json.loads(self._path(run_id).read_text())
        except FileNotFoundError:
            return {}
        return values

    def forget(self, run_id: str) -> None:
        self._path(run_id).unlink(missing_ok=True)

    def _path(self, run_id: str) -> Path:
        return self._folder / f"{run_id}.json"
