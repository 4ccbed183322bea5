"""Where in the program something happens: the calls that lead there, and the loops around it."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Line = tuple[CodeType, int]
_OURS = "stoker."


@dataclass(frozen=True, slots=True)
class Loop:
    """A `for` or `while` in the source of a file. `function` is the line of the innermost `def` around it, 0: none."""

    header: int
    body: int  # the first line after the header
    end: int
    function: int
    target: str = ""  # the variable that counts; empty: there is none
    skips: bool = False  # the script skips completed iterations by itself


@dataclass(frozen=True, slots=True)
class LoopId:
    """The same loop in another process. Folders may differ between machines; the script does not."""

    file: str
    function: str
    header: int


def stack() -> list[FrameType]:
    """The call stack, the outermost call first, without our own calls and without those of a process that forked this
    one: its loops are over."""
    found: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_first(frame):
        if not frame.f_globals.get("__name__", "").startswith(_OURS):
            found.append(frame)
        frame = frame.f_back
    found.reverse()
    return found


def _is_first(frame: FrameType) -> bool:
    return frame.f_code.co_name == "_bootstrap" and frame.f_globals.get("__name__") == "multiprocessing.process"


def lines(frames: list[FrameType]) -> list[Line]:
    return [(frame.f_code, frame.f_lineno) for frame in frames]


def loops_around(frame: FrameType) -> list[Loop]:
    """Those of its function that it is in now, the outermost first."""
    line = frame.f_lineno
    known = _loops(frame.f_code.co_filename, frame)
    function = known.function_of(line)
    return [one for one in known.loops if one.function == function and one.header <= line <= one.end]


def identity(frame: FrameType, loop: Loop) -> LoopId:
    return LoopId(Path(frame.f_code.co_filename).name, frame.f_code.co_qualname, loop.header)


def enclosing(frames: list[FrameType]) -> list[tuple[FrameType, Loop]]:
    """All loops that are being executed, the outermost first."""
    return [(frame, loop) for frame in frames for loop in loops_around(frame)]


def comes_before(one: list[Line], other: list[Line]) -> bool:
    """Whether the first is the earlier line, where the two ways through the program part."""
    for (code, line), (other_code, other_line) in zip(one, other, strict=False):
        if code is not other_code:
            return False
        if line != other_line:
            return line < other_line
    return False


@dataclass(frozen=True, slots=True)
class _Source:
    loops: tuple[Loop, ...]
    functions: tuple[tuple[int, int], ...]  # first and last lines

    def function_of(self, line: int) -> int:
        around = [first for first, last in self.functions if first <= line <= last]
        return max(around, default=0)


_known: dict[str, _Source] = {}


def _loops(file: str, frame: FrameType) -> _Source:
    if file not in _known:
        text = "".join(linecache.getlines(file, frame.f_globals))
        try:
            _known[file] = _read(ast.parse(text))
        except (SyntaxError, ValueError, RecursionError):
            _known[file] = _Source((), ())
    return _known[file]


def _read(tree: ast.AST) -> _Source:
    loops: list[Loop] = []
    functions: list[tuple[int, int]] = []

    def visit(node: ast.AST, function: int) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.append((child.lineno, child.end_lineno or child.lineno))
                visit(child, child.lineno)
                continue
            if isinstance(child, ast.For | ast.While | ast.AsyncFor):
                loops.append(_loop(child, function))
            visit(child, function)

    visit(tree, 0)
    return _Source(tuple(sorted(loops, key=lambda one: (one.header, -one.end))), tuple(functions))


def _loop(node: ast.For | ast.While | ast.AsyncFor, function: int) -> Loop:
    last = node.body[-1]
    target = getattr(node, "target", None)
    name = target.id if isinstance(target, ast.Name) else ""
    end = last.end_lineno or last.lineno
    return Loop(node.lineno, node.body[0].lineno, end, function, name, _passes_over(node))


def _passes_over(node: Any) -> bool:
    """`if index < done: continue` at the front, or an iterable that leaves some out: `islice(loader, done, None)`."""
    counted = (
        {one.id for one in ast.walk(node.target) if isinstance(one, ast.Name)} if hasattr(node, "target") else set()
    )
    called = [one.func for one in ast.walk(getattr(node, "iter", node.body[0])) if isinstance(one, ast.Call)]
    names = [one.id if isinstance(one, ast.Name) else getattr(one, "attr", "") for one in called]
    if hasattr(node, "iter") and any("slice" in name or "skip" in name for name in names):
        return True
    for one in node.body:
        if isinstance(one, ast.If) and any(isinstance(inner, ast.Continue) for inner in one.body):
            tested = {inner.id for inner in ast.walk(one.test) if isinstance(inner, ast.Name)}
            if tested & counted:
                return True
    return False


# Tells when the script enters a loop. It is watched from a load to the loop only: that costs a call for each function
# that is called meanwhile, and nothing afterwards.

Entered = Callable[[FrameType], None]


class Entering:
    """Calls `entered` once, before the first line of the loop is executed."""

    def __init__(self, loop: LoopId, entered: Entered) -> None:
        self._loop = loop
        self._entered = entered
        self._before = sys.gettrace()  # the trace function of a debugger or of a coverage tool
        self._on = False

    def watch(self) -> None:
        self._on = True
        for frame in stack():
            if self._is_there(frame):
                frame.f_trace = self._line
        sys.settrace(self._call)

    def stop(self) -> None:
        if self._on:
            self._on = False
            sys.settrace(self._before)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:  # noqa: ARG002  # fixed by Python
        return self._line if self._on and self._is_there(frame) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:  # noqa: ARG002
        if not self._on:
            return None
        if event == "line" and any(one.header == self._loop.header for one in loops_around(frame)):
            self.stop()
            self._entered(frame)
            return None
        return self._line

    def _is_there(self, frame: FrameType) -> bool:
        code = frame.f_code
        return code.co_qualname == self._loop.function and Path(code.co_filename).name == self._loop.file
