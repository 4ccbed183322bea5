"""Tells when the script enters a loop. It is watched from a load to the loop only: that costs a call for each function
that is called meanwhile, and nothing afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from stoker.checkpoint.exact.places import LoopId, loops_around, stack

Entered = Callable[[FrameType], None]


class Entering:
    """Calls `entered` once, before the first line of the loop is executed."""

    def __init__(self, loop: LoopId, entered: Entered) -> None:
        self._loop = loop
        self._entered = entered
        self._before = sys.gettrace()  # a debugger, or what measures coverage
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
