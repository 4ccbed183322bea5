"""A notebook's file: its cells, with IPython's additions as Python, and the copy with outputs."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

_SKIPPED = "skip-execution"  # the tags of Jupyter's own tools
_MAY_RAISE = "raises-exception"


class NotebookUnreadable(Exception):
    """The file is not a notebook that can run; the message says why."""


@dataclass
class NotebookCell:
    """One cell of code. `number` counts the code cells from 1, as Jupyter shows them when all are run."""

    number: int
    source: str
    plain: dict[str, Any] = field(repr=False)

    @property
    def may_raise(self) -> bool:
        return _MAY_RAISE in _tags(self.plain)


class Document:
    def __init__(self, data: bytes, name: str) -> None:
        try:
            self._plain: dict[str, Any] = json.loads(data)
            cells = self._plain["cells"]
            code = [one for one in cells if one.get("cell_type") == "code" and _SKIPPED not in _tags(one)]
            self.cells = [NotebookCell(number, _text(one["source"]), one) for number, one in enumerate(code, start=1)]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            older = isinstance(getattr(self, "_plain", None), dict) and "worksheets" in self._plain
            what = "has an old format: open and save it in Jupyter" if older else "is not a notebook in JSON"
            raise NotebookUnreadable(f"{name} {what}") from None
        language = _language(self._plain)
        if language.lower() != "python":
            raise NotebookUnreadable(f"{name} is a {language} notebook: only Python is supported")
        self.hidden: list[str] = []  # secrets to mask in the copy, as in the log
        for cell in self.cells:
            cell.plain |= {"outputs": [], "execution_count": None}

    def write(self, path: Path) -> None:
        """Writes the whole file, or keeps the previous one if that fails."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        text = json.dumps(self._plain, indent=1, ensure_ascii=False)
        for value in self.hidden:
            text = text.replace(json.dumps(value, ensure_ascii=False)[1:-1], "*" * len(value))
        part.write_text(f"{text}\n", encoding="utf-8", errors="replace")
        os.replace(part, path)  # noqa: PTH105  # as the rest of a path that may be any object


def code_of(data: bytes) -> str:
    """All cells as one Python program, for static analysis; empty if it is not a notebook."""
    try:
        cells = Document(data, "").cells
    except NotebookUnreadable:
        return ""
    return "\n".join(as_python_roughly(cell.source) for cell in cells)


def _language(plain: dict[str, Any]) -> str:
    metadata = plain.get("metadata")
    kernel = metadata.get("kernelspec") if isinstance(metadata, dict) else None
    return str(kernel.get("language") or "python") if isinstance(kernel, dict) else "python"


def _tags(cell: dict[str, Any]) -> list[str]:
    tags = (cell.get("metadata") or {}).get("tags") or []
    return [str(tag) for tag in tags] if isinstance(tags, list) else []


def _text(source: Any) -> str:
    return "".join(source) if isinstance(source, list) else str(source)


SHELL, WRITE, CLOCK = "__stoker_shell__", "__stoker_write__", "__stoker_clock__"  # names that cells call
_PASSED_OVER = (
    "matplotlib config load_ext reload_ext autoreload tensorboard colors xmode precision pylab capture html javascript"
    " js markdown svg latex pdb"
)
_LINE = re.compile(r"(?P<indent>\s*)(?P<target>[\w, ]+=\s*)?(?P<sign>%|!!?)(?P<rest>[A-Za-z./~$\"'({].*)")
_PIP = re.compile(r"(?:python[\d.]*\s+-m\s+|uv\s+)?pip3?\s+install\b(?P<words>.*)")
_INSTALLERS = re.compile(r"(?:sudo\s+)?(?:conda|mamba|apt|apt-get|brew)\s+(?:-\S+\s+)*install\b.*")
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)(?:\[[\w, .-]*\])?\s*(?:[<>=!~;@ ].*)?")
_ENVIRONMENT = "list the packages in requirements.txt, and set `environment: requirements.txt` in the job file"
_JUPYTER = "change the cell, or run the notebook with Jupyter: `run: jupyter nbconvert --execute --to notebook …`"


class Unsupported(Exception):
    """A line that a run does not support; the message names it and says what to do."""


def as_python(source: str) -> str:
    """The cell as Python, with the same line numbers. Raises Unsupported."""
    if _parses(source):
        return source  # also if a line begins with `%`: there it is an operator
    stripped = source.lstrip()
    if stripped.startswith("%%"):
        return _whole_cell(source, stripped)
    return "\n".join(map(_line, _joined(source)))


def _parses(source: str) -> bool:
    try:
        compile(source, "cell", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def _whole_cell(source: str, stripped: str) -> str:
    head, _, body = stripped.partition("\n")
    above = "\n" * source[: len(source) - len(stripped)].count("\n")
    name, _, rest = head[2:].partition(" ")
    if name in ("bash", "sh"):
        return f"{above}{SHELL}({body!r}, fill=False)"
    if name in ("writefile", "file"):
        words = [word for word in rest.split() if word != "-a"]
        if len(words) == 1:
            return f"{above}{WRITE}({words[0]!r}, {body!r}, more={'-a' in rest.split()})"
    if name in ("html", "javascript", "js", "markdown", "svg", "latex"):
        return above
    if name == "time":
        return f"{above}{CLOCK}()\n{as_python(body)}"
    if name in _PASSED_OVER.split():
        return f"{above}\n{as_python(body)}"
    raise Unsupported(f"`{head.strip()}` requires IPython, which a run does not use; {_JUPYTER}")


def _joined(source: str) -> Iterator[str]:
    """Its lines. A command that continues on further lines is joined to one, followed by as many empty lines."""
    rest = iter(source.split("\n"))
    for line in rest:
        more = 0
        while line.endswith("\\") and _LINE.fullmatch(line) and (following := next(rest, None)) is not None:
            line, more = f"{line[:-1].rstrip()} {following.strip()}", more + 1
        yield line
        yield from [""] * more


def _line(line: str) -> str:
    found = _LINE.fullmatch(line)
    if not found:
        return line
    indent, target, rest = found["indent"], found["target"] or "", found["rest"].strip()
    if found["sign"] != "%":
        return f"{indent}{target}{_command(rest, lines=bool(target))}"
    name, _, words = rest.partition(" ")
    if name in ("pip", "conda"):
        return f"{indent}{target}{_command(rest)}"
    known = _MAGICS.get(name)
    if known:
        return f"{indent}{target}{known(words.strip())}"
    if name in _PASSED_OVER.split():
        return f"{indent}pass"
    raise Unsupported(f"`{line.strip()}` requires IPython, which a run does not use; {_JUPYTER}")


def _command(text: str, *, lines: bool = False) -> str:
    if pip := _PIP.fullmatch(text):
        missing = _not_installed(pip["words"])
        if missing is None or missing:
            what = f": {', '.join(missing)} not installed" if missing else ""
            raise Unsupported(f"`!{text}`: a notebook cannot install packages during a run{what}; {_ENVIRONMENT}")
        return "None"  # all are installed
    if _INSTALLERS.fullmatch(text):
        raise Unsupported(f"`!{text}`: a notebook cannot install packages during a run; {_ENVIRONMENT}")
    return f"{SHELL}({text!r}, lines={lines})"


def _not_installed(words: str) -> list[str] | None:
    """Names of packages that are not installed; None if the command line does not tell."""
    try:
        names = [word for word in shlex.split(words, comments=True) if not word.startswith("-")]
    except ValueError:
        return None
    if "-r" in words.split() or "-e" in words.split() or not names:
        return None
    missing = []
    for name in names:
        found = _REQUIREMENT.fullmatch(name)
        if not found:
            return None
        try:
            metadata.version(found["name"])
        except metadata.PackageNotFoundError:
            missing.append(found["name"])
    return missing


def _environment(words: str) -> str:
    name, value = (part.strip() for part in re.split(r"[= ]", f"{words} ", maxsplit=1))
    return f"__import__('os').environ.update({{{name!r}: {value!r}}})" if name and value else "None"


_MAGICS: dict[str, Callable[[str], str]] = {
    "env": _environment,
    "set_env": _environment,
    "cd": lambda words: f"__import__('os').chdir({words.strip(chr(39) + chr(34))!r})",
    "pwd": lambda _: "__import__('os').getcwd()",
    "time": lambda words: words or "None",
    "system": _command,
    "sx": _command,
}


def as_python_roughly(source: str) -> str:
    """The same for static analysis: unsupported lines are omitted."""
    try:
        return as_python(source)
    except Unsupported:
        lines = [line for line in _joined(source) if not line.lstrip().startswith(("%", "!", "?"))]
        text = "\n".join(lines)
        return text if _parses(text) or not source.lstrip().startswith("%%") else ""  # `%%R` and the like
