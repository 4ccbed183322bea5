"""The command that a README shows, or a Makefile or a shell script runs: for what a script requires, or if there is no
script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise, takewhile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from stoker.client.script.flags import ScriptFlag
from stoker.client.script.script import Script, look
from stoker.model.job.commandline import ShellCommand, commands

_READMES = ("README.md", "README.rst", "README.txt", "README")
_MOST_OF_README = _MOST_OF_WRAPPER = 100_000
_RECIPES = ("Makefile", "makefile", "GNUmakefile", "justfile", "Justfile", "dvc.yaml", "Taskfile.yml")
_WRAPPERS = ("", "scripts/", "script/", "bin/", "run/", "shell/", "sh/", "tools/", "experiments/", "examples/")
_OF_SHELL = ("scripts/", "script/", "shell/", "sh/")
_MOST_WRAPPERS = 60
_WANTS_ARGUMENTS = re.compile(r"\$([1-9]|\{[1-9]\})")  # not `${1:-default}`
_ASSIGNED = re.compile(r"""^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)=("[^"\n]*"|'[^'\n]*'|[^\s;&|#()`]*)""", re.M)
_USED = re.compile(r"\$(?:([A-Za-z_]\w*)|\{(\w+)(?::?-([^{}$\n]*))?\})")  # `$name`, `${name}`, `${1:-default}`
_CONFIG_FLAG = re.compile(r"(config|cfg|conf|opt|yaml)([_-]?(file|path))?")
_CONFIGS = ("*config*", "configs/*", "config/*", "conf/*", "cfg/*", "cfgs/*", "options/*")
_CONFIG_FILES = (".yaml", ".yml", ".json", ".toml")
_STAND_IN = re.compile(r"[<>$\[\]{}*|\\]|\.\.\.|…|(?i:(^|[ /_-])(your|path[/_-]to)\b)")
_NOT_TRAINING = re.compile(r"--?(do[_-])?(eval|evaluate|test|predict|inference|render|demo|export)([_-]only)?")
_ALL_ARGUMENTS = re.compile(r"""[ \t]+["']?\$(@|\*|\{@\})["']?""")  # those of the shell script itself
_MAKE_ASSIGNED = re.compile(r"^([A-Za-z_]\w*)[ \t]*[:?]?=[ \t]*(.*?)[ \t]*$", re.M)
_MAKE_USED = re.compile(r"\$[({](\w+)[)}]")
_PROMPT = re.compile(r"^[$>] ")
_RECIPE = re.compile(r"^\s*(- )?(cmd:|[@-])?\s*")
_STARTS_FROM = re.compile(r"(?i)resume|restore|load|ckpt|checkpoint|weights|pretrained|init")  # flags
# What a shell script does to a machine that is new: a run has its software from elsewhere.
_SETS_UP = re.compile(
    r"\b(curl|wget|sudo|apt(-get)?|pip3? install|uv (sync|venv|pip)|conda|module load|source \S*activate)\b"
)


def shown(folder: Path, script: Script | None) -> tuple[str, ShellCommand] | None:
    """The first line that starts the script, or without one a module that trains, with nothing to fill in."""
    for line in (*_readme(folder), *_recipes(folder)) if script is not None else _readme(folder):
        found = commands(line) if any(word in line for word in ("python", "torchrun", "accelerate")) else []
        if len(found) == 1 and found[0].trains and not _STAND_IN.search(line):
            if script is not None and _starts(found[0], script):
                return line, found[0]
            if script is None and found[0].module and "train" in found[0].words:
                return line, found[0]
    return None


def _starts(command: ShellCommand, script: Script) -> bool:
    path = command.script.removeprefix("./") or f"{command.module.replace('.', '/')}.py"
    return path == script.path and not any(_NOT_TRAINING.fullmatch(word) for word in command.words)


def _arguments(command: ShellCommand, script: Script) -> tuple[str, ...]:
    started = next(at for at, word in enumerate(command.words) if word == command.module or word.endswith(script.path))
    return command.words[started + 1 :]


def completed(folder: Path, script: Script, command: str, places: int) -> str:
    """The command with what the script requires and a README gives it: also as many arguments without a name. And with
    files of the folder that it names for options without a default: without its configuration, a script trains
    something else, or nothing."""
    known = set(command.split())
    missing = [flag for flag in script.flags if flag.required and not flag.positional and flag.name not in known]
    line = shown(folder, script)
    if line is None and len(missing) == 1 and not places:
        return _configured(folder, command, missing[0])
    words = _arguments(line[1], script) if line else ()
    if script.subcommand:
        return command
    first = list(takewhile(lambda word: not word.startswith("-"), words))
    pairs = {one.partition("=")[0]: (one, two) for one, two in pairwise((*words, ""))}
    told = [next((pairs[name] for name in (flag.name, flag.short) if name in pairs), None) for flag in missing]
    if len(first) < places or None in told:
        return command
    given = [shlex.quote(one) for one in first[:places]]
    given += sorted(one[0] if "=" in one[0] else f"{one[0]} {shlex.quote(one[1])}" for one in told if one)
    wrapped = None if line else next(_wrapped(folder, script), None)
    whole = " ".join([command, *given])
    words = _arguments(wrapped, script) if wrapped else words
    return " ".join([whole, *_files_named(folder, script, words, set(whole.split()))])


def gives_places(folder: Path, script: Script) -> bool:
    """Whether a README says all arguments without a name, so that none has to be guessed."""
    line = shown(folder, script)
    first = [*takewhile(lambda word: not word.startswith("-"), _arguments(line[1], script))] if line else []
    return len(first) == len([flag for flag in script.flags if flag.positional])


def _files_named(folder: Path, script: Script, words: tuple[str, ...], known: set[str]) -> list[str]:
    """`--config configs/small.txt` for an option without a default, and `config=train.conf`."""
    decided = {name for flag in script.flags if flag.default for name in (flag.name, flag.short)}
    found = []
    for before, word in pairwise(("", *words)):
        name, equals, value = word.rpartition("=")
        flag = name if equals else before
        text = value if equals else word
        option = flag.startswith("-") and flag not in {*decided, *known} and not _STARTS_FROM.search(flag)
        pair = equals and not name.startswith("-") and name.isidentifier()
        if (option or pair) and not text.startswith("-") and (folder / text).is_file() and word not in known:
            found.append(shlex.quote(word) if equals else f"{flag} {shlex.quote(word)}")
    return found


def _configured(folder: Path, command: str, flag: ScriptFlag) -> str:
    """The command with the only configuration file that is there."""
    found = {path for pattern in _CONFIGS for path in folder.glob(pattern) if path.suffix in _CONFIG_FILES}
    if len(found) != 1 or not _CONFIG_FLAG.fullmatch(flag.bare.lower()):
        return command
    return f"{command} {flag.name} {shlex.quote(found.pop().relative_to(folder).as_posix())}"


def _readme(folder: Path) -> list[str]:
    """Its lines, without prompts, and the code in its sentences; a line that ends with a backslash is continued by the
    next."""
    there = next((folder / name for name in _READMES if (folder / name).is_file()), None)
    if there is None:
        return []
    with there.open(encoding="utf-8", errors="replace") as file:
        text = file.read(_MOST_OF_README).replace("\\\n", " ")
    inside = [one for line in text.splitlines() for one in re.findall(r"`([^`]+)`", line)]
    return [
        line.strip().strip("`").removeprefix("$ ").removeprefix("> ").strip() for line in (*text.splitlines(), *inside)
    ]


def _recipes(folder: Path) -> list[str]:
    """The commands of a Makefile, or of what does the same, with the values of its variables."""
    text = "\n".join(_text(folder / name) for name in _RECIPES).replace("\\\n", " ")
    known: dict[str, str] = dict(_MAKE_ASSIGNED.findall(text))

    def value(found: re.Match[str]) -> str:
        return known.get(found[1], found[0])

    indented = (_RECIPE.sub("", line) for line in text.splitlines() if line[:1] in ("\t", " "))
    return [_MAKE_USED.sub(value, _MAKE_USED.sub(value, line)).strip("\"' ") for line in indented]


def _wrapped(folder: Path, script: Script) -> Iterator[ShellCommand]:
    """Where shell scripts start this one, with nothing to fill in."""
    for start in _wrappers_of(folder, script):
        text = _ALL_ARGUMENTS.sub("", _expanded(_text(folder / start)))
        found = (one for one in commands(text) if one.trains and _starts(one, script))
        yield from (one for one in found if not _STAND_IN.search(" ".join(one.words)))


def _wrappers_of(folder: Path, script: Script) -> Iterator[str]:
    """Those that mention the script, by its file or as a module."""
    path = PurePosixPath(script.path)
    for inside in _WRAPPERS:
        yield from _wrappers(folder, inside, (path.name, f"-m {'.'.join(path.with_suffix('').parts)}"))


def wrapper(folder: Path) -> str | None:
    """A shell script that starts Python, in the folder itself."""
    return next(iter(_wrappers(folder, "")), None)


def sets_up(folder: Path, wrapper: str) -> bool:
    """Whether it installs software or enters an environment first."""
    return bool(_SETS_UP.search(_text(folder / wrapper)))


def wrapper_of(folder: Path, script: Script, missing: set[str]) -> str | None:
    """A shell script that gives this script the options that are missing, and needs no arguments itself."""
    named = " ".join(_readme(folder))
    for start in sorted(_wrappers_of(folder, script), key=lambda path: path not in named):
        inner = started_in(folder, start, script.path)
        if inner and inner.script and inner.script.path == script.path:
            told = {word.partition("=")[0] for word in inner.words}
            if missing <= told and not _WANTS_ARGUMENTS.search(_text(folder / start)):
                return start
    return None


class Started(NamedTuple):
    script: Script | None
    words: tuple[str, ...]  # its command line


def started_in(folder: Path, wrapper: str, wanted: str = "") -> Started | None:
    """The script that a wrapper starts last, unless another that it starts is wanted."""
    found = [
        (one.script or f"{one.module.replace('.', '/')}.py", one.words)
        for one in commands(_expanded(_text(folder / wrapper)))
        if one.trains
    ]
    starts = [(path, words) for path, words in found if path.endswith(".py") and (folder / path).is_file()]
    starts = [one for one in starts if one[0] == wanted] or starts
    return Started(look(folder / starts[-1][0], starts[-1][0]), starts[-1][1]) if starts else None


def _expanded(text: str) -> str:
    """With the variables that the shell script sets itself, as far as they are plain texts."""
    known: dict[str, str] = {}

    def value(found: re.Match[str]) -> str:
        return known.get(found[1] or found[2], found[0] if found[3] is None else found[3])

    for name, raw in _ASSIGNED.findall(text):
        if "$(" not in raw and "`" not in raw:
            known.setdefault(name, _USED.sub(value, raw.strip("\"'")))
    return _USED.sub(value, text)


def told_by(script: Script, words: tuple[str, ...]) -> dict[str, str]:
    """The values of flags that a command sets."""
    given = dict(one.split("=", 1) for one in words if one.startswith("--") and "=" in one)
    given |= {one: two for one, two in pairwise(words) if one.startswith("-") and not two.startswith("-")}
    return {flag.dest: value for flag in script.flags if (value := given.get(flag.name, "")) and "$" not in value}


def _wrappers(folder: Path, inside: str, words: tuple[str, ...] = ("",)) -> list[str]:
    """Shell scripts that start Python and contain one of these words, likely names first, in some folders also from
    further below."""
    below = "**/*.sh" if inside in _OF_SHELL else "*.sh"
    texts = {path: _text(path) for path in sorted((folder / inside).glob(below))[:_MOST_WRAPPERS]}
    named = {path: text for path, text in texts.items() if any(word in text for word in words)}
    found = (path for path, text in named.items() if any(one.trains for one in commands(text)))
    return sorted((path.relative_to(folder).as_posix() for path in found), key=lambda path: "train" not in path)


def _text(path: Path) -> str:
    small = path.is_file() and path.stat().st_size < _MOST_OF_WRAPPER
    return path.read_text(errors="replace") if small else ""
