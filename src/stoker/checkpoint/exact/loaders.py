"""The DataLoaders of a script: which pass each is in, what its order was drawn from, and how to be there again.

Batches that are drawn ahead: `batch = draw()` before the loop, and again in it for the next turn.

The one before the loop is drawn again by a process that resumes, and has to be the one that the interrupted process had
drawn for this turn. So for a function that draws before the loop and in it, the random states before its last draw are
kept.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from stoker.checkpoint.exact import places
from stoker.checkpoint.exact.places import LoopId
from stoker.checkpoint.state import randomness
from stoker.checkpoint.state.feed import BatchSource

State = dict[str, Any]


@dataclass(slots=True)
class Known:
    """A loader of the script. `begun` holds the random states from which the order of its newest pass was drawn."""

    number: int
    loader: Callable[[], Any]
    newest: Callable[[], Any] = lambda: None
    begun: tuple[randomness.Raw, list[bytes]] | None = None


class Loaders:
    """The loaders of this process, in the order of their creation."""

    def __init__(self) -> None:
        self._made = 0
        self._known: dict[int, Known] = {}

    def add(self, loader: Any) -> Known:
        known = Known(self._made, weakref.ref(loader))
        self._made += 1
        self._known[id(loader)] = known
        weakref.finalize(loader, self._known.pop, id(loader), None).atexit = False
        return known

    def begin(self, loader: Any, make: Callable[[], Any]) -> Any:
        """An iterator for a new pass."""
        known = self._known.get(id(loader)) or self.add(loader)
        known.begun = (randomness.take(), BatchSource(loader).generators())
        iterator = make()
        known.newest = weakref.ref(iterator)
        return iterator

    def capture(self) -> list[State]:
        return [state for known in self._known.values() if (state := _state(known))]

    def restore(self, states: list[State]) -> None:
        """Restores the loaders' own generators. An interrupted pass is resumed when the script begins it."""
        for known in list(self._known.values()):
            if state := self.found(known.loader(), states):
                BatchSource(known.loader()).set_generators(state["generators"])

    def found(self, loader: Any, states: list[State]) -> State | None:
        """The saved state of this loader: that with the same number, or the only one with the same description."""
        if loader is None:
            return None
        known = self._known.get(id(loader)) or self.add(loader)
        like = [one for one in states if one["form"] == _form(loader)]
        same = [one for one in like if one["number"] == known.number]
        return (same or like)[0] if same or len(like) == 1 else None


def continue_pass(loader: Any, state: Mapping[str, Any], make: Callable[[], Any], skip: int) -> Any:
    """The same order from the same random states, behind the batches that were used. The process's random states are
    left anywhere."""
    source = BatchSource(loader)
    randomness.restore(state["begun"]["random"])
    source.set_generators(state["begun"]["generators"])
    iterator = make()
    order = getattr(iterator, "_sampler_iter", None)
    if source.indexed and not loader.num_workers and order is not None:
        for _ in range(skip):
            next(order, None)
        iterator._num_yielded = skip
    else:  # workers draw as they load, so they have to load again what they have loaded
        for _ in range(skip):
            next(iterator, None)
    source.set_generators(state["generators"])
    return iterator


def without_new_workers(loader: Any, make: Callable[[], Any]) -> Any:
    """Resumes without drawing a new seed for workers, as workers that had stayed alive would."""
    generator, loader.generator = loader.generator, sys.modules["torch"].Generator()
    try:
        return make()
    finally:
        loader.generator = generator


def _state(known: Known) -> State | None:
    loader = known.loader()
    if loader is None:
        return None
    state: State = {
        "number": known.number,
        "form": _form(loader),
        "generators": BatchSource(loader).generators(),
        "lasting": BatchSource(loader).lasting and known.begun is not None,
    }
    iterator = known.newest()
    if iterator is not None and known.begun is not None:
        random, generators = known.begun
        state["begun"] = {"random": randomness.pack(random), "generators": generators}
        state["used"] = int(getattr(iterator, "_num_yielded", 0))
        state["over"] = state["used"] >= _length(loader)
    return state


def _form(loader: Any) -> list[Any]:
    """A description of a loader that identifies it in another process."""
    try:
        size = len(loader.dataset)
    except TypeError:
        size = -1
    return [size, loader.batch_size, loader.num_workers, type(loader.sampler).__name__, type(loader).__name__]


def _length(loader: Any) -> float:
    try:
        return len(loader)
    except TypeError:
        return float("inf")


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
            randomness.restore(kept.pop(name))

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
