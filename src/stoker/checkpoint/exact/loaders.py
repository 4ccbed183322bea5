"""The DataLoaders of a script: which pass each is in, what its order was drawn from, and how to be there again."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.checkpoint.state import randomness
from stoker.checkpoint.state.feed import BatchSource

State = dict[str, Any]


@dataclass(slots=True)
class Known:
    """A loader that the script has made. `begun` is what the order of its newest pass was drawn from."""

    number: int
    loader: Callable[[], Any]
    newest: Callable[[], Any] = lambda: None
    begun: tuple[randomness.Raw, list[bytes]] | None = None


class Loaders:
    """All of this process, in the order in which they were made."""

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
        """The generators of their own. A pass is continued when it is begun."""
        for known in list(self._known.values()):
            if state := self.found(known.loader(), states):
                BatchSource(known.loader()).set_generators(state["generators"])

    def found(self, loader: Any, states: list[State]) -> State | None:
        """What was kept of this loader: that of the same number, or the only one like it."""
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
    randomness.put_back(state["begun"]["random"])
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
    """Workers that had stayed alive would have drawn no new seed for themselves."""
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
    """What a loader is like: enough to know it again in another process."""
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
