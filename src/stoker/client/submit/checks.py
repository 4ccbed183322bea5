"""What a job names but its source lacks, or uses for another purpose: found before anything is uploaded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from stoker.client.source.tree import SourceTree
from stoker.errors import JobInvalid, Problem
from stoker.model.job.commandline import ShellCommand, commands
from stoker.model.job.fields import nearest
from stoker.model.job.job import Job
from stoker.model.snapshot import EntryKind

_CODE = (".py", ".pyx", ".ipynb", ".sh", ".bash", ".toml", ".cfg", ".ini", ".yaml", ".yml", ".md", ".c", ".cpp", ".cu")
# These programs create no files; any other program may.
_HARMLESS = ("cd", "export", "set", "echo", "mkdir", "pip", "ulimit", "source", ".", "unset", "sleep", "date", "ls")


def check(job: Job, tree: SourceTree) -> None:
    """Raises JobInvalid if the script of the command does not exist, or a checkpoint is a file of the source."""
    problems = [*_missing_scripts(job, tree), *_sources_as_checkpoints(job, tree)]
    if problems:
        raise JobInvalid(problems)


def is_source(job: Job, source: Path, path: str) -> bool:
    """Whether this file is code, or what the command starts: not something that a script would write."""
    if not (source / path).is_file():
        return False
    return path.endswith(_CODE) or any(command.script == path for command in commands(job.run))


def _sources_as_checkpoints(job: Job, tree: SourceTree) -> Iterator[Problem]:
    named = [*((one, one) for one in job.checkpoints), *(("", path) for path in tree.matched)]
    for pattern, path in named:
        if is_source(job, tree.root, path):
            found = (
                f"`{path}`, a file of your code" if pattern else f"a glob that matches `{path}`, a file of your code"
            )
            yield Problem("checkpoints", found, "what the script writes: a folder, a file or a glob")


def _missing_scripts(job: Job, tree: SourceTree) -> Iterator[Problem]:
    folder = ""
    known = {entry.path for entry in tree.snapshot.entries if entry.kind is not EntryKind.FOLDER}
    for command in commands(job.run):
        words = command.program
        if words[:1] == ("cd",):
            if len(words) != 2 or not _plain(words[1]):
                return
            folder = os.path.normpath(f"{folder}/{words[1]}" if folder else words[1])
            continue
        if words and (path := _needed(command, folder, known)):
            expected = _expected(tree.root, path, known)
            yield Problem("run", f"`{path}`", expected, _near(path, known))
            return
        if words and words[0] not in _HARMLESS and not command.trains:
            return


def _needed(command: ShellCommand, folder: str, known: set[str]) -> str:
    """What the command starts but the source lacks; empty if there is nothing, or it cannot be determined."""
    if _plain(command.script):
        path = os.path.normpath(f"{folder}/{command.script}" if folder else command.script)
        return "" if path in known or path.startswith("..") else path
    if re.fullmatch(r"[A-Za-z_][\w.]*", command.module):
        begin = f"{folder}/" if folder else ""
        package, *rest = command.module.split(".")
        ours = any(path.startswith(f"{begin}{package}/") for path in known)
        path = begin + "/".join([package, *rest])
        if ours and rest and not {f"{path}.py", f"{path}/__main__.py", f"{path}.so"} & known:
            return f"{path}.py"
    return ""


def _plain(path: str) -> bool:
    """Relative, and without shell expansions."""
    return bool(path) and not path.startswith(("/", "~", "-")) and not set(path) & set("$`*?[{")


def _expected(root: Path, path: str, known: set[str]) -> str:
    if (root / path).is_file():
        return f"a file that is uploaded: an ignore file excludes `{path}`"
    scripts = sorted(one for one in known if one.endswith(".py") and "/" not in one)[:5]
    return "a file in the source" + (f", such as {', '.join(f'`{one}`' for one in scripts)}" if scripts else "")


def _near(path: str, known: Iterable[str]) -> str:
    suffix = PurePosixPath(path).suffix
    alike = [one for one in known if one.endswith(suffix)][:2000]
    same = [one for one in alike if PurePosixPath(one).name == PurePosixPath(path).name]
    return same[0] if same else nearest(path, alike)
