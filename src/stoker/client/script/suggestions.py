"""Finds the training script of a folder and its places."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from stoker.client.script.configured import place_variables
from stoker.client.script.folding import UNKNOWN
from stoker.client.script.localcode import name_of, nodes
from stoker.client.script.resumeflag import refused
from stoker.client.script.saving import climbs
from stoker.client.script.script import Script, look
from stoker.model.job.commandline import NOTEBOOK
from stoker.model.job.sections import DEFAULT, is_folder

_MOST_FILES = 60
_LIKELY = re.compile(r"(?i)(.*[ _-])?(train|training|trainer|finetune|fine_tune|pretrain|fit)([ _-].*|\d*)?")
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
    others: tuple[str, ...]  # other candidates


def candidates(folder: Path) -> Candidates:
    """In the folder itself, or, if none of its files trains anything, in the folders below."""
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
    if not rated or rated[0][0] < _CLOSE:
        below = [path for name in (*_folders(folder, ""), "notebooks/") for path in _files(folder, name, NOTEBOOK)]
        rated = sorted([*rated, *_rated(folder, below[:_MOST_NOTEBOOKS])], key=lambda one: (-one[0], one[1].path))
    if not rated or rated[0][0] < 0:
        return Candidates(None, ())
    best, score = _started_by(rated[0][1], rated, folder), rated[0][0]
    others = [(other, one) for other, one in rated if one is not best and folder / one.path not in best.modules]
    close = [one.path for other, one in others if other >= score - _CLOSE and other >= _CLOSE]
    return Candidates(best, tuple(close[:5]))


def _started_by(best: Script, rated: list[tuple[int, Script]], folder: Path) -> Script:
    """If the best candidate does nothing when run, the program that imports it is chosen."""
    if best.acts:
        return best
    for _, script in rated:
        if script.acts:
            script.follow(folder)
            if folder / best.path in script.modules:
                return script
    return best


def rate(script: Script) -> int:
    """Higher is more likely. A script's name weighs less than what it does."""
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
    """Files that may be scripts, likely names first, so that a limit on their number drops the others."""
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


# The outputs and checkpoints of a first job file, from where a script writes and saves.

_OUTPUTS = ("outputs", "output", "results", "result", "out", "models", "saved_models", "artifacts", "runs", "logs")
# Folders with one subfolder per start of the script, or per experiment: saved as a whole.
_OF_EXPERIMENTS = re.compile(
    r"(?i)runs?|outputs?|out|results?|logs?|experiments?|exps?|work_?dirs?|work|artifacts|saved?"
)
_MOST = 4


class SuggestedPlaces(NamedTuple):
    outputs: str
    checkpoints: tuple[str, ...]
    resumes: bool  # the script looks for its own checkpoint
    saves: bool  # a place is known, from the script's text or its arguments
    creates: bool = False  # the script creates them itself, and refuses existing ones
    once: bool = False  # and that at each start, also when it is told to resume


def places(script: Script, given: dict[str, str], command: str, *, told_to_resume: bool = False) -> SuggestedPlaces:
    """`given` are the values of its flags in the command. A script with a resume flag saves something somewhere."""
    saved = script.saving(given)
    kept = [_place(path) for path in saved.checkpoints]
    named = [top for top in script.writes if re.search(r"(?i)ckpt|checkpoint", top)]
    code = {PurePosixPath(script.path).parent.as_posix(), *(path.parent.name for path in script.modules)}
    made = [top for top in script.writes if top not in (*named, *given.values(), *code)]
    usual = (one for place in _OUTPUTS for one in made if PurePosixPath(one).name == place)
    outputs = next(usual, made[0] if made else "outputs")
    outputs = "outputs" if "${outputs}" in command or script.folder_variables else outputs
    if told_to_resume and not kept and (made or script.folder_variables or "${outputs}" in command):
        kept = [outputs]
    own = ["checkpoints"] if "${checkpoints}" in command else named[:1] if not kept else []
    # A model next to the script cannot be in the folder of outputs: checkpoints are downloaded, too.
    beside = [path for path in map(_place, saved.models) if not _is_in(path, outputs)]
    every = list(dict.fromkeys([*own, *kept, *beside]))
    chosen = [one for one in every if not any(_is_in(one, other) for other in every if other != one)]
    refuses = refused(script, given)
    created = {one for one in (outputs, *chosen) if one.rstrip("/") in refuses}
    if not (told_to_resume or _may_resume(script)):
        fixed = [path for path in refuses if UNKNOWN not in path]  # others have a new name at each start
        bars = {one for one in chosen if any(_is_in(path, one) for path in fixed)}
        chosen = [one for one in chosen if one not in created | bars]  # restored, they would prevent its next start
    return SuggestedPlaces(
        outputs,
        tuple(chosen[:_MOST]) or (DEFAULT,),
        saved.resumes,
        bool(every or made or "${outputs}" in command),
        bool(created),
        any(refuses[one.rstrip("/")] for one in created),
    )


def bringing_inside(script: Script, given: dict[str, str]) -> list[str]:
    """The variable of the environment that moves what the script saves outside, as in `~/.cache`, to a path that is
    kept."""
    if not script.tree or not script.saving(given).outside:
        return []
    names = place_variables([script.tree, *script.modules.values()])
    return [name for name in names if not script.saving({**given, name: "outputs"}).outside][:1]


def from_root(found: SuggestedPlaces, script: Script, command: str) -> SuggestedPlaces:
    """Paths that a script writes are relative to the folder it runs in: its own, `src` for a module in it, or the
    job file's folder. So are paths in the command."""
    folder = PurePosixPath("src" if command.startswith("cd src && ") else script.runs_in)
    if folder == PurePosixPath("."):
        return found
    named = {place for place in ("outputs", "checkpoints") if f"${{{place}}}" in command}

    def placed(path: str) -> str:
        if PurePosixPath(path).parts[0] in named:
            return path
        return os.path.normpath(folder / path) + ("/" if path.endswith("/") else "")

    return found._replace(outputs=placed(found.outputs), checkpoints=tuple(placed(one) for one in found.checkpoints))


def _place(path: str) -> str:
    """What the job file names: its folder, or the file if it is next to the script."""
    if up := climbs(path):
        return "../" * up + _place(path[3 * up :])
    if path.endswith("/"):
        place = path.rstrip("/")
    else:
        parts = PurePosixPath(path).parts
        if len(parts) == 1:
            return path
        if len(parts) > 2 and _OF_EXPERIMENTS.fullmatch(parts[0]):
            return parts[0]
        known = next((number for number, part in enumerate(parts) if UNKNOWN in part), len(parts) - 1)
        place = "/".join(parts[: min(max(known, 1), len(parts) - 1)])
    return place if is_folder(place) or UNKNOWN in place else f"{place}/"


def _is_in(path: str, folder: str) -> bool:
    return path.startswith(f"{folder.rstrip('/')}/") or path.rstrip("/") == folder.rstrip("/")


# Problems that a first job file cannot fix, reported by `stoker init`: places that are not saved, scripts that never
# resume.

_RESUMING = re.compile(
    r"(?i)_?(re)?(load|restore|resume|read_checkpoint)\w*|from_pretrained|get_last_checkpoint|\w*_?load(er)?_?state\w*"
)
_RESUMING_BY_NATURE = (
    "BackupAndRestore",
    "create_study",
    "load_study",
    "RDBStorage",
    "CheckpointManager",
    "LoadInitState",
    "Memory",
    "LightningCLI",
    "JournalStorage",
)
_RESUMING_KEYWORDS = {"resume_from_checkpoint", "ckpt_path", "xgb_model", "init_model", "resume", "warm_start"}
_RESUMING_KEYWORDS |= {"save_snapshot"}  # of CatBoost, which finds it again
_READS_DATA = re.compile(
    r"load(_dataset|_data|txt|_from_disk|ers?|_image|_csv|_iris|_digits|_json|_yaml|_config|s|_dotenv|_module)?"
)
_OF_DATA = ("json", "yaml", "toml", "tomllib", "np", "numpy", "OmegaConf", "importlib", "ctypes", "datasets", "csv")


def advice(script: Script, given: dict[str, str], *, saves: bool, resume: str) -> list[str]:
    """Nothing is reported if the text does not tell. `given` are the flags that the command sets."""
    lines = []
    if _reads_input(script):
        start = f"python {script.path} < FILE"
        lines.append(f"{script.path} reads its standard input, which is empty in a run: give it a file, `run: {start}`")
    outside = script.saving(given).outside
    lines += [
        f"{script.path} saves to `{path}`, which is outside its working directory and is not saved: use a relative path"
        for path in outside[:3]
    ]
    if script.tree is None or not (script.trains or script.frameworks):
        return lines
    if not saves and not outside:
        lines.append(f"could not find where {script.path} saves: set `outputs` and `checkpoints`")
    elif not resume and not _may_resume(script):
        lines.append(f"{script.path} loads no checkpoint: after an eviction it starts over")
    return lines


def _reads_input(script: Script) -> bool:
    """All of it, as a filter does; one that asks a person is run with `--interactive`."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == "stdin" and getattr(node.value, "id", "") == "sys"
        for node in nodes(script.tree or ast.Module([], []))
    )


def _may_resume(script: Script) -> bool:
    for tree in (script.tree, *script.modules.values()):
        late = _after_training(tree) if tree else set()
        for node in nodes(tree) if tree else ():
            if not isinstance(node, ast.Call) or node in late:
                continue
            if _resumes(node) or {one.arg for one in node.keywords} & {*_RESUMING_KEYWORDS}:
                return True
    return False


def _after_training(tree: ast.Module) -> set[ast.Call]:
    """Calls behind the loop that saves, in the same function: as those that load the best model at the end."""
    found: set[ast.Call] = set()
    for owner in (tree, *(one for one in nodes(tree) if isinstance(one, ast.FunctionDef))):
        own = list(_own(owner))
        saves = [
            one.lineno for one in own if isinstance(one, ast.Call) and name_of(one) in ("save", "dump", "save_weights")
        ]
        loops = [one for one in own if isinstance(one, ast.For | ast.While)]
        ends = [one.end_lineno or 0 for one in loops if any(one.lineno < at <= (one.end_lineno or 0) for at in saves)]
        found |= {one for one in own if isinstance(one, ast.Call) and ends and one.lineno > max(ends)}
    return found


def _own(owner: ast.AST) -> Iterator[ast.AST]:
    """What is in it, without the functions and classes in it."""
    for one in ast.iter_child_nodes(owner):
        yield one
        if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _own(one)


def _resumes(call: ast.Call) -> bool:
    name, owner = name_of(call), ""
    if isinstance(call.func, ast.Attribute):
        owner = getattr(call.func.value, "id", "")
    if name in _RESUMING_BY_NATURE:
        return True
    if owner in _OF_DATA and not (name == "load" and owner in ("np", "numpy")):
        return False
    return bool(_RESUMING.fullmatch(name)) and not (_READS_DATA.fullmatch(name) and name != "load")
