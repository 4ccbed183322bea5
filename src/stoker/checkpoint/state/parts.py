"""The things a checkpoint is made of: whatever can say its state and take it back, and where a training is: epoch, pass
over the data, batch."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from stoker.checkpoint.buckets import Buckets
from stoker.checkpoint.read.reading import OpenedPart
from stoker.checkpoint.read.shelf import say
from stoker.checkpoint.state import randomness
from stoker.checkpoint.state.feed import ALONE, BatchSource, Seats, State
from stoker.errors import NotStorable


class StatePart(Protocol):
    """`in_place` says that `load` copies what it is given, so that it may be given memory that goes away. `steady` says
    that the state changes in the steps of an optimizer, and a module's buffers besides, but nothing else."""

    in_place: bool
    steady: bool

    def state(self) -> Any: ...

    def load(self, state: Any) -> None: ...


def part_for(name: str, thing: Any) -> StatePart:
    """A wrapped model (data parallel, compiled) is taken out of its wrapping, so that names are the same without it."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(thing, torch.nn.Module):
        return _Module(unwrapped(thing))
    if torch is not None and isinstance(thing, torch.Generator):
        return _Generator(thing)
    if isinstance(thing, random.Random):
        return _PythonRandom(thing)
    if hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
        return _Stateful(thing)
    if hasattr(getattr(thing, "bit_generator", None), "state"):
        return _NumpyGenerator(thing)
    raise NotStorable(
        f"`{name}` has no `state_dict` and `load_state_dict`: it is of type {type(thing).__name__}",
        hint=f'for a plain value write `state["{name}"] = …` instead',
    )


def tells_of_steps(thing: Any) -> bool:
    """Whether it is an optimizer that supports hooks before its steps."""
    return hasattr(thing, "register_step_pre_hook")


def unwrapped(module: Any) -> Any:
    while True:
        if hasattr(module, "_orig_mod"):
            module = module._orig_mod
        elif type(module).__name__ in ("DistributedDataParallel", "DataParallel"):
            module = module.module
        else:
            return module


class _Stateful:
    in_place = False

    def __init__(self, thing: Any) -> None:
        self._thing = thing
        self.steady = tells_of_steps(thing)

    def state(self) -> Any:
        return self._thing.state_dict()

    def load(self, state: Any) -> None:
        self._thing.load_state_dict(state)


class _Module(_Stateful):
    in_place = True

    def __init__(self, thing: Any) -> None:
        super().__init__(thing)
        self.steady = True

    def state(self) -> Any:
        return self._thing.state_dict(keep_vars=True)  # the very parameters, so that they are known again


class _Generator:
    in_place = True
    steady = False

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def state(self) -> Any:
        return self._generator.get_state()

    def load(self, state: Any) -> None:
        self._generator.set_state(state)


class _NumpyGenerator:
    in_place = False
    steady = False

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def state(self) -> Any:
        return self._generator.bit_generator.state

    def load(self, state: Any) -> None:
        self._generator.bit_generator.state = state


class _PythonRandom:
    in_place = False
    steady = False

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator

    def state(self) -> Any:
        return self._generator.getstate()

    def load(self, state: Any) -> None:
        self._generator.setstate(state)


class Position:
    """`phase` counts the passes over a loader within the epoch, `batch` the steps of this pass handed out so far: most
    have one batch."""

    def __init__(self, seats: Seats = ALONE) -> None:
        self._seats = seats
        self._split: State | None = None  # how the last pass of this epoch splits its samples; None: unknown
        self._taken_over = False  # another number of ranks began this pass
        self.completes_step = True  # the last batch was the last one of its step
        self.epoch = 0
        self.phase = 0
        self.batch = 0
        self._calls = 0  # of `passes` in this epoch by this process
        self._begun: State | None = None  # what the order of this pass was drawn from
        self._source: BatchSource | None = None  # of this pass
        self._interrupted: State | None = None  # the source of the pass that another process began
        self._met: list[BatchSource] = []  # those with something to remember from pass to pass
        self._unmet: list[State] = []  # the same, of another process

    @property
    def within_pass(self) -> bool:
        return self._begun is not None

    def state(self) -> State:
        state: State = {
            "epoch": self.epoch,
            "phase": self.phase,
            "batch": self.batch,
            "sources": [source.state() for source in self._met] + self._unmet,
        }
        if self._split is not None:
            state["split"] = self._split
        if self._begun is not None:
            state["begun"] = self._begun
            state["source"] = self._source.state() if self._source else self._interrupted
        return state

    def restore(self, state: State) -> None:
        self.epoch, self.phase, self.batch = state["epoch"], state["phase"], state["batch"]
        self._begun, self._interrupted = state.get("begun"), state.get("source")
        self._split, self._unmet = state.get("split"), state["sources"]

    def take_over(self, state: State) -> bool:
        """From another number of ranks. False: the interrupted epoch restarts, unless it has not begun."""
        self.epoch, split = state["epoch"], state.get("split")
        within = state["phase"] or state["batch"]
        if not within or split is None or split["seats"] != self._seats.whole:
            return not within
        self.phase, self.batch, self._split = state["phase"], state["batch"], split
        self._begun, self._taken_over = state.get("begun"), "begun" in state
        return True

    def next_epoch(self) -> None:
        self.epoch += 1
        self._calls, self._split = 0, None
        self._end_pass(0)

    def outside_epochs(self) -> None:
        """Passes are counted over the whole training, and the next one is the one that was interrupted."""
        self._calls = self.phase

    def passes(self, loader: Any, ready: Callable[[], None], *, one_by_one: bool = False) -> Iterator[Any]:
        """The batches that have not counted yet. `ready` is called when the next thing to happen is the next batch.
        `one_by_one`: a step may have several."""
        source = self._meet(loader)
        source.one_by_one = one_by_one
        self._calls += 1
        if self._calls <= self.phase:
            return
        iterator = self._begin(source)
        self._interrupted, self._source, self._split = None, source, source.split
        ready()
        try:
            for number, batch in enumerate(iterator, start=1):
                self.completes_step = number % source.in_turn == 0
                self.batch += self.completes_step
                yield batch
        finally:  # also when the script breaks out: then this pass is over, too
            if self._source is source:
                self._end_pass(self._calls)

    def _begin(self, source: BatchSource) -> Iterator[Any]:
        """Resumes the interrupted pass, or begins a new one."""
        taken_over, self._taken_over = self._taken_over, False
        if taken_over and self._split == source.split:
            self._begun = source.begin()
            return source.take_over(self.batch)
        if self._begun is not None and self._interrupted is not None:
            source.restore(self._interrupted)
            return source.go_on(self._begun, self.batch)
        if taken_over:
            say("the data is split differently than when this pass began: it starts again")
        self._begun, self.batch = source.begin(), 0
        return source.iterate()

    @property
    def loss_scale(self) -> float:
        return self._source.loss_scale if self._source else 1.0

    def end_pass(self) -> None:
        """Ends the pass, for loops that count by themselves and never exhaust the loader."""
        self._end_pass(self._calls)

    def _end_pass(self, phase: int) -> None:
        self.phase, self.batch = phase, 0
        self._begun = self._source = self._interrupted = None
        self._taken_over, self.completes_step = False, True

    def _meet(self, loader: Any) -> BatchSource:
        for source in self._met:
            if source.loader is loader:
                return source
        source = BatchSource(loader, self._seats)
        if source.remembers:
            if self._unmet:
                source.restore(self._unmet.pop(0))
            self._met.append(source)
        return source


# The progress of a training: everything in a checkpoint besides the parts that the script names.


class EpochProgress:
    def __init__(self, buckets: Buckets, seats: Seats = ALONE) -> None:
        self._buckets = buckets
        self.steps = 0
        self.values: dict[str, Any] = {}  # the script's own
        self.metrics: dict[str, float] = {}
        self.position = Position(seats)
        self._random: Mapping[str, Any] | None = None  # restored when the loop is where it was

    def take(self) -> dict[str, Any]:
        """The current position without the values. The result does not change any more; `pack` makes it storable."""
        return {
            "steps": self.steps,
            "metrics": dict(self.metrics),
            "position": self.position.state(),
            "random": randomness.take(),
            "buckets": self._buckets.state(),
        }

    @staticmethod
    def pack(taken: Mapping[str, Any]) -> dict[str, Any]:
        """The storable form of what `take` returned. Any thread may call it."""
        return {**taken, "random": randomness.pack(taken["random"])}

    def restore(self, stored: OpenedPart, *, exact: bool) -> None:
        """Unless `exact`, it was saved by another number of ranks: the rest of the data is split again, or the
        interrupted epoch starts again."""
        form = stored.form
        self.steps = form["steps"]
        self.values, self.metrics = stored.value(form["values"]), stored.value(form["metrics"])
        position = stored.value(form["position"])
        if exact:
            self.position.restore(position)
            self._random = stored.value(form["random"])
            randomness.restore(self._random or {})
            return
        continues = self.position.take_over(position)
        how = "the rest of its data is split between them" if continues else "the interrupted epoch starts again"
        opened = stored.opened
        say(f"{opened.path.name} was saved by {opened.manifest.ranks} ranks, and their number has changed: {how}")

    def put_random_back(self, *, finally_: bool = True) -> None:
        """Restores the random states again: the script may have drawn numbers since its start."""
        if self._random is not None:
            randomness.restore(self._random)
        if finally_:
            self._random = None
