"""Takes the state of a training apart and copies it: the part of a save that the training waits for, kept short."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from stoker.checkpoint import steady, surroundings
from stoker.checkpoint.copying import Copying
from stoker.checkpoint.interval import Cost
from stoker.checkpoint.parts import Part
from stoker.checkpoint.progress import Progress
from stoker.checkpoint.shelf import say
from stoker.checkpoint.snapshot import Snapshot, mark_of_gpu
from stoker.checkpoint.structure import Flattener
from stoker.checkpoint.toll import Toll
from stoker.checkpoint.worker import Worker
from stoker.checkpoint.writer import Writer

States = dict[str, Any]  # what the parts say their states are, by their names


class Saving:
    """For the training's thread. `optimizers` are those that tell before they make a step."""

    def __init__(self, parts: Mapping[str, Part], optimizers: list[Any], progress: Progress, writer: Writer) -> None:
        self._parts = parts
        self._optimizers = optimizers
        self._progress = progress
        self._writer = writer
        self._copier = Worker("stoker-copy")  # of its own, because the one that writes may be busy
        self._copying: Copying | None = None
        self._overlap = bool(optimizers)
        self._flat: Flattener | None = None
        self._number = 0
        self._blocked_s = 0.0
        self._toll = Toll(surroundings.toll_file())
        self.prepared = False
        self.again = False  # the last save came to nothing
        for optimizer in optimizers:
            hook = optimizer.register_step_pre_hook(_weakly(self.end_copying))
            weakref.finalize(self, hook.remove).atexit = False

    @property
    def cost(self) -> Cost:
        return Cost(self._blocked_s, self._writer.written_s)

    def prepare(self) -> None:
        """After the first step, when an optimizer has its state: gets memory for the copy before it is needed."""
        self.prepared = True
        self._flat, _ = self._flattened(self._states())
        self._writer.prepare(self._flat.leaves, self._flat.values)

    def save(self, *, hurry: bool = False) -> None:
        """Returns when the training may go on. With `hurry` the copy is whole by then, and everything else is given up
        for it."""
        begun = time.perf_counter()
        self.end_copying()
        self.prepared, self.again = True, False
        self._number += 1
        states = self._states()
        if hurry or not self._begin_copying(states):
            flat, form = self._flattened(states)
            snapshot = Snapshot(self._progress.take(), self._number, form)
            self._copy(snapshot, flat, {})
            self._writer.submit(snapshot, hurry=hurry)
            self._writer.begin()
        self._blocked_s = time.perf_counter() - begun
        self._toll.add(self._blocked_s)

    def end_copying(self, *_: Any) -> None:
        """Before tensors change: waits for the rest of their copy. Raises what that failed with."""
        copying, self._copying = self._copying, None
        if copying is None:
            return
        begun = time.perf_counter()
        if not copying.good():
            self._overlap, self.again = False, True
            say("weights were changed between two steps of their optimizer; that save is dropped, the next step saved")
        waited_s = time.perf_counter() - begun
        self._blocked_s += waited_s
        self._toll.add(waited_s)
        if copying.error is not None:
            raise copying.error

    def finish(self) -> None:
        """Waits until everything saved so far is safe, dropped or failed."""
        if self._copying is not None:
            self._copying.wait()
        self._writer.finish()

    def _states(self) -> States:
        return {name: part.state() for name, part in self._parts.items()}

    def _flattened(self, states: States) -> tuple[Flattener, dict[str, Any]]:
        flat = Flattener(self._flat)
        parts = {name: flat.flatten(state, name) for name, state in states.items()}
        return flat, {"parts": parts, "values": flat.flatten(self._progress.values, "values")}

    def _begin_copying(self, states: States) -> bool:
        """Leaves what only optimizers change to the copier. False: there is something that has to be copied here."""
        watched = steady.changed_by(self._optimizers) if self._overlap else None
        if watched is None:
            return False
        later = {name: state for name, state in states.items() if self._parts[name].steady}
        if not all(steady.hold(state, watched) for state in later.values()):
            return False
        flat, form = self._flattened({name: state for name, state in states.items() if name not in later})
        aside = flat.copied(steady.ASIDE_BYTES)
        if aside is None:
            return False
        snapshot = Snapshot(self._progress.take(), self._number, form)

        def work() -> None:
            form["parts"] |= {name: flat.flatten(state, name) for name, state in later.items()}
            self._copy(snapshot, flat, aside)
            self._writer.submit(snapshot)

        try:
            snapshot.copying = self._copying = Copying(list(watched.values()), work, self._writer.begin)
        except RuntimeError:  # a tensor made in inference mode, whose changes nobody counts
            self._overlap = False
            return False
        self._copier.hand(self._copying.run)
        return True

    def _copy(self, snapshot: Snapshot, flat: Flattener, aside: Mapping[str, Any]) -> None:
        """`aside` are values that were copied already, because they may have changed by now."""
        progress = self._progress.pack(snapshot.progress)
        snapshot.form |= {name: flat.flatten(value, name) for name, value in progress.items()}
        snapshot.leaves = flat.leaves
        snapshot.buffers = self._writer.take_buffers()
        snapshot.copies = snapshot.buffers.copy(flat.leaves, {**flat.values, **aside})
        snapshot.ready = mark_of_gpu()
        self._flat = flat


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Called as long as its object lives, but does not keep it alive: an optimizer may outlive its checkpoint."""
    reference = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        if (living := reference()) is not None:
            living(*arguments)

    return call
