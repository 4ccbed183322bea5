"""Files that a script opens and a run would not have: left out by an ignore file, or outside of the source."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from stoker.client.script import Script, look
from stoker.client.tree import Tree
from stoker.model.checkpointpaths import CheckpointPaths
from stoker.model.commandline import commands
from stoker.model.job import Job
from stoker.model.snapshot import EntryKind

_MOST = 5
_OPENERS = re.compile(
    r"open|memmap|fromfile|load|loadtxt|genfromtxt|read_\w+|ImageFolder|load_dataset|load_from_disk|listdir|scandir"
    r"|glob|DataLoader|Dataset|\w*Dataset|isfile|isdir|is_file|is_dir|exists|read_text|read_bytes|iterdir"
)
_WRITES = re.compile(r"[wax]")


def missing(job: Job, tree: Tree) -> list[str]:
    """Sentences for a plan: what is missing, and the line that brings it. The script is read, never run."""
    script = _script(job, tree)
    if script is None or script.tree is None:
        return []
    kept = CheckpointPaths(job.checkpoints)
    sent = _sent(tree)
    found: dict[str, str] = {}
    for path in _opened(script):
        normal = os.path.normpath(path)
        inside = not normal.startswith("..")
        if inside and (normal in sent or kept.root(normal) or f"{normal}/".startswith(f"{job.outputs}/")):
            continue
        if _is_given(normal, job) or normal in (".", "..") or not (tree.root / normal).exists():
            continue
        found.setdefault(normal, _sentence(script.path, normal, (tree.root / normal).is_dir(), inside=inside))
    outer = [path for path in found if not any(path.startswith(f"{other}/") for other in found)]
    return [found[path] for path in outer[:_MOST]]


def _sentence(script: str, path: str, is_folder: bool, *, inside: bool) -> str:
    place = PurePosixPath(path)
    folder = place if is_folder else place.parent
    why = "an ignore file leaves it out" if inside else "it is outside of the source"
    name = re.sub(r"\W", "_", folder.name) or "data"
    at = f", at: {folder}" if inside and str(folder) != "." else ""
    brings = f"`data: {{{name}: {{path: {folder}{at}}}}}`"
    if str(folder) == "." or (not is_folder and not inside):
        brings = f"`data: {{{place.stem}: {{path: {path}, at: {place.name}}}}}`"
    return f"`{path}`, which {script} opens, is not sent: {why}. {brings} brings it"


def _script(job: Job, tree: Tree) -> Script | None:
    for command in reversed(commands(job.run)):
        name = command.script or (f"{command.module.replace('.', '/')}.py" if command.module else "")
        if name.endswith(".py") and (tree.root / name).is_file():
            return look(tree.root / name, name)
    return None


def _opened(script: Script) -> Iterator[str]:
    for node in ast.walk(script.tree or ast.Module([], [])):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        mode = node.args[1].value if len(node.args) > 1 and isinstance(node.args[1], ast.Constant) else ""
        if not _OPENERS.fullmatch(name) or (name == "open" and _WRITES.search(str(mode))):
            continue
        own = [node.func.value] if isinstance(node.func, ast.Attribute) and not node.args else []
        for argument in (*node.args[:1], *own, *(one.value for one in node.keywords)):
            text = script.values.text(argument)
            if text and "*" not in text and "\n" not in text and "://" not in text and 0 < len(text) < 200:
                yield text


def _is_given(path: str, job: Job) -> bool:
    given = [
        os.path.normpath(one) for use in job.data.values() for one in (use.path, use.at) if one and "://" not in one
    ]
    return any(path == one or path.startswith(f"{one}/") for one in given) or PurePosixPath(path).is_absolute()


def _sent(tree: Tree) -> set[str]:
    """Files and the folders that they are in."""
    files = {entry.path for entry in tree.snapshot.entries if entry.kind is not EntryKind.FOLDER}
    folders: set[str] = set()
    inner = {path.rpartition("/")[0] for path in files}
    while inner := {one for one in inner if one} - folders:
        folders |= inner
        inner = {path.rpartition("/")[0] for path in inner}
    return files | folders
