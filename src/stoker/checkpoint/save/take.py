"""Takes the state of a training apart and copies it: the part of a save that the training waits for; and how often."""

from __future__ import annotations

import math
import os
import re
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from stoker.checkpoint import surroundings
from stoker.checkpoint.read.shelf import say
from stoker.checkpoint.save.snapshot import Copying, StateCopy, mark_of_gpu
from stoker.checkpoint.save.writer import SaveThread, Writer
from stoker.checkpoint.state.parts import EpochProgress, StatePart
from stoker.checkpoint.state.structure import Flattener, is_spread

States = dict[str, Any]  # what the parts say their states are, by their names


class StateSaver:
    """For the training's thread. `optimizers` are those that tell before they make a step."""

    def __init__(
        self, parts: Mapping[str, StatePart], optimizers: list[Any], progress: EpochProgress, writer: Writer
    ) -> None:
        self._parts = parts
        self._optimizers = optimizers
        self._progress = progress
        self._writer = writer
        self._copier = SaveThread("stoker-copy")  # of its own, because the one that writes may be busy
        self._copying: Copying | None = None
        self._overlap = bool(optimizers)
        self._flat: Flattener | None = None
        self._number = 0
        self._blocked_s = 0.0
        self._toll = Toll(surroundings.toll_file())
        self.prepared = False
        self.again = False  # the last save was dropped
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
        """Returns when the training may continue. With `hurry` the copy is complete by then; all else is dropped
        for it."""
        begun = time.perf_counter()
        self.end_copying()
        self.prepared, self.again = True, False
        self._number += 1
        states = self._states()
        if hurry or not self._begin_copying(states):
            flat, form = self._flattened(states)
            snapshot = StateCopy(self._progress.take(), self._number, form)
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
            say(
                "weights changed between two steps of their optimizer; that save is dropped, and the next step is saved"
            )
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
        watched = changed_by(self._optimizers) if self._overlap else None
        if watched is None:
            return False
        later = {name: state for name, state in states.items() if self._parts[name].steady}
        if not all(hold(state, watched) for state in later.values()):
            return False
        flat, form = self._flattened({name: state for name, state in states.items() if name not in later})
        aside = flat.copied(ASIDE_BYTES)
        if aside is None:
            return False
        snapshot = StateCopy(self._progress.take(), self._number, form)

        def work() -> None:
            form["parts"] |= {name: flat.flatten(state, name) for name, state in later.items()}
            self._copy(snapshot, flat, aside)
            self._writer.submit(snapshot)

        try:
            snapshot.copying = self._copying = Copying(list(watched.values()), work, self._writer.begin)
        except RuntimeError:  # a tensor made in inference mode has no version counter
            self._overlap = False
            return False
        self._copier.hand(self._copying.run)
        return True

    def _copy(self, snapshot: StateCopy, flat: Flattener, aside: Mapping[str, Any]) -> None:
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


# Which tensors stay as they are until an optimizer makes its next step, so that they can be copied until then.

ASIDE_BYTES = 4 << 20  # what changes at other times, such as running means, is small, or all is copied at once

Watched = dict[int, Any]  # tensors by identity


def changed_by(optimizers: Iterable[Any]) -> Watched | None:
    """Their parameters and moments; None where some are not in main memory, or their changes are not counted."""
    torch = sys.modules["torch"]
    tensor, usual = torch.Tensor, (torch.Tensor, torch.nn.Parameter)  # which is quicker to ask than what is rare
    found: Watched = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            found |= {id(one): one for one in group["params"]}
        for slot in optimizer.state.values():
            found |= {id(one): one for one in slot.values() if isinstance(one, tensor)}
    here = all(one.is_cpu and (type(one) in usual or not is_spread(one)) for one in found.values())
    return found if here else None


def hold(state: MutableMapping[str, Any], watched: Watched) -> bool:
    """Sees to it that the state of a module or an optimizer, as just taken, stays so until the next step.

    A module's buffers are replaced by copies; parameters that no optimizer has are watched, too. False where that
    cannot be.
    """
    torch = sys.modules["torch"]
    if state.keys() == {"state", "param_groups"}:
        settings = (value for group in state["param_groups"] for value in group.values())
        return not any(isinstance(value, torch.Tensor) for value in settings)
    aside_bytes = 0
    for name, value in state.items():
        if id(value) in watched:
            continue
        if not isinstance(value, torch.Tensor) or not value.is_cpu:
            return False
        if isinstance(value, torch.nn.Parameter):
            watched[id(value)] = value
            continue
        aside_bytes += value.nbytes
        if aside_bytes > ASIDE_BYTES:
            return False
        state[name] = value.detach().clone()
    return True


# Records how long the training has waited for its saves in total, in a file that the agent reads.


class Toll:
    """`file` is None outside of a run. One write of a few bytes for each save: next to nothing."""

    def __init__(self, file: str | None) -> None:
        self._file = file
        self._fd = -1
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        """Never raises: a failed measurement must not end the training."""
        self.total_s += seconds
        if self._file is None:
            return
        with suppress(OSError):
            if self._fd < 0:
                self._fd = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._fd, b"%020.6f" % self.total_s, 0)


SUPPOSED_EVICTIONS_PER_HOUR = 0.1  # if unknown: one in ten hours
_SHORTEST_S = 1.0
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([smh])")
_EPOCHS = re.compile(r"(\d+)\s*epochs?")


@dataclass(frozen=True, slots=True)
class Interval:
    """One of the three is set; none of them means `auto`."""

    steps: int | None = None
    epochs: int | None = None
    seconds: float | None = None

    @property
    def auto(self) -> bool:
        return self.steps is None and self.epochs is None and self.seconds is None


@dataclass(frozen=True, slots=True)
class Cost:
    """What the last save took: the training waited `blocked_s`, and the bytes were safe after `written_s`."""

    blocked_s: float = 0.0
    written_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Since:
    """What has happened since the last save."""

    steps: int
    epochs: int
    seconds: float


def parse(every: int | str) -> Interval:
    """`100`, `"2 epochs"`, `"30s"`, `"5m"`, `"1h"` or `"auto"`."""
    if isinstance(every, int) and not isinstance(every, bool):
        if every >= 1:
            return Interval(steps=every)
    elif isinstance(every, str):
        text = every.strip().lower()
        if text == "auto":
            return Interval()
        if (found := _EPOCHS.fullmatch(text)) and int(found[1]) >= 1:
            return Interval(epochs=int(found[1]))
        if _TIME.fullmatch(text):
            return Interval(seconds=seconds(text))
    raise ValueError(f'every={every!r}: expected a number of steps, "1 epoch", a time such as "30s" or "5m", or "auto"')


def seconds(text: str | float) -> float:
    """`"5m"` is 300. A number is seconds already."""
    if isinstance(text, int | float):
        return float(text)
    found = _TIME.fullmatch(text.strip().lower())
    if not found:
        raise ValueError(f'{text!r} is not a time: expected "30s", "5m" or "1h"')
    return float(found[1]) * _UNITS_S[found[2]]


def best_interval_s(cost: Cost, evictions_per_hour: float, max_loss_s: float) -> float:
    """Young's and Daly's: the time between saves at which saving and losing work cost the same.

    Never longer than `max_loss_s`, and never so short that a save has not been written when the next is due.
    """
    shortest_s = max(_SHORTEST_S, 2 * cost.written_s)
    if evictions_per_hour <= 0:
        return max(max_loss_s, shortest_s)
    between_evictions_s = min(3600 / evictions_per_hour, 1e12)
    return max(min(math.sqrt(2 * cost.blocked_s * between_evictions_s), max_loss_s), shortest_s)


def due(interval: Interval, since: Since, auto_s: float) -> bool:
    """Whether it is time; `auto_s` is what `best_interval_s` says now."""
    if interval.steps is not None:
        return since.steps >= interval.steps
    if interval.epochs is not None:
        return since.epochs >= interval.epochs
    return since.seconds >= (auto_s if interval.seconds is None else interval.seconds)
