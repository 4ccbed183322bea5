"""Before a script resumes: restores its outputs, so that it ends as if it had never been interrupted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath

from stoker.agent.checkpoints.restoring import Tell
from stoker.agent.machine.machine import NodeFolder, remove_tree
from stoker.errors import Corrupt, Missing, SnapshotRefused
from stoker.model import untrusted
from stoker.model.job.sections import BESIDE, CheckpointPaths
from stoker.model.orders import Orders
from stoker.model.snapshot import CheckpointSet, EntryKind, Snapshot
from stoker.model.workspace import layout
from stoker.stores import Store
from stoker.stores.trees.unpack import unpack


def carry_over(store: Store, orders: Orders, folder: NodeFolder, tell: Tell) -> Snapshot:
    """The restored files, by path below the outputs. Checkpoints among the outputs are not changed: they are as
    committed. Raises StoreFailed where the store does not answer."""
    try:
        paths, top = CheckpointPaths(orders.job.checkpoints), orders.job.outputs
        entries = _newest(store, orders).entries
        wanted = Snapshot(tuple(one for one in entries if paths.root(f"{top}/{one.path}") is None))
        remove_tree(folder.restoring)
        unpack(store, wanted, folder.restoring, partial(layout.output, orders.run_id))
    except (Missing, Corrupt, SnapshotRefused) as error:
        remove_tree(folder.restoring)
        tell("outputs-lost", f"could not restore the outputs of earlier attempts: {error.message}")
        return Snapshot(())
    _move(wanted, folder.restoring, folder.work / orders.job.outputs)
    return wanted


def _newest(store: Store, orders: Orders) -> Snapshot:
    """Each attempt started with the outputs of the one before it, so the newest attempt with outputs has all."""
    newest = orders.attempt if orders.incarnation > 1 else orders.attempt - 1
    for attempt in range(newest, -1, -1):  # 0: of the run that this one resumes
        try:
            key = layout.outputs(orders.run_id, attempt, orders.node)
            return untrusted.fetch(Snapshot, store, key, untrusted.MANIFEST_BYTES, datetime.now(UTC))
        except Missing:
            continue
    return Snapshot(())


def _move(wanted: Snapshot, source: Path, target: Path) -> None:
    for entry in wanted.entries:
        place = target / entry.path
        if entry.kind is EntryKind.FOLDER:
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_dir() and not place.is_symlink():
            remove_tree(place)  # of the source tree; the script had replaced it
        (source / entry.path).replace(place)
    remove_tree(source)


# Which of the restored checkpoints a script should resume from: the value of `${checkpoint.newest}`.

POINTER_BYTES = 256  # a file called `latest` up to this size may contain the name of another
_POINTER = re.compile(r"(?i)(.*[_.\-])?(last|latest|newest)([_.\-].*)?")
_BEST = re.compile(r"(?i)(.*[_.\-])?best([_.\-].*)?")
# What a script saves besides its model: it finds that by itself.
_PART = re.compile(r"(?i)(.*[_.\-])?(opt|optim|optimizer|ema|sched|scheduler|scaler|rng|replay|buffer)([_.\-\d].*)?")
_CHECKPOINT = re.compile(r"(?i).*(check|ckpt|epoch|step|iter|snapshot).*")
_INSIDE = re.compile(r"(?i)(checkpoint|ckpt)s?")  # a folder that contains them, next to logs
_SEVERAL = re.compile(r"(?i)(.*[_.\-])?(checkpoint|ckpt|snapshot)s")
_OTHER_FILE = re.compile(
    r"(?i).*\.(csv|jsonl?|txt|log|ya?ml|toml|png|jpe?g|svg|md|html|py|db|sqlite3?)|events\.out\..*"
)
_OTHER_FOLDER = re.compile(r"(?i)(runs|logs?|tensorboard|wandb|mlruns|samples|images|plots|figures)")


@dataclass(frozen=True, slots=True)
class _Unit:
    """A file, or a folder with everything in it, directly in a checkpoint folder."""

    path: str
    is_folder: bool
    written_ns: int

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name


def newest(found: CheckpointSet, paths: CheckpointPaths, work: Path, *, numbered: bool = False) -> str:
    """Its path in the working directory; empty where the set has no file.

    What is named `last` or `latest` wins, then what the script wrote last. A folder counts as one. Logs, the best so
    far, and parts such as the optimizer's state are taken only where there is nothing else. If it is to be `numbered`,
    a name with a number wins.
    """
    named = [one.path for one in found.entries if one.kind is not EntryKind.FOLDER and not one.path.endswith(BESIDE)]
    files = {path: found.changed_ns.get(path, 0) for path in named}
    units = _units(files, paths.top)
    while units:
        best = _choose(units, numbered=numbered)
        inner = _inside(best, files, numbered=numbered) if best.is_folder else ""
        if not inner:
            return _pointed_at(best, work)
        files = {path: at for path, at in files.items() if path.startswith(f"{inner}/")}
        units = _units(files, partial(_always, inner))
    return ""


def _always(top: str, _path: str) -> str:
    return top


def _units(files: dict[str, int], top_of: Callable[[str], str]) -> list[_Unit]:
    units: dict[str, _Unit] = {}
    for path, written_ns in files.items():
        top = top_of(path)
        begin = f"{top}/" if top else ""
        name, slash, _ = path[len(begin) :].partition("/")
        known = units.get(begin + name)
        units[begin + name] = _Unit(begin + name, bool(slash), max(written_ns, known.written_ns if known else 0))
    return list(units.values())


def _choose(units: Iterable[_Unit], *, numbered: bool) -> _Unit:
    left = list(units)
    first = [_has_number] if numbered else []
    for rule in (_is_no_log, _is_not_best, _is_no_part, *first, _is_pointer, _is_checkpoint):
        left = [one for one in left if rule(one)] or left
    return max(left, key=lambda one: (one.written_ns, [int(digits) for digits in re.findall(r"\d{1,18}", one.name)]))


def _is_no_log(one: _Unit) -> bool:
    return not (_OTHER_FOLDER if one.is_folder else _OTHER_FILE).fullmatch(one.name)


def _is_not_best(one: _Unit) -> bool:
    return not _BEST.fullmatch(one.name)


def _is_no_part(one: _Unit) -> bool:
    return not _PART.fullmatch(one.name)


def _has_number(one: _Unit) -> bool:
    return re.search(r"\d", one.name) is not None


def _is_pointer(one: _Unit) -> bool:
    return _POINTER.fullmatch(one.name) is not None


def _is_checkpoint(one: _Unit) -> bool:
    return _CHECKPOINT.fullmatch(one.name) is not None


def _inside(unit: _Unit, files: dict[str, int], *, numbered: bool) -> str:
    """The folder that contains checkpoints: a subfolder, or this one itself; empty where this one is a checkpoint."""
    begin = f"{unit.path}/"
    below = [path[len(begin) :] for path in files if path.startswith(begin)]
    folders = {path.partition("/")[0] for path in below if "/" in path}
    named = next((begin + name for name in sorted(folders) if _INSIDE.fullmatch(name)), "")
    is_one = unit.name.isdecimal() or (_is_checkpoint(unit) and not _SEVERAL.fullmatch(unit.name))
    if named or is_one or _is_pointer(unit):
        return named
    # A folder of one start of the script, such as `runs/exp2` or `2026-05-01-resnet`: use its contents.
    return unit.path if any(_speaks_of_one(path, numbered=numbered) for path in below) else ""


def _speaks_of_one(path: str, *, numbered: bool) -> bool:
    """Whether a name in it is that of a checkpoint; where it is to be numbered, a file with a number may be one."""
    names = [name for name in path.split("/") if not _OTHER_FILE.fullmatch(name) and not _OTHER_FOLDER.fullmatch(name)]
    of_number = numbered and bool(names) and path.endswith(names[-1]) and re.search(r"\d", names[-1]) is not None
    return of_number or any(_POINTER.fullmatch(name) or _CHECKPOINT.fullmatch(name) for name in names)


def _pointed_at(unit: _Unit, work: Path) -> str:
    """The name in a small file called `latest`, where a file of that name exists next to it."""
    place = work / unit.path
    if unit.is_folder or not _is_pointer(unit) or place.is_symlink() or place.stat().st_size > POINTER_BYTES:
        return unit.path
    try:
        name = place.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return unit.path
    plain = name and "/" not in name and name not in (".", "..") and name.isprintable()
    return str(PurePosixPath(unit.path).parent / name) if plain and (place.parent / name).exists() else unit.path
