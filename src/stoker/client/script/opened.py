"""What a script opens or imports and a run would not have: left out by an ignore file, or outside of the source."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath

from stoker.client.script.localcode import name_of, nodes
from stoker.client.script.script import Script, look
from stoker.client.source.tree import Tree
from stoker.model.job.checkpointpaths import CheckpointPaths
from stoker.model.job.commandline import NOTEBOOK, commands
from stoker.model.job.fields import Problems
from stoker.model.job.job import Job, PlaceForData
from stoker.model.snapshot import EntryKind

_MOST = 5
_OPENERS = re.compile(
    r"open|memmap|fromfile|load|loadtxt|genfromtxt|read_\w+|ImageFolder|load_dataset|load_from_disk|listdir|scandir"
    r"|glob|DataLoader|Dataset|\w*Dataset|isfile|isdir|is_file|is_dir|exists|read_text|read_bytes|iterdir"
)
_WRITES = re.compile(r"[wax]")
_WRITTEN = re.compile(r"(?i)out|save|log|ckpt|checkpoint|result|work|exp|cache|tensorboard|resume|model")  # flags
_NOT_TEXTS = ("null", "true", "false", "yes", "no", "on", "off")  # to YAML


@dataclass(frozen=True, slots=True)
class Lacking:
    """Something that the script needs, that is here, and that a run would not have."""

    opener: str  # the file of the code that opens it, or the script that imports it
    path: str  # from the source
    taken: str  # what to bring: the path itself, or the folder that it is in
    inside: bool  # of the source, where an ignore file leaves it out
    imported: bool = False  # a module, and no data

    @property
    def name(self) -> str:
        """Of the input that brings it."""
        words = re.sub(r"\W+", "_", PurePosixPath(self.taken).stem).strip("_").lower()
        return words if words.isidentifier() else "data"

    @property
    def entry(self) -> str:
        """As a job file has it under `data`."""
        plain = re.fullmatch(r"[A-Za-z_./][\w./-]*", self.taken) and self.taken.lower() not in _NOT_TEXTS
        path = self.taken if plain else json.dumps(self.taken, ensure_ascii=False)
        return f"{self.name}: {{path: {path}, at: {path}}}"

    @property
    def can_be_brought(self) -> bool:
        """To where the script looks for it: not far above its folder."""
        try:
            PlaceForData().read(self.taken, "at")
        except Problems:
            return False
        return True

    @property
    def use(self) -> str:
        return "imports" if self.imported else "opens"

    def __str__(self) -> str:
        why = "an ignore file leaves it out" if self.inside else "it is outside of the source"
        then = f"`data: {{{self.entry}}}` brings it" if self.can_be_brought else "Move it into the source, or beside it"
        return f"`{self.path}`, which {self.opener} {self.use}, is not sent: {why}. {then}"


def missing(job: Job, tree: Tree) -> list[str]:
    """Sentences for a plan: what is missing, and the line that brings it."""
    return [str(one) for one in lacking(job, tree)]


def lacking(job: Job, tree: Tree) -> list[Lacking]:
    """The script is read, never run."""
    script = _script(job, tree)
    if script is None or script.tree is None:
        return []
    script.follow(tree.root)
    opened = dict(_opened(script, tree.root)) | dict.fromkeys(_arguments(job, script), script.path)
    modules = {path.relative_to(tree.root).as_posix() for path in script.modules}
    opened |= dict.fromkeys(modules, script.path)
    if not opened:
        return []
    sent, kept = _sent(tree), CheckpointPaths(job.checkpoints)
    found: dict[str, str] = {}
    for path, opener in opened.items():
        inside = not path.startswith("..")
        if inside and (path in sent or kept.root(path) or f"{path}/".startswith(f"{job.outputs}/")):
            continue
        if not _is_given(path, job) and path not in (".", "..") and _is_there(tree.root / path):
            found[path] = opener
    every = [
        Lacking(opener, path, _taken(path, found, tree.root), not path.startswith(".."), path in modules)
        for path, opener in found.items()
    ]
    whole: dict[str, Lacking] = {}
    for one in sorted(every, key=lambda one: len(one.taken)):
        if not any(one.taken == other or one.taken.startswith(f"{other}/") for other in whole):
            whole[one.taken] = one
    return list(whole.values())[:_MOST]


def _taken(path: str, found: Iterable[str], root: Path) -> str:
    """A folder as it is; of a file, the folder that it is in, unless that is the source's own, or lies outside with
    nothing else of it wanted."""
    folder = str(PurePosixPath(path).parent)
    if (root / path).is_dir() or folder in (".", "..", "../..", "../../.."):
        return path
    beside = [other for other in found if str(PurePosixPath(other).parent) == folder]
    return path if path.startswith("..") and len(beside) == 1 else folder


def _script(job: Job, tree: Tree) -> Script | None:
    for command in reversed(commands(job.run)):
        name = command.script or (f"{command.module.replace('.', '/')}.py" if command.module else "")
        if name.endswith((".py", NOTEBOOK)) and (tree.root / name).is_file():
            return look(tree.root / name, name)
    return None


def _opened(script: Script, root: Path) -> Iterator[tuple[str, str]]:
    """Normal paths, with the file that opens each."""
    trees = {script.path: script.tree, **{str(path.relative_to(root)): one for path, one in script.modules.items()}}
    for name, tree in trees.items():
        for node in nodes(tree or ast.Module([], [])):
            if isinstance(node, ast.Call):
                for text in _texts(node, script):
                    if "*" not in text and "\n" not in text and "://" not in text and 0 < len(text) < 200:
                        yield _from_root(text, script), name


def _arguments(job: Job, script: Script) -> Iterator[str]:
    """What the command tells the script, but for where it is to write. Normal paths, if they are paths at all."""
    for command in commands(job.run):
        started = command.script or command.module
        if not started or not command.trains:
            continue
        words = command.words[command.words.index(started) :]
        for before, word in pairwise(words):
            flag, equals, value = word.rpartition("=")
            name, text = (flag, value) if equals else (before if before.startswith("-") else "", word)
            if text and not text.startswith("-") and "$" not in text and not _WRITTEN.search(name):
                yield _from_root(text, script)


def _from_root(text: str, script: Script) -> str:
    """A notebook runs in its own folder."""
    folder = PurePosixPath(script.path).parent if script.path.endswith(NOTEBOOK) else PurePosixPath(".")
    return os.path.normpath(folder / text)


def _texts(call: ast.Call, script: Script) -> Iterator[str]:
    name = name_of(call)
    mode = call.args[1].value if len(call.args) > 1 and isinstance(call.args[1], ast.Constant) else ""
    if not _OPENERS.fullmatch(name) or (name == "open" and _WRITES.search(str(mode))):
        return
    own = [call.func.value] if isinstance(call.func, ast.Attribute) and not call.args else []
    for argument in (*call.args[:1], *own, *(one.value for one in call.keywords)):
        yield from script.values.texts(argument)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # in a folder of somebody else's, or no name at all
        return False


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
