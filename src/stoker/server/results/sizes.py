"""The space that runs use in their stores and on this computer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from stoker.errors import Missing, StokerError
from stoker.model.run.pruning import RunSizes, Sizes
from stoker.model.run.run import Run
from stoker.model.workspace import layout
from stoker.model.workspace.home import Home
from stoker.server.code.shelf import Shelves
from stoker.server.stores.stores import StoreDirectory
from stoker.stores import Store

_THREADS = 8


class Weighing:
    def __init__(self, home: Home, stores: StoreDirectory, shelves: Shelves) -> None:
        self._home = home
        self._stores = stores
        self._shelves = shelves

    def weigh(self, runs: Sequence[Run]) -> Sizes:
        """Lists every store of these runs."""
        code = {(run.store, run.snapshot): 0 for run in runs}
        for store, snapshot in code:
            with suppress(StokerError):
                code[store, snapshot] = self._shelves.of(store).size_bytes(snapshot)
        with ThreadPoolExecutor(_THREADS) as threads:
            found = dict(zip([run.name for run in runs], threads.map(self._run, runs), strict=True))
        found = {run.name: replace(found[run.name], code=code[run.store, run.snapshot]) for run in runs}
        total = sum(one.stored - one.code for one in found.values()) + sum(code.values())
        return Sizes(found, total, self._parts())

    def _run(self, run: Run) -> RunSizes:
        here = _folder_bytes(Path(run.landed)) if run.landed else 0
        here += sum(_folder_bytes(self._home.nodes / attempt.key) for attempt in run.attempts)
        try:
            return replace(stored_sizes(self._stores.of(run), run.id), here=here)
        except (StokerError, Missing) as error:
            return RunSizes(here=here, trouble=error.message)

    def _parts(self) -> Mapping[str, int]:
        parts = {
            "environments": self._home.environments,
            "packages taken along": self._home.software,
            "data cache": self._home.cache,
            "twin": self._home.twin,
            "Azurite": self._home.azurite,
        }
        sizes = {name: _folder_bytes(place) for name, place in parts.items()}
        return {name: size for name, size in sizes.items() if size}


def stored_sizes(store: Store, run_id: str) -> RunSizes:
    """By the names of keys; unknown keys of nodes count as logs."""
    top = layout.run(run_id)
    sizes = {"checkpoints": 0, "outputs": 0, "logs": 0}
    for stored in store.list(top.rstrip("/")):
        kind = stored.key.removeprefix(top).partition("/")[0]
        sizes[kind if kind in sizes else "logs"] += stored.size_bytes
    return RunSizes(0, sizes["checkpoints"], sizes["outputs"], sizes["logs"])


def _folder_bytes(top: Path) -> int:
    """The disk usage of its files; hard links count once, unreadable files not at all."""
    seen: set[tuple[int, int]] = set()
    return sum(_sizes(os.fspath(top), seen))


def _sizes(top: str, seen: set[tuple[int, int]]) -> Iterable[int]:
    waiting = [top]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                        continue
                    found = entry.stat(follow_symlinks=False)
                    if (found.st_dev, found.st_ino) not in seen:
                        seen.add((found.st_dev, found.st_ino))
                        yield found.st_blocks * 512
