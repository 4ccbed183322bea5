"""Batches that are drawn ahead: `batch = draw()` before the loop, and again in it for the next turn.

The one before the loop is drawn again by a process that resumes, and has to be the one that the interrupted process had
drawn for this turn. So for a function that draws before the loop and in it, the random states before its last draw are
kept."""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

from stoker.checkpoint.exact import places
from stoker.checkpoint.exact.places import LoopId
from stoker.checkpoint.state import randomness

_Calls = tuple[CodeType, ...]


class Primers:
    def __init__(self) -> None:
        self._begun = False  # training has
        self._codes: set[CodeType] = set()  # that drew before it
        self._calls: dict[_Calls, set[LoopId]] = {}  # with the loops around the first draw of each
        self._last: dict[_Calls, randomness.Raw] = {}
        self._newest: tuple[_Calls, int, int] | None = None  # of draws that belong together

    def worked(self) -> None:
        self._begun, self._newest = True, None

    def drawing(self, kept: dict[str, Any] | None) -> None:
        """`kept` are those of the process that is resumed, while there is something to restore."""
        caller = _caller()
        if caller is None or (self._begun and caller.f_code not in self._codes):
            return
        frames = places.stack()
        calls = tuple(frame.f_code for frame in frames)
        around = {places.identity(frame, loop) for frame, loop in places.enclosing(frames)}
        if calls in self._calls and around > self._calls[calls]:
            self._in_loop(frames, calls)
        elif len(frames) > 1:
            self._before_loop(caller, calls, kept, around)

    def capture(self) -> dict[str, Any]:
        return {_name(calls): randomness.pack(state) for calls, state in self._last.items()}

    def _before_loop(self, caller: FrameType, calls: _Calls, kept: dict[str, Any] | None, around: set[LoopId]) -> None:
        if not self._begun:
            self._codes.add(caller.f_code)
            self._calls.setdefault(calls, around)
        name = _name(calls)
        if kept and name in kept:
            randomness.put_back(kept.pop(name))

    def _in_loop(self, frames: list[FrameType], calls: _Calls) -> None:
        """The first of several draws in one call counts."""
        group = (calls, id(frames[-1]), frames[-2].f_lasti if len(frames) > 1 else 0)
        if group != self._newest:
            self._last[calls] = randomness.take()
            self._newest = group


def _caller() -> FrameType | None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("stoker."):
        frame = frame.f_back
    return frame


def _name(calls: _Calls) -> str:
    return " > ".join(code.co_qualname for code in calls)
