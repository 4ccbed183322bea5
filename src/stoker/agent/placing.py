"""Puts inputs where a script expects them: in its working directory or beside it, as links to where they are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from stoker.agent.endings import Broken
from stoker.model.job import Job
from stoker.model.orders import Orders


def levels_above(job: Job) -> int:
    """How far above the working directory the highest place is that an input appears at."""
    return max((use.at.split("/").count("..") for use in job.data.values() if use.at), default=0)


def place(work: Path, orders: Orders) -> None:
    """A folder of the code that is there already keeps its files, and gets those of the input beside them.

    Raises Broken where a file is in the way.
    """
    for name, use in orders.job.data.items():
        if use.at and name in orders.data:
            at = Path(os.path.normpath(work / use.at))  # never by way of a link in the code
            _link(at, Path(orders.data[name]), use.at)


def chosen(job: Job, places: Mapping[str, str]) -> dict[str, str]:
    """Where each input is: its folder, or the one file in it that the job names. Raises Broken where there is none."""
    found = dict(places)
    for name, place in places.items():
        use = job.data.get(name)
        if use and use.file:
            found[name] = str(Path(place, use.file))
            if not Path(found[name]).is_file():
                what = f"`{use.dataset}` has no file `{use.file}`, which `data.{name}.file` names"
                raise Broken(what, f"see what it has with `stoker data show {use.dataset}`")
    return found


def _link(at: Path, source: Path, shown: str) -> None:
    if at.is_dir() and not at.is_symlink() and source.is_dir():
        for entry in sorted(source.iterdir()):
            if not (at / entry.name).exists():
                _link(at / entry.name, entry, f"{shown}/{entry.name}")
        return
    if at.is_symlink() or at.exists():
        raise Broken(f"`at: {shown}` cannot be made: there is a file of that name in the code", "choose another path")
    try:
        at.parent.mkdir(parents=True, exist_ok=True)
        at.symlink_to(source, target_is_directory=source.is_dir())
    except OSError as error:
        raise Broken(f"`at: {shown}` cannot be made: {error.strerror}", "choose another path") from error
