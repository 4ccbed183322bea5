"""The command that a README shows: for a script that requires arguments, and where there is no script."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise, takewhile
from pathlib import Path

from stoker.client.script.script import Script
from stoker.model.job.commandline import ShellCommand, commands

_READMES = ("README.md", "README.rst", "README.txt", "README")
_MOST_OF_README = 100_000
_STAND_IN = re.compile(r"[<>$\[\]{}*|\\]|\.\.\.|…|(?i:(^|[ /_-])(your|path[/_-]to)\b)")


def shown(folder: Path, script: Script | None) -> tuple[str, ShellCommand] | None:
    """The first line that starts the script, or without one a module that trains, with nothing to fill in."""
    for line in _readme(folder):
        found = commands(line) if "python" in line or "torchrun" in line else []
        if len(found) == 1 and found[0].trains and not _STAND_IN.search(line):
            if script is not None and found[0].script.removeprefix("./") == script.path:
                return line, found[0]
            if script is None and found[0].module and "train" in found[0].words:
                return line, found[0]
    return None


def completed(folder: Path, script: Script, command: str, places: int) -> str:
    """The command with what the script requires and a README gives it: also as many arguments without a name."""
    known = set(command.split())
    missing = [flag for flag in script.flags if flag.required and not flag.positional and flag.name not in known]
    line = shown(folder, script) if missing or places else None
    if line is None or script.subcommand:
        return command
    words = line[1].words
    after = words[next(at for at, word in enumerate(words) if word.endswith(script.path)) + 1 :]
    first = list(takewhile(lambda word: not word.startswith("-"), after))
    pairs = {one.partition("=")[0]: (one, two) for one, two in pairwise((*words, ""))}
    told = [next((pairs[name] for name in (flag.name, flag.short) if name in pairs), None) for flag in missing]
    if len(first) < places or None in told:
        return command
    given = [shlex.quote(one) for one in first[:places]]
    given += sorted(one[0] if "=" in one[0] else f"{one[0]} {shlex.quote(one[1])}" for one in told if one)
    return " ".join([command, *given])


def _readme(folder: Path) -> list[str]:
    """Its lines, without prompts; one that ends with a backslash is continued by the next."""
    there = next((folder / name for name in _READMES if (folder / name).is_file()), None)
    if there is None:
        return []
    with there.open(encoding="utf-8", errors="replace") as file:
        text = file.read(_MOST_OF_README).replace("\\\n", " ")
    return [line.strip().strip("`").removeprefix("$ ").strip() for line in text.splitlines()]
