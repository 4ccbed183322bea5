"""The folder that checkpoints stand in: a snapshot becomes one by one rename when all of its ranks' files are there,
and is removed by another."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shutil import rmtree

from stoker.checkpoint.read import format
from stoker.checkpoint.read.format import CheckpointManifest, FileEntry
from stoker.checkpoint.read.reading import OpenCheckpoint, open_as_is, open_verified, rank_folder
from stoker.checkpoint.save.snapshot import Dropped, StateCopy, WriteOrders, Written, sync_folder, write_files
from stoker.checkpoint.surroundings import Surroundings
from stoker.errors import Unreadable

_NAME = re.compile(r"step-(\d{9,})(?:-(\d+))?")
QUARANTINE = "quarantine"
_RECENT_S = 20.0  # nodes commit what they have within this time of each other, unless they are busy with large files


class CheckpointFolder:
    """Used by one process at a time; with several ranks on a node, the first of them commits and tidies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        """Oldest first. What is here is whole as far as renaming goes, but not verified."""
        if not self.folder.is_dir():
            return []
        found = [match for path in self.folder.iterdir() if (match := _NAME.fullmatch(path.name))]
        return [match[0] for match in sorted(found, key=lambda match: (int(match[1]), int(match[2] or 1)))]

    def newest(
        self, up_to: str | None = None, fits: Callable[[CheckpointManifest], bool] = lambda _: True
    ) -> OpenCheckpoint | None:
        """The newest that fits and passes verification. What does not pass is moved aside, loudly, and the one before
        it tried."""
        for name in reversed(self.names()):
            if up_to is not None and name > up_to:
                continue
            try:
                if fits(open_as_is(self.folder / name).manifest):
                    return open_verified(self.folder / name)
            except Unreadable as error:
                self.quarantine(name, error.message)
        return None

    def quarantine(self, name: str, reason: str) -> None:
        aside = self.folder / QUARANTINE
        aside.mkdir(exist_ok=True)
        target = aside / name
        number = 1
        while target.exists():
            number += 1
            target = aside / f"{name}.{number}"
        (self.folder / name).rename(target)
        say(f"{name} is not used: {reason}; moved to {target}")

    def fresh(self, step: int, number: int) -> Path:
        """The folder in which a checkpoint is made. Several ranks may ask for the same one."""
        path = self.folder / f".writing-{step:09d}-{number}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def commit(self, made: Path, manifest: CheckpointManifest) -> Path:
        """Makes a finished folder visible. After this returns, it survives a power cut."""
        (made / format.NAME).write_bytes(manifest.dump())
        sync_folder(made, its_files=(format.NAME,))
        target = self.folder / f"step-{manifest.step:09d}"
        again = 1
        while target.exists():  # a second save at the same step, such as at the end of an epoch
            again += 1
            target = self.folder / f"step-{manifest.step:09d}-{again}"
        made.rename(target)
        sync_folder(self.folder)
        return target

    def tidy(self, keep: int, best: str | None, *, spread: bool = False) -> None:
        """Removes what retention does not keep. Called after a commit, never before. `spread`: other nodes save the
        same steps, so recent ones are kept that all of them are likely to have."""
        there = [SavedCheckpoint(name, self._metrics(name) if best else {}) for name in self.names()]
        if not there:
            return
        kept = to_keep(there, keep, best)
        if spread:
            kept |= landmarks(name for name in self.names() if self._is_recent(name))
        for name in {one.name for one in there} - kept:
            self._remove(name)

    def sweep(self) -> None:
        """Removes what a process that was killed left half-made. For the first moment of a process."""
        for pattern in (".writing-*", ".removing-*"):
            for path in self.folder.glob(pattern):
                shutil.rmtree(path, ignore_errors=True)

    def _metrics(self, name: str) -> dict[str, float]:
        with suppress(OSError, Unreadable):
            return dict(format.load((self.folder / name / format.NAME).read_bytes()).metrics)
        return {}

    def _is_recent(self, name: str) -> bool:
        with suppress(OSError):
            return time.time() - (self.folder / name).stat().st_mtime < _RECENT_S
        return False

    def _remove(self, name: str) -> None:
        """Renamed first, so that what is half-removed is never taken for a checkpoint."""
        doomed = self.folder / f".removing-{name}-{time.time_ns()}"
        with suppress(OSError):
            (self.folder / name).rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def say(text: str) -> None:
    sys.stderr.write(f"stoker: checkpoint: {text}\n")
    sys.stderr.flush()


# Which checkpoints to keep. Pure: the shelf removes what is not named here.


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """One checkpoint that is there, as far as retention cares."""

    name: str
    metrics: Mapping[str, float] = field(default_factory=dict)


def to_keep(there: Sequence[SavedCheckpoint], keep: int, best: str | None = None) -> set[str]:
    """The newest `keep`, and the best by a metric. `there` is in the order of saving.

    `best` names the metric; with a leading minus less is better. Of equals the earliest is the best.
    """
    if keep < 1:
        raise ValueError(f"keep={keep}: expected at least 1")
    if not isinstance(best, str | None):
        what = f"`best` is {type(best).__name__}, expected the name of a metric, such as `val_acc`"
        raise TypeError(f"{what}; to save an object, give it another name")
    names = {one.name for one in there[-keep:]}
    if best:
        judged = [one for one in there if not math.isnan(score(one.metrics, best))]
        if judged:
            names.add(max(judged, key=lambda one: score(one.metrics, best)).name)
    return names


_OF_EACH = 2
_HIGHEST = 32  # powers of two


def landmarks(names: Iterable[str]) -> set[str]:
    """Of each power of two, the newest two whose step is the first one in a block of so many steps.

    The nodes of a run save the same steps, and commit them at different moments. A script that saves every tenth of a
    second would have removed what one node has committed before another one commits: these are on both.
    """
    steps = {int(match[1]): name for name in names if (match := _NAME.fullmatch(name))}
    found: set[str] = set()
    for power in range(1, _HIGHEST):
        blocks: dict[int, str] = {}
        for step in sorted(steps):
            blocks.setdefault(step >> power, steps[step])
        found |= set(list(blocks.values())[-_OF_EACH:])
    return found


def score(metrics: Mapping[str, float], best: str) -> float:
    """More is better; not a number where the metric is not known."""
    value = metrics.get(best.lstrip("-"), math.nan)
    return -value if best.startswith("-") else value


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
        several = self._around.world > self._around.local_world
        self._shelf.tidy(self._keep, self._best, spread=several)
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
