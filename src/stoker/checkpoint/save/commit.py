"""Makes a snapshot a checkpoint: this rank's files, then, when every rank's are there, one rename."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from shutil import rmtree

from stoker.checkpoint.read.manifests import CheckpointManifest, FileEntry
from stoker.checkpoint.read.reading import OpenCheckpoint, rank_folder
from stoker.checkpoint.read.shelf import CheckpointFolder
from stoker.checkpoint.save.files import Dropped, WriteOrders, Written, sync_folder, write_files
from stoker.checkpoint.save.snapshot import StateCopy
from stoker.checkpoint.surroundings import Surroundings

_LONGEST_WAIT_S = 600.0
_PATIENCE_S = 30.0  # with a rank that is late, when a newer save is waiting
_LOOK_EVERY_S = 0.01


class Saver:
    """The ranks of a node share a folder; the first of them, its leader, commits. Ranks meet in files, so that no
    collective runs beside the training's own."""

    def __init__(self, shelf: CheckpointFolder, around: Surroundings, keep: int, best: str | None) -> None:
        self._shelf = shelf
        self._around = around
        self._keep = keep
        self._best = best
        self._known: dict[str, Path] = {}
        self.moved_bytes = 0  # written by the last save: what was linked does not count

    def follow(self, opened: OpenCheckpoint) -> None:
        """Files of this checkpoint need not be written again while they stay the same."""
        self._remember(opened.path, opened.manifest)

    def __call__(self, snapshot: StateCopy, orders: WriteOrders) -> Path | None:
        folder = self._shelf.fresh(snapshot.step, snapshot.number)
        try:
            if self._leads:
                return self._lead(snapshot, folder, orders)
            self._follow_leader(snapshot, folder, orders)
        except FileNotFoundError:
            if folder.exists():
                raise
            raise Dropped from None  # by the leader
        except BaseException:
            if self._leads:
                rmtree(folder, ignore_errors=True)
            raise
        return None

    @property
    def _leads(self) -> bool:
        return self._around.local_rank == 0

    def _lead(self, snapshot: StateCopy, folder: Path, orders: WriteOrders) -> Path:
        parts = [self._write(snapshot, folder, self._known, orders)]
        if self._around.local_world > 1:
            _put_part(folder, self._around.rank, parts[0])
            parts = [self._part(folder, rank, orders) for rank in self._node_ranks]
        manifest = CheckpointManifest(
            step=snapshot.step,
            epoch=snapshot.epoch,
            saved_at=time.time(),
            files={name: entry for part in parts for name, entry in part.files.items()},
            tensors={name: file for part in parts for name, file in part.tensors.items()},
            metrics=snapshot.metrics,
            ranks=self._around.world,
        )
        made = self._shelf.commit(folder, manifest)
        self._remember(made, manifest)
        self._shelf.tidy(self._keep, self._best)
        return made

    def _follow_leader(self, snapshot: StateCopy, folder: Path, orders: WriteOrders) -> None:
        """Writes only what differs from the leader's: replicated models and optimizers become links."""
        leader = self._part(folder, self._node_ranks[0], orders)
        known = {entry.sha256: folder / name for name, entry in leader.files.items()}
        _put_part(folder, self._around.rank, self._write(snapshot, folder, known, orders))

    def _write(self, snapshot: StateCopy, folder: Path, known: Mapping[str, Path], orders: WriteOrders) -> Written:
        prefix = rank_folder(self._around.rank)
        written = write_files(snapshot, folder / prefix, known, orders)
        if not snapshot.intact():
            raise Dropped
        self.moved_bytes = written.moved_bytes
        return Written(
            {prefix + name: entry for name, entry in written.files.items()},
            {prefix + name: prefix + file for name, file in written.tensors.items()},
            written.moved_bytes,
        )

    def _part(self, folder: Path, rank: int, orders: WriteOrders) -> Written:
        """Waits for what a rank has written. A leader that has gone, or a newer save, ends the wait."""
        path = folder / _part_name(rank)
        begun = time.monotonic()
        while not path.exists():
            waited_s = time.monotonic() - begun
            if orders.dropped() or not folder.exists() or (orders.newer_waits() and waited_s > _PATIENCE_S):
                raise Dropped
            if waited_s > _LONGEST_WAIT_S:
                raise TimeoutError(f"rank {rank} has not saved {folder.name} within {_LONGEST_WAIT_S:.0f} s")
            time.sleep(_LOOK_EVERY_S)
        found = json.loads(path.read_bytes())
        files = {name: FileEntry(**entry) for name, entry in found["files"].items()}
        return Written(files, found["tensors"], 0)

    @property
    def _node_ranks(self) -> range:
        first = self._around.rank - self._around.local_rank
        return range(first, first + self._around.local_world)

    def _remember(self, path: Path, manifest: CheckpointManifest) -> None:
        prefix = rank_folder(self._around.rank)
        own = {name: entry for name, entry in manifest.files.items() if name.startswith(prefix)}
        self._known = {entry.sha256: path / name for name, entry in own.items()}


def _part_name(rank: int) -> str:
    return f".part-{rank}.json"


def _put_part(folder: Path, rank: int, written: Written) -> None:
    path = folder / _part_name(rank)
    files = {name: asdict(entry) for name, entry in written.files.items()}
    path.with_suffix(".new").write_text(json.dumps({"files": files, "tensors": written.tensors}), encoding="utf-8")
    path.with_suffix(".new").replace(path)
    sync_folder(folder)
