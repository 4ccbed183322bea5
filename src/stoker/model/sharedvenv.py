"""What lies beside a venv that runs share on one node: the one place that spells these names."""

from __future__ import annotations

from pathlib import Path

_USERS = ".runs"
_LOCK = ".lock"


def lock_of(venv: Path) -> Path:
    """Held while the venv is built or removed."""
    return venv.with_name(f"{venv.name}{_LOCK}")


def users_of(venv: Path) -> Path:
    """A folder with an empty file for each run that has used it, named by the run's id. Written under the lock."""
    return venv.with_name(f"{venv.name}{_USERS}")


def venv_used(users: Path) -> Path | None:
    """The venv that such a folder belongs to; None where it is something else."""
    return users.with_name(users.name.removesuffix(_USERS)) if users.name.endswith(_USERS) else None
