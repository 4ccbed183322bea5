"""What a job's command starts: files of its source, modules of packages, code on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from stoker.client.software.imports import module_files
from stoker.model.commandline import Command, commands
from stoker.model.job import Job

_PYTHON = re.compile(r"i?python[\d.]*|pypy[\d.]*")
_SHELLS = ("sh", "bash", "zsh", "dash", "ksh")
# Programs that have nothing to do with Python.
_PLAIN = re.compile(
    r"\[|cat|cd|chmod|cp|date|df|du|echo|env|exit|export|false|free|head|hostname|id|kill|ls|mkdir|mv|nproc|nvidia-smi"
    r"|printenv|printf|ps|pwd|rm|sed|set|sleep|sync|tail|test|time|touch|trap|true|ulimit|uname|wait|wc|which|whoami"
)
_SCRIPT = (".py", ".ipynb")
_FOR_DEVELOPERS = re.compile(r"(^|/)(tests?|docs?)/|(^|/)(setup|conftest|noxfile|test_[^/]*|[^/]*_test)\.py$")
_MOST_BYTES = 200_000


@dataclass(frozen=True, slots=True)
class Starts:
    files: tuple[Path, ...] = ()
    modules: tuple[str, ...] = ()  # that are not the source's own
    code: str = ""
    places: tuple[Path, ...] = ()  # where Python looks for modules first
    programs: tuple[str, ...] = ()  # of whatever kind
    guessed: bool = False  # nobody knows what it starts: the files are all that it might


def starts_of(job: Job, root: Path, paths: Iterable[str]) -> Starts:
    """`paths` are those of the source."""
    known = list(_commands(job.run, root))
    files: list[Path] = []
    modules: list[str] = []
    code: list[str] = []
    places: list[Path] = []
    for command in known:
        scripts = [root / word for word in command.program if word.endswith(_SCRIPT) and (root / word).is_file()]
        files += scripts
        places += [file.parent for file in scripts]
        if command.module:
            own = module_files(command.module, root) + module_files(f"{command.module}.__main__", root)
            files += own
            modules += [] if own else [command.module]
        if inline := _inline(command):
            code.append(inline)
        places += [root] if command.module or inline else []
    names = dict.fromkeys(command.program[0] for command in known if command.program)
    programs = tuple(name for name in names if not _PLAIN.fullmatch(PurePosixPath(name).name))
    if files or modules or code or not programs:
        unique = tuple(dict.fromkeys(files)), tuple(dict.fromkeys(modules))
        return Starts(*unique, "\n".join(code), tuple(dict.fromkeys(places)), programs)
    everything = tuple(root / path for path in paths if path.endswith(_SCRIPT) and not _FOR_DEVELOPERS.search(path))
    return Starts(
        everything, places=tuple(dict.fromkeys(one.parent for one in everything)), programs=programs, guessed=True
    )


def _commands(line: str, root: Path, depth: int = 0) -> Iterator[Command]:
    """Those of the line, of scripts of a shell that it starts, and of what it tells a shell to do."""
    for command in commands(line):
        yield command
        name = PurePosixPath(command.program[0]).name if command.program else ""
        if depth < 3 and name in _SHELLS and (told := _after(command.program, "-c")):
            yield from _commands(told, root, depth + 1)
        elif depth < 3 and command.script and not command.script.endswith(_SCRIPT):
            yield from _commands(_text(root / command.script), root, depth + 1)


def _inline(command: Command) -> str:
    name = PurePosixPath(command.program[0]).name if command.program else ""
    return _after(command.program, "-c") if _PYTHON.fullmatch(name) else ""


def _after(words: tuple[str, ...], option: str) -> str:
    """What follows an option of letters, also of several in one word as in `-lc`."""
    for index, word in enumerate(words[1:-1], 1):
        if re.fullmatch(rf"-[a-zA-Z]*{option[1:]}", word):
            return words[index + 1]
    return ""


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(_MOST_BYTES).decode(errors="replace").replace("\\\n", " ")
    except OSError:
        return ""
