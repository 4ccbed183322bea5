"""Runs the cells of a notebook one after the other in this process: their output goes to the log and to a copy of the
notebook."""

from __future__ import annotations

import ast
import base64
import builtins
import inspect
import io
import linecache
import os
import re
import subprocess
import sys
import time
import traceback
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from stoker.notebooks.document import CLOCK, SHELL, WRITE, Document, NotebookCell, Unsupported, as_python

WRITE_EVERY_S = 10.0


class NotebookRefused(Exception):
    """The notebook cannot run; the message lists every problem."""


class Notebook:
    """`into` is where the copy is written; None: no copy."""

    def __init__(self, document: Document, path: Path, into: Path | None) -> None:
        self._document = document
        self._name = path.name
        self._into = into
        self._written_at = time.monotonic()
        self._outputs: Outputs = []
        self._pid = os.getpid()
        self._loop: Any = None
        self._module = types.ModuleType("__main__")
        self._codes = self._compiled()

    def run(self) -> None:
        """Raises what a cell raises, after the copy is written."""
        sys.modules["__main__"] = self._module
        names = vars(self._module)
        names |= command_names(names)
        takers.append(self._take_figure)
        builtins.display = self.display  # type: ignore[attr-defined]  # as IPython gives it to notebooks
        sys.stdout, sys.stderr = (self._tee(name) for name in ("stdout", "stderr"))
        self._write()
        for cell, code in zip(self._document.cells, self._codes, strict=True):
            self._outputs = cell.plain["outputs"]
            cell.plain["execution_count"] = cell.number
            try:
                self._execute(cell, code)
            except BaseException as error:
                if not (isinstance(error, SystemExit) and error.code in (None, 0)):
                    self._outputs.append(_told(error))
                if not (cell.may_raise and isinstance(error, Exception)):
                    raise
                traceback.print_exception(error)
            finally:
                self._write()

    def display(self, *values: Any, **_: Any) -> None:
        for value in values:
            shown = bundle(value)
            self._log(shown["text/plain"])
            self._outputs.append({"output_type": "display_data", "data": shown, "metadata": {}})

    def _compiled(self) -> list[list[types.CodeType]]:
        """Checks all cells before any runs. Raises NotebookRefused with every invalid line."""
        wrong: list[str] = []
        codes: list[list[types.CodeType]] = []
        for cell in self._document.cells:
            file = f"{self._name}[{cell.number}]"
            try:
                text = as_python(cell.source)
                lines = [f"{line}\n" for line in text.split("\n")]
                linecache.cache[file] = (len(text), None, lines, file)
                codes.append(_parts(text, file))
            except Unsupported as error:
                wrong.append(f"{self._name}, cell {cell.number}: {error}")
            except SyntaxError as error:
                at = f"line {error.lineno}: {(error.text or '').strip()}"
                wrong.append(f"{self._name}, cell {cell.number}, {at}: SyntaxError: {error.msg}")
        if wrong:
            raise NotebookRefused("\n".join(wrong))
        return codes

    def _execute(self, cell: NotebookCell, parts: list[types.CodeType]) -> None:
        names = vars(self._module)
        value = None
        for code in parts:
            value = eval(code, names)  # the notebook's own code
            if code.co_flags & inspect.CO_COROUTINE:
                value = self._await(value)
        if value is not None and len(parts) > 1:
            names["_"] = value
            shown = bundle(value)
            self._log(shown["text/plain"])
            self._outputs.append(
                {"output_type": "execute_result", "execution_count": cell.number, "data": shown, "metadata": {}}
            )
        tell_time(names)
        figures = sys.modules.get("stoker.notebooks.figures")
        if figures and "matplotlib.pyplot" in sys.modules:
            figures.show()

    def _await(self, value: Any) -> Any:
        """One event loop for all cells, as in a notebook: tasks of one cell continue in later ones."""
        import asyncio  # few notebooks need it

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop.run_until_complete(value)

    def _take_figure(self, png: bytes) -> None:
        self._outputs.append({"output_type": "display_data", "data": figure(png), "metadata": {}})

    def _tee(self, name: str) -> Tee:
        original: TextIO = getattr(sys, name)
        return Tee(name, original, lambda: self._outputs, self._write_sometimes)

    def _log(self, text: str) -> None:
        """Bypasses the copy, which gets more than the text."""
        stream = sys.__stdout__
        if stream:
            stream.write(f"{text}\n")
            stream.flush()

    def _write_sometimes(self) -> None:
        if time.monotonic() - self._written_at > WRITE_EVERY_S:
            self._write()

    def _write(self) -> None:
        self._written_at = time.monotonic()
        if self._into and os.getpid() == self._pid:  # a forked worker prints, too
            # A full disk, or another thread that prints: training continues, and the next write may succeed.
            with suppress(OSError, RuntimeError):
                self._document.write(self._into)


def _parts(text: str, file: str) -> list[types.CodeType]:
    """The cell, and its last expression separately, whose value is shown unless a `;` follows."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile(text, file, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
    assert isinstance(tree, ast.Module)
    last = tree.body[-1] if tree.body else None
    quiet = text.rstrip().endswith(";")
    if not isinstance(last, ast.Expr) or quiet:
        return [compile(tree, file, "exec", flags, dont_inherit=True)]
    body = ast.Module(tree.body[:-1], [])
    return [
        compile(body, file, "exec", flags, dont_inherit=True),
        compile(ast.Expression(last.value), file, "eval", flags, dont_inherit=True),
    ]


def trimmed(error: BaseException) -> types.TracebackType | None:
    """The error's traceback, starting at the notebook's own code."""
    trace = error.__traceback__
    while trace and ".ipynb[" not in trace.tb_frame.f_code.co_filename:
        trace = trace.tb_next
    return trace or error.__traceback__


def _told(error: BaseException) -> dict[str, Any]:
    lines = "".join(traceback.format_exception(type(error), error, trimmed(error))).splitlines()
    return {"output_type": "error", "ename": type(error).__name__, "evalue": str(error), "traceback": lines}


BEGAN = "__stoker_began__"
_FILLED = re.compile(r"\{(?P<braces>[A-Za-z_][\w.\[\]'\"]*)\}|\$(?P<name>[A-Za-z_]\w*)")


def command_names(known: dict[str, Any]) -> dict[str, Callable[..., Any]]:
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


_FORMS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_latex_": "text/latex",
    "_repr_json_": "application/json",
}
takers: list[Callable[[bytes], None]] = []  # receivers of figures, as PNG
_MOST = 8 << 20  # bytes per format


def bundle(value: Any) -> dict[str, Any]:
    """By MIME type. A format that a value fails to produce is omitted: its text is always there."""
    found: dict[str, Any] = {}
    if isinstance(value, type):  # its methods need an instance
        return {"text/plain": repr(value)}
    with suppress(Exception):
        given = value._repr_mimebundle_()
        found |= given[0] if isinstance(given, tuple) else given or {}
    for method, kind in _FORMS.items():
        if kind in found or not hasattr(type(value), method):
            continue
        with suppress(Exception):
            form = getattr(value, method)()
            form = form[0] if isinstance(form, tuple) else form
            if form is not None and (not isinstance(form, str | bytes) or len(form) <= _MOST):
                found[kind] = base64.b64encode(form).decode() if isinstance(form, bytes) else form
    return {"text/plain": repr(value), **found}


def figure(png: bytes) -> dict[str, Any]:
    return {"image/png": base64.b64encode(png).decode(), "text/plain": "<Figure>"}


_MOST_PRINTED = 1 << 20  # characters per stream of a cell in the copy; the log has all of them
_CUT = "\n… omitted: the run's log has the full output …\n"

Outputs = list[dict[str, Any]]


class Tee(io.TextIOBase):
    """Replaces `sys.stdout` or `sys.stderr`. Anything beyond writing is passed to the original."""

    def __init__(self, name: str, original: TextIO, outputs: Callable[[], Outputs], wrote: Callable[[], None]) -> None:
        self._name = name
        self._original = original
        self._outputs = outputs
        self._wrote = wrote

    def write(self, text: str) -> int:
        self._original.write(text)
        self._original.flush()
        add_text(self._outputs(), self._name, text)
        self._wrote()
        return len(text)

    def flush(self) -> None:
        self._original.flush()

    def fileno(self) -> int:
        return self._original.fileno()

    def isatty(self) -> bool:
        return self._original.isatty()

    def writable(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    @property
    def encoding(self) -> str:  # type: ignore[override]  # an attribute there
        return self._original.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]  # likewise
        return self._original.errors


def add_text(outputs: Outputs, name: str, text: str) -> None:
    """Appends to the last output if that is the same stream. Of a progress bar only the last state is kept."""
    last = outputs[-1] if outputs else None
    if last is None or last.get("output_type") != "stream" or last["name"] != name:
        last = {"output_type": "stream", "name": name, "text": ""}
        outputs.append(last)
    kept, _, line = last["text"].rpartition("\n") if "\n" in last["text"] else ("", "", last["text"])
    seen = _redrawn(line + text.replace("\r\n", "\n"))
    whole = f"{kept}\n{seen}" if kept or "\n" in last["text"] else seen
    if len(whole) > _MOST_PRINTED:
        head = whole.partition(_CUT)[0][: _MOST_PRINTED // 2]
        whole = head + _CUT + whole[-_MOST_PRINTED // 4 :]
    last["text"] = whole


def _redrawn(text: str) -> str:
    if "\r" not in text:
        return text
    lines = text.split("\n")
    shown = [line.rstrip("\r").rpartition("\r")[2] for line in lines[:-1]]
    last = lines[-1]  # may be overwritten later
    body, carriage = (last[:-1], "\r") if last.endswith("\r") else (last, "")
    return "\n".join([*shown, body.rpartition("\r")[2] + carriage])
