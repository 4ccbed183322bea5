"""What a script opens or imports but a run would not have: excluded by an ignore file, or outside the source."""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath

from stoker.client.script.localcode import name_of, nodes
from stoker.client.script.script import Script, look
from stoker.client.source.tree import SourceTree
from stoker.model.job.commandline import NOTEBOOK, commands
from stoker.model.job.fields import Problems
from stoker.model.job.job import Job
from stoker.model.job.sections import CheckpointPaths
from stoker.model.job.values import PlaceForData, as_input
from stoker.model.snapshot import EntryKind

_MOST = 5
_OPENERS = re.compile(
    r"open|memmap|fromfile|load|loadtxt|genfromtxt|read_\w+|ImageFolder|load_dataset|load_from_disk|listdir|scandir"
    r"|glob|DataLoader|Dataset|\w*Dataset|isfile|isdir|is_file|is_dir|exists|read_text|read_bytes|iterdir"
)
_WRITES = re.compile(r"[wax]")
_WRITTEN = re.compile(r"(?i)out|save|log|ckpt|checkpoint|result|work|exp|cache|tensorboard|resume|model")  # flags


@dataclass(frozen=True, slots=True)
class Lacking:
    """Something that the script needs, that exists here, and that a run would not have."""

    opener: str  # the file of the code that opens it, or the script that imports it
    path: str  # from the source
    taken: str  # what to add as data: the path itself, or its folder
    inside: bool  # inside the source, but excluded by an ignore file
    imported: bool = False  # a module, and no data

    @property
    def name(self) -> str:
        """The name of the input to add."""
        return self.entry.partition(":")[0]

    @property
    def entry(self) -> str:
        """As a job file has it under `data`."""
        return as_input(self.taken)

    @property
    def can_be_brought(self) -> bool:
        """Where the script looks for it: not far above its folder."""
        try:
            PlaceForData().read(self.taken, "at")
        except Problems:
            return False
        return True

    @property
    def use(self) -> str:
        return "imports" if self.imported else "opens"

    def __str__(self) -> str:
        why = "an ignore file excludes it" if self.inside else "it is outside the source"
        then = f"`data: {{{self.entry}}}` adds it" if self.can_be_brought else "Move it into the source, or next to it"
        return f"`{self.path}`, which {self.opener} {self.use}, is not uploaded: {why}. {then}"


def missing(job: Job, tree: SourceTree) -> list[str]:
    """Sentences for a plan: what is missing, and the line that adds it."""
    script = _script(job, tree)
    if script is None or script.tree is None:
        return []
    return [*map(str, _lacking(job, tree, script)), *_elsewhere(script, tree)]


def _elsewhere(script: Script, tree: SourceTree) -> list[str]:
    """What the script looks for in its working directory and lies in its own folder."""
    if script.runs_in or not (path := opens_beside(script, tree.root)):
        return []
    own, name = PurePosixPath(script.path).parent, PurePosixPath(script.path).name
    where = f"`{path}`, which {script.path} opens, is in `{own}`, and the command runs in the folder of the job file"
    return [f"{where}. `run: cd {shlex.quote(str(own))} && python {shlex.quote(name)}` starts it there"]


def lacking(job: Job, tree: SourceTree) -> list[Lacking]:
    """The script is parsed, never run."""
    script = _script(job, tree)
    return [] if script is None or script.tree is None else _lacking(job, tree, script)


def _lacking(job: Job, tree: SourceTree, script: Script) -> list[Lacking]:
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
    """A folder as it is; for a file, its folder, unless that is the source's own, or is outside and nothing else in it
    is used."""
    folder = str(PurePosixPath(path).parent)
    if (root / path).is_dir() or folder in (".", "..", "../..", "../../.."):
        return path
    beside = [other for other in found if str(PurePosixPath(other).parent) == folder]
    return path if path.startswith("..") and len(beside) == 1 else folder


def _script(job: Job, tree: SourceTree) -> Script | None:
    first, *_ = (*commands(job.run), None)
    moved = first.words[1] if first and first.words[:1] == ("cd",) and len(first.words) == 2 else ""
    for command in reversed(commands(job.run)):
        name = command.script or (f"{command.module.replace('.', '/')}.py" if command.module else "")
        name = os.path.normpath(f"{moved}/{name}") if moved and name else name
        if name.endswith((".py", NOTEBOOK)) and not name.startswith("..") and (tree.root / name).is_file():
            script = look(tree.root / name, name)
            if script and moved:
                script.run_in(os.path.normpath(moved), tree.root)
            return script
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
    """The command's arguments for the script, except where to write. Normal paths, if they are paths."""
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
    return os.path.normpath(PurePosixPath(script.runs_in) / text)


def opens_beside(script: Script, root: Path) -> str:
    """A file that the script looks for in its working directory and that lies in its own folder only: it is meant to
    run there. Empty where there is none, or it opens something of the root as well."""
    own = PurePosixPath(script.path).parent
    if script.tree is None or script.path.endswith(NOTEBOOK) or str(own) == "." or script.inside:
        return ""
    texts = {os.path.normpath(text) for text, _ in _opened(script, root)}
    plain = {text for text in texts if not text.startswith(("/", "..", f"{own}/")) and text not in (".", str(own))}
    if any(_is_there(root / text) and not _is_there(root / own / text) for text in plain):
        return ""
    return next((text for text in sorted(plain) if (root / own / text).is_file() and not _is_there(root / text)), "")


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
    except (OSError, ValueError):  # in an unreadable folder, or not a valid name
        return False


def _is_given(path: str, job: Job) -> bool:
    given = [
        os.path.normpath(one) for use in job.data.values() for one in (use.path, use.at) if one and "://" not in one
    ]
    return any(path == one or path.startswith(f"{one}/") for one in given) or PurePosixPath(path).is_absolute()


def _sent(tree: SourceTree) -> set[str]:
    """Files and the folders that they are in."""
    files = {entry.path for entry in tree.snapshot.entries if entry.kind is not EntryKind.FOLDER}
    folders: set[str] = set()
    inner = {path.rpartition("/")[0] for path in files}
    while inner := {one for one in inner if one} - folders:
        folders |= inner
        inner = {path.rpartition("/")[0] for path in inner}
    return files | folders
