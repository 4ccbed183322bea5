"""What cells call in place of IPython's syntax: shell commands, files that a cell writes, timing."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stoker.notebooks.magics import CLOCK, SHELL, WRITE

BEGAN = "__stoker_began__"
_FILLED = re.compile(r"\{(?P<braces>[A-Za-z_][\w.\[\]'\"]*)\}|\$(?P<name>[A-Za-z_]\w*)")


def names(known: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """`known` are the notebook's variables; commands may use them as `{name}` and `$name`."""

    def shell(text: str, *, fill: bool = True, lines: bool = False) -> list[str] | None:
        said = _shell(_filled(text, known) if fill else text, quiet=lines)
        return said if lines else None

    def clock() -> None:
        known[BEGAN] = time.perf_counter()

    return {SHELL: shell, WRITE: _write, CLOCK: clock}


def _shell(text: str, *, quiet: bool) -> list[str]:
    """Runs the command and prints its output as it comes. A failure is only reported, as in a notebook."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    said: list[str] = []
    with subprocess.Popen(text, shell=True, text=True, errors="replace", **pipes) as running:  # the cell's own command
        for line in running.stdout or ():
            said.append(line.removesuffix("\n"))
            if not quiet:
                sys.stdout.write(line)
    if running.returncode:
        print(f"[exit code {running.returncode}]", file=sys.stderr)  # noqa: T201  # the cell's own output
    return said


def _filled(text: str, known: Mapping[str, Any]) -> str:
    """A name that the notebook does not define is left to the shell."""

    def value(found: re.Match[str]) -> str:
        path = found["braces"] or found["name"]
        try:
            return str(eval(path, dict(known)))  # a name, with parts of it
        except Exception:
            return found[0]

    return _FILLED.sub(value, text)


def _write(path: str, text: str, *, more: bool) -> None:
    with Path(path).open("a" if more else "w", encoding="utf-8") as file:
        file.write(text if text.endswith("\n") else f"{text}\n")


def tell_time(known: dict[str, Any]) -> None:
    """Prints how long a cell took that asked for it."""
    if began := known.pop(BEGAN, None):
        print(f"Wall time: {time.perf_counter() - began:.3g} s")  # noqa: T201  # as IPython does
