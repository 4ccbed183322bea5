"""A first job file for a folder, from what its files say: they are parsed, never run."""

from __future__ import annotations

from pathlib import Path


def starter(folder: Path) -> str:
    """The text of a commented `stoker.yaml` that fits the folder. The same folder always gives the same text."""
    raise NotImplementedError
