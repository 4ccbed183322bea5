"""Venvs that runs on this computer share: each goes when the last run that used it has been removed."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stoker.files.lock import take
from stoker.model.node.orders import lock_of, users_of, venv_used
from stoker.stores.trees.clearing import clear


def remove_unused(folder: Path, runs: Callable[[], set[str]]) -> int:
    """How many went. `runs` gives the ids of all runs there are. One that is being built is left for the next time, and
    so is one that an older Stoker made without noting its users."""
    marks = {venv: set(_names(users_of(venv))) for venv in _venvs(folder)}
    known = runs()  # asked after the marks were seen: a run is there before its agent leaves one
    removed = 0
    for venv, users in marks.items():
        for gone in users - known:
            (users_of(venv) / gone).unlink(missing_ok=True)
        if not users & known and _remove(venv):
            removed += 1
    return removed


def _venvs(folder: Path) -> list[Path]:
    return [venv for name in _names(folder) if (venv := venv_used(folder / name))]


def _names(folder: Path) -> list[str]:
    try:
        return [one.name for one in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _remove(venv: Path) -> bool:
    """Twice is fine, and so is dying in between: the folder of its users goes last."""
    lock = os.open(lock_of(venv), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not take(lock) or _names(users_of(venv)):
            return False
        clear(str(venv))
        lock_of(venv).unlink(missing_ok=True)
        with suppress(OSError):  # gone, or used by somebody who has made a new lock
            users_of(venv).rmdir()
        return True
    finally:
        os.close(lock)
