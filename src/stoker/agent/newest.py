"""Which of the restored checkpoints a script is told to resume from: what `${checkpoint.newest}` stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from stoker.model.checkpoint import CheckpointSet
from stoker.model.checkpointpaths import BESIDE, CheckpointPaths
from stoker.model.snapshot import EntryKind

POINTER_BYTES = 256  # a file called `latest` that is no larger may hold the name of another
_POINTER = re.compile(r"(?i)(.*[_.\-])?(last|latest|newest)([_.\-].*)?")
_BEST = re.compile(r"(?i)(.*[_.\-])?best([_.\-].*)?")
_CHECKPOINT = re.compile(r"(?i).*(check|ckpt|epoch|step|iter|snapshot).*")
_INSIDE = re.compile(r"(?i)(checkpoint|ckpt)s?")  # a folder that holds them, beside logs
_OTHER_FILE = re.compile(
    r"(?i).*\.(csv|jsonl?|txt|log|ya?ml|toml|png|jpe?g|svg|md|html|py|db|sqlite3?)|events\.out\..*"
)
_OTHER_FOLDER = re.compile(r"(?i)(runs|logs?|tensorboard|wandb|mlruns|samples|images|plots|figures)")


@dataclass(frozen=True, slots=True)
class _Unit:
    """A file, or a folder with everything in it, directly in a place where checkpoints lie."""

    path: str
    is_folder: bool
    written_ns: int

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name


def newest(found: CheckpointSet, paths: CheckpointPaths, work: Path) -> str:
    """Its path in the working directory; empty where the set has no file.

    What is named `last` or `latest` wins, then what the script wrote last. A folder counts as one. Logs, and the best
    so far, are only taken where there is nothing else.
    """
    named = [one.path for one in found.entries if one.kind is not EntryKind.FOLDER and not one.path.endswith(BESIDE)]
    files = {path: found.changed_ns.get(path, 0) for path in named}
    units = _units(files, paths.top)
    while units:
        best = _choose(units)
        inner = _inside(best, files) if best.is_folder else ""
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


def _choose(units: Iterable[_Unit]) -> _Unit:
    left = list(units)
    for rule in (_is_no_log, _is_not_best, _is_pointer, _is_checkpoint):
        left = [one for one in left if rule(one)] or left
    return max(left, key=lambda one: (one.written_ns, [int(digits) for digits in re.findall(r"\d{1,18}", one.name)]))


def _is_no_log(one: _Unit) -> bool:
    return not (_OTHER_FOLDER if one.is_folder else _OTHER_FILE).fullmatch(one.name)


def _is_not_best(one: _Unit) -> bool:
    return not _BEST.fullmatch(one.name)


def _is_pointer(one: _Unit) -> bool:
    return _POINTER.fullmatch(one.name) is not None


def _is_checkpoint(one: _Unit) -> bool:
    return _CHECKPOINT.fullmatch(one.name) is not None


def _inside(unit: _Unit, files: dict[str, int]) -> str:
    """The folder that holds checkpoints: one in this one, or this one itself; empty where this one is a checkpoint."""
    begin = f"{unit.path}/"
    below = [path[len(begin) :] for path in files if path.startswith(begin)]
    folders = {path.partition("/")[0] for path in below if "/" in path}
    named = next((begin + name for name in sorted(folders) if _INSIDE.fullmatch(name)), "")
    if named or _is_checkpoint(unit) or _is_pointer(unit):
        return named
    # A folder for one start of the script, such as `runs/exp2` or `2026-05-01-resnet`: what is in it is meant.
    return unit.path if any(_speaks_of_one(path) for path in below) else ""


def _speaks_of_one(path: str) -> bool:
    names = [name for name in path.split("/") if not _OTHER_FILE.fullmatch(name) and not _OTHER_FOLDER.fullmatch(name)]
    return any(_POINTER.fullmatch(name) or _CHECKPOINT.fullmatch(name) for name in names)


def _pointed_at(unit: _Unit, work: Path) -> str:
    """What a small file called `latest` names, where that lies beside it."""
    place = work / unit.path
    if unit.is_folder or not _is_pointer(unit) or place.is_symlink() or place.stat().st_size > POINTER_BYTES:
        return unit.path
    try:
        name = place.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return unit.path
    plain = name and "/" not in name and name not in (".", "..") and name.isprintable()
    return str(PurePosixPath(unit.path).parent / name) if plain and (place.parent / name).exists() else unit.path
