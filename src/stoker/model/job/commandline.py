"""A job's command line, read without running it: which commands it has, which script each starts, where arguments go.

Enough of a shell's grammar for that: words, quotes, `&&`, `;`, pipes and redirections. What is not understood is left
alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import PurePosixPath

# `${outputs}` is ours, `${HOME}` is the shell's: references in lower case or with a dot are ours.
REFERENCE = re.compile(r"\$\{([a-z][a-z_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)?)\}")
NEWEST, NUMBER = "checkpoint.newest", "checkpoint.number"
RESUME = "${resume}"  # where the arguments of `resume` go
NOTEBOOK = ".ipynb"
_RUNS_NOTEBOOKS = "-m stoker.notebooks"
_OPERATORS = ";&|()\n"
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.S)
_BEFORE = ("exec", "nohup", "time", "nice", "env", "command", "sudo", "then", "do", "else", "if", "while", "{", "!")
_PYTHON = re.compile(r"python[\d.]*|pypy[\d.]*|ipython[\d.]*")
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec", "srun", "uv", "poetry", "conda")
_RANKS = ("torchrun", "accelerate", "deepspeed", "torch.distributed.run", "torch.distributed.launch")
_SEVERAL_NODES = {
    "nnodes",
    "rdzv_endpoint",
    "master_addr",
    "num_machines",
    "main_process_ip",
    "hostfile",
    "config_file",
}
_SHELLS = ("sh", "bash", "zsh", "dash", "ksh", "source", ".")
_TOOLS = ("pip", "venv", "ensurepip", "uv", "build", "pytest")  # `python -m` of these trains nothing
_WITH_VALUE = ("-W", "-X", "-Q")


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One command of the line. `end` is where an argument can be added, `begins` where each word begins."""

    words: tuple[str, ...]
    end: int
    begins: tuple[int, ...] = ()

    @property
    def program(self) -> tuple[str, ...]:
        """Its words from the program's name on."""
        words = self.words
        while words and (words[0] in _BEFORE or _ASSIGNMENT.fullmatch(words[0])):
            words = words[1:]
        return words

    @property
    def trains(self) -> bool:
        """It starts a program of Python's, as far as its words tell."""
        words = self.program
        name = PurePosixPath(words[0]).name if words else ""
        if _PYTHON.fullmatch(name):
            return self.module.partition(".")[0] not in _TOOLS
        return name.endswith((".py", ".ipynb")) or (name in _LAUNCHERS and bool(self.script or self.module))

    @property
    def script(self) -> str:
        """The file that it runs; empty where it is none, or not known."""
        words = self.program
        name = PurePosixPath(words[0]).name if words else ""
        if _PYTHON.fullmatch(name) or name in _SHELLS:
            first = self._first_argument()
            return "" if first.startswith("-") else first
        if name in _LAUNCHERS:
            return "" if self.module else next((word for word in words[1:] if word.endswith(".py")), "")
        if name.endswith(NOTEBOOK):
            return words[0]
        return words[0] if words and "/" in words[0] and name.endswith((".py", ".sh")) else ""

    @property
    def module(self) -> str:
        """What `-m` names; empty where nothing is."""
        words = self.program
        if words and PurePosixPath(words[0]).name in _SHELLS:
            return ""
        for option, value in pairwise(words):
            if option in ("-m", "--module"):
                return value
            if option.endswith(".py") or option == "-c":
                return ""
        return ""

    @property
    def launcher(self) -> str:
        """What starts ranks that meet on this node alone; empty: nothing does, or it is told of the other nodes."""
        words = self.program
        name = PurePosixPath(words[0]).name if words else ""
        found = self.module if self.module in _RANKS else name if name in _RANKS and self.trains else ""
        options = {word.partition("=")[0].lstrip("-").replace("-", "_") for word in words if word.startswith("--")}
        if found == "accelerate" and not options & {"multi_gpu", "num_processes"}:
            return ""  # it starts one process, which finds the other ranks by the variables of this one
        return "" if options & _SEVERAL_NODES else found

    def _first_argument(self) -> str:
        """The first that is no option; `-c` and `-m` say that there is none."""
        rest = iter(self.program[1:])
        for word in rest:
            if word in _WITH_VALUE:
                next(rest, "")
            elif word in ("-c", "-m", "-") or not word.startswith("-"):
                return word
        return ""


def substitute(command: str, values: Mapping[str, str]) -> str:
    """The command with every reference of ours filled in; others are left to the shell."""
    return REFERENCE.sub(lambda found: values.get(found[1], found[0]), command)


def inserted(line: str, pattern: re.Pattern[str], values: Mapping[str, str]) -> str:
    """The line with values as a shell treats those of its variables: unquoted, each of their words is a word; in quotes
    they are one. No character of theirs means anything to the shell."""
    found = []
    for text, name, quote in _pieces(line, pattern):
        found += [text, _QUOTED[quote](values[name]) if name else ""]
    return "".join(found)


@lru_cache(maxsize=64)
def _pieces(line: str, pattern: re.Pattern[str]) -> tuple[tuple[str, str, str], ...]:
    """Text, the name that follows it, and the quotes that this stands in. The last name is empty."""
    pieces, at, begun, quote = [], 0, 0, ""
    while at < len(line):
        if reference := pattern.match(line, at):
            pieces.append((line[begun:at], reference[1], quote))
            at = begun = reference.end()
            continue
        char = line[at]
        if char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        at += 2 if char == "\\" and quote != "'" else 1
    return (*pieces, (line[begun:], "", ""))


_QUOTED: dict[str, Callable[[str], str]] = {
    "": lambda value: " ".join(shlex.quote(word) for word in value.split()),
    "'": lambda value: value.replace("'", "'\\''"),
    '"': lambda value: re.sub(r'([\\"$`])', r"\\\1", value),
}


def commands(line: str) -> list[ShellCommand]:
    """In the order of the line."""
    return _LineReader(line).read()


def with_resume(line: str, arguments: str) -> str:
    """The line with the arguments in the place that it gives them, or behind the last command that starts Python, or
    behind the last command."""
    if RESUME in line:
        return line.replace(RESUME, arguments)
    if not arguments:
        return line
    found = commands(line)
    training = [command for command in found if command.trains] or found
    end = training[-1].end if training else len(line)
    return f"{line[:end]} {arguments}{line[end:]}"


def with_notebooks(line: str) -> str:
    """The line with what runs a notebook before each one that it starts as if it were a script."""
    for command in reversed(commands(line)):
        if not command.script.endswith(NOTEBOOK):
            continue
        first = len(command.words) - len(command.program)
        at = first + command.program.index(command.script)
        begin = command.begins[at]
        line = f"{line[:begin]}{'python ' if at == first else ''}{_RUNS_NOTEBOOKS} {line[begin:]}"
    return line


class _LineReader:
    def __init__(self, line: str) -> None:
        self._line = line
        self._at = 0
        self._found: list[ShellCommand] = []
        self._words: list[str] = []
        self._begins: list[int] = []
        self._begin: int | None = None  # of the word that is being read
        self._end = 0  # of the last argument
        self._redirected = False  # what comes next is a file, or nothing that arguments could follow

    def read(self) -> list[ShellCommand]:
        while self._at < len(self._line):
            self._step(self._line[self._at])
        self._end_command()
        return self._found

    def _step(self, char: str) -> None:
        line, at = self._line, self._at
        if char in " \t" or line.startswith("\\\n", at):
            self._end_word()
            self._at += 2 if char == "\\" else 1
        elif char in "<>" or line.startswith("&>", at):
            self._redirect()
        elif char in _OPERATORS:
            self._end_command()
            self._at += 1
        elif char == "#" and self._begin is None:
            self._at = _past(line, "\n", at) - 1 if "\n" in line[at:] else len(line)
        else:
            self._begin = at if self._begin is None else self._begin
            self._at = _past_quoted(line, at)

    def _redirect(self) -> None:
        if self._begin is not None and self._line[self._begin : self._at].isdigit():
            self._begin = None  # `2` of `2>`
        self._end_word()
        while self._at < len(self._line) and self._line[self._at] in "<>&|":
            self._at += 1
        self._redirected = True

    def _end_word(self) -> None:
        if self._begin is None:
            return
        begin, raw, self._begin = self._begin, self._line[self._begin : self._at], None
        if self._redirected:
            self._redirected = False
            return
        self._words.append(_unquoted(raw))
        self._begins.append(begin)
        self._end = self._at

    def _end_command(self) -> None:
        self._end_word()
        if self._words:
            self._found.append(ShellCommand(tuple(self._words), self._end, tuple(self._begins)))
        self._words, self._begins, self._redirected = [], [], False


def _past_quoted(line: str, at: int) -> int:
    """Behind the character, or behind everything that it quotes."""
    if line[at] == "\\":
        return at + 2
    if line[at] in "'`":
        return _past(line, line[at], at + 1)
    if line[at] == '"':
        end = at + 1
        while end < len(line) and line[end] != '"':
            end += 2 if line[end] == "\\" else 1
        return end + 1
    if line.startswith("$(", at):
        depth, end = 1, at + 2
        while end < len(line) and depth:
            depth += {"(": 1, ")": -1}.get(line[end], 0)
            end += 1
        return end
    return _past(line, "}", at + 2) if line.startswith("${", at) else at + 1


def _past(line: str, text: str, at: int) -> int:
    found = line.find(text, at)
    return len(line) if found < 0 else found + len(text)


def _unquoted(raw: str) -> str:
    try:
        return " ".join(shlex.split(raw)) if raw else ""
    except ValueError:
        return raw
