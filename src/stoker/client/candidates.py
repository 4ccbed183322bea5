"""Which file of a folder is the training script: each is parsed and rated; what is close to the best is told, too."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from stoker.client.script import Script, look
from stoker.model.commandline import NOTEBOOK

_MOST_FILES = 60
_LIKELY = re.compile(r"(?i)(.*[_-])?(train|training|trainer|finetune|fine_tune|pretrain|fit)([_-].*|\d*)?")
_MAIN = re.compile(r"(?i)(__)?main(__)?|run|experiment|app")
_TOOL = re.compile(
    r"(?i)setup|conftest|noxfile|fabfile|tasks|manage|versioneer|__init__|test(s|_.*)?|.*_tests?|_(?!_main__).*"
)
_HELPER = re.compile(
    r"(?i).*(utils?|helpers?|common|config(urator)?|settings|constants|models?|networks?|layers?|data_?loaders?|datasets?)"
    r"|data|(check|eval|evaluate|predict|infer|inference|sample|demo|serve|convert|export|download|preprocess|prepare|plot"
    r"|visuali[sz]e|bench|benchmark|generate|score|analy[sz]e|install|make|create|build)([_-].*)?"
)
_SKIPPED = (
    "tests",
    "test",
    "docs",
    "doc",
    "build",
    "dist",
    "node_modules",
    "site-packages",
    "venv",
    "env",
    "notebooks",
)
_CLOSE = 2
_MOST_NOTEBOOKS = 5  # they are large


class Candidates(NamedTuple):
    best: Script | None
    others: tuple[str, ...]  # that may be meant as well


def candidates(folder: Path) -> Candidates:
    """In the folder itself, or, where none of its files trains anything, in the folders below."""
    rated = _rated(folder, _files(folder, ""))
    if not rated or rated[0][0] < _CLOSE:
        notebooks = _rated(folder, _files(folder, "", NOTEBOOK)[:_MOST_NOTEBOOKS])
        rated = sorted([*rated, *notebooks], key=lambda one: (-one[0], one[1].path))
    if not rated or rated[0][0] < _CLOSE:
        below = [path for name in _folders(folder, "") for path in _files(folder, name)]
        below += [
            path for name in _folders(folder, "") for sub in _folders(folder, name) for path in _files(folder, sub)
        ]
        rated = sorted([*rated, *_rated(folder, below)], key=lambda one: (-one[0], one[1].path))
    if not rated or rated[0][0] < 0:
        return Candidates(None, ())
    best, score = _started_by(rated[0][1], rated, folder), rated[0][0]
    others = [(other, one) for other, one in rated if one is not best and folder / one.path not in best.modules]
    close = [one.path for other, one in others if other >= score - _CLOSE and other >= _CLOSE]
    return Candidates(best, tuple(close[:5]))


def _started_by(best: Script, rated: list[tuple[int, Script]], folder: Path) -> Script:
    """Where the likeliest file does nothing when it is run, the program that imports it is meant."""
    if best.acts:
        return best
    for _, script in rated:
        if script.is_program:
            script.follow(folder)
            if folder / best.path in script.modules:
                return script
    return best


def rate(script: Script) -> int:
    """The higher, the likelier. What a name says weighs less than what a script does."""
    stem = PurePosixPath(script.path).stem
    if _TOOL.fullmatch(stem):
        return -20
    score = 6 if _LIKELY.fullmatch(stem) else 3 if _MAIN.fullmatch(stem) else -6 if _HELPER.fullmatch(stem) else 0
    saved = script.saving({})
    score += 3 * bool(saved.checkpoints or saved.models) + 4 * script.trains + 2 * bool(script.flags)
    score += 2 * script.is_program + bool(script.frameworks)
    return score - (
        0 if script.acts or _LIKELY.fullmatch(stem) or _MAIN.fullmatch(stem) else 6 - 6 * bool(script.frameworks)
    )


def _rated(folder: Path, paths: list[str]) -> list[tuple[int, Script]]:
    scripts = [script for path in paths[:_MOST_FILES] if (script := look(folder / path, path))]
    return sorted(((rate(script), script) for script in scripts), key=lambda one: (-one[0], one[1].path))


def _files(folder: Path, inside: str, ending: str = ".py") -> list[str]:
    """Those that may be scripts, likely names first, so that a bound on their number leaves out the others."""
    found = [
        f"{inside}{entry.name}"
        for entry in _entries(folder / inside)
        if entry.name.endswith(ending) and entry.is_file()
    ]
    found = [path for path in found if path.isprintable() and not _TOOL.fullmatch(PurePosixPath(path).stem)]
    return sorted(found, key=lambda path: (not _LIKELY.fullmatch(PurePosixPath(path).stem), path))


def _folders(folder: Path, inside: str) -> list[str]:
    entries = [entry for entry in _entries(folder / inside) if entry.is_dir(follow_symlinks=False)]
    names = [entry.name for entry in entries if not entry.name.startswith(".") and entry.name not in _SKIPPED]
    return [f"{inside}{name}/" for name in sorted(names)[:30]]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []
