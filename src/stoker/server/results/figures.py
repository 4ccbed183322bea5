"""Figures of runs in the store: metric points, line by line as nodes wrote them, and the space that runs use."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from stoker.errors import Malformed, Missing, StokerError
from stoker.model import untrusted
from stoker.model.run.report import Measured, MetricSummary, joined_metrics, summed
from stoker.model.run.run import Run, RunSizes, Sizes
from stoker.model.untrusted import LINE_BYTES
from stoker.model.workspace import layout
from stoker.model.workspace.home import Home
from stoker.server.codeshelf import Shelves
from stoker.server.stores.stores import StoreDirectory
from stoker.stores import Store

PIECE_BYTES = 1 << 20
MOST_UNREADABLE = 10_000  # a file with more invalid lines is not read further: each costs time


def lines(store: Store, key: str, most_bytes: int) -> Iterator[bytes]:
    """Complete ones, without line breaks. One that is longer than any of an agent is returned empty; bytes after
    `most_bytes` are not read. None at all where the object does not exist."""
    rest, offset, skipping = b"", 0, False
    while offset < most_bytes and (piece := _piece(store, key, offset)):
        offset += len(piece)
        first, *others = piece.split(b"\n")
        if not others:
            rest, skipping = (b"", True) if skipping or len(rest) + len(first) > LINE_BYTES else (rest + first, False)
            continue
        yield b"" if skipping else rest + first
        yield from others[:-1]
        rest, skipping = others[-1], False


def _piece(store: Store, key: str, offset: int) -> bytes:
    try:
        return store.get(key, offset, PIECE_BYTES)
    except Missing:
        return b""


FILE_BYTES = 1 << 30
_SUMMED_BYTES = 8 << 20  # of one node; reading more takes seconds, and what nodes counted themselves is close enough


def measured(line: bytes, now: datetime) -> Measured | None:
    """None for a line that no agent writes."""
    try:
        return untrusted.load(Measured, line, now)
    except Malformed:
        return None


def points(store: Store, key: str, now: datetime) -> Iterator[Measured]:
    """Of one node, in their order."""
    unreadable = 0
    for line in lines(store, key, FILE_BYTES):
        if point := measured(line, now):
            yield point
        else:
            unreadable += 1
        if unreadable >= MOST_UNREADABLE:
            return


def summary_before(store: Store, run: Run, number: int, now: datetime) -> dict[str, MetricSummary] | None:
    """Of all points that attempts before this one have stored. None where there are none, or too many to read."""
    found: dict[str, MetricSummary] = {}
    for attempt in (one for one in run.attempts if one.number < number):
        keys = [layout.metrics(run.id, attempt.number, member.node) for member in attempt.members]
        if any(_is_large(store, key) for key in keys):
            return None
        nodes = [summed((one.values, one.step) for one in points(store, key, now)) for key in keys]
        # If several nodes report the same metric, that of the first one counts.
        found = joined_metrics(found, {name: one for node in reversed(nodes) for name, one in node.items()})
    return found or None


def _is_large(store: Store, key: str) -> bool:
    try:
        return bool(store.get(key, _SUMMED_BYTES, 1))
    except Missing:
        return False


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
