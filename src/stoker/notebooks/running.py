"""Runs the cells of a notebook one after the other in this process, and keeps a copy with their outputs."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import os
import sys
import time
import traceback
import types
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from stoker.notebooks import commands
from stoker.notebooks.document import Document, NotebookCell
from stoker.notebooks.magics import Unsupported, as_python
from stoker.notebooks.showing import Outputs, Tee, bundle, figure, takers

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
        names |= commands.names(names)
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
        commands.tell_time(names)
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
