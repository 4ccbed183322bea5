"""Where a training is: epoch, pass over the data, batch. What turns saved numbers into a place to go on from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stoker.checkpoint.ranks.buckets import Buckets
from stoker.checkpoint.read.reading import OpenedPart
from stoker.checkpoint.state import randomness
from stoker.checkpoint.state.feed import BatchSource, State


class Position:
    """`phase` counts the passes over a loader within the epoch, `batch` the batches of this pass handed out so far."""

    def __init__(self) -> None:
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
        if self._begun is not None:
            state["begun"] = self._begun
            state["source"] = self._source.state() if self._source else self._interrupted
        return state

    def put_back(self, state: State) -> None:
        self.epoch, self.phase, self.batch = state["epoch"], state["phase"], state["batch"]
        self._begun, self._interrupted = state.get("begun"), state.get("source")
        self._unmet = state["sources"]

    def next_epoch(self) -> None:
        self.epoch += 1
        self._calls = 0
        self._end_pass(0)

    def outside_epochs(self) -> None:
        """Passes are counted over the whole training, and the next one is the one that was interrupted."""
        self._calls = self.phase

    def passes(self, loader: Any, ready: Callable[[], None]) -> Iterator[Any]:
        """The batches that have not counted yet. `ready` is called when the next thing to happen is the next batch."""
        source = self._meet(loader)
        self._calls += 1
        if self._calls <= self.phase:
            return
        if self._begun is not None and self._interrupted is not None:
            source.put_back(self._interrupted)
            iterator = source.go_on(self._begun, self.batch)
        else:
            self._begun, self.batch = source.begin(), 0
            iterator = source.iterate()
        self._interrupted, self._source = None, source
        ready()
        try:
            for batch in iterator:
                self.batch += 1
                yield batch
        finally:  # also when the script breaks out: then this pass is over, too
            if self._source is source:
                self._end_pass(self._calls)

    def end_pass(self) -> None:
        """No more batches will be asked for: for loops that count by themselves and never come to the end."""
        self._end_pass(self._calls)

    def _end_pass(self, phase: int) -> None:
        self.phase, self.batch = phase, 0
        self._begun = self._source = self._interrupted = None

    def _meet(self, loader: Any) -> BatchSource:
        for source in self._met:
            if source.loader is loader:
                return source
        source = BatchSource(loader)
        if source.remembers:
            if self._unmet:
                source.put_back(self._unmet.pop(0))
            self._met.append(source)
        return source


# How far a training is: everything a checkpoint holds besides the parts that the script names.


class EpochProgress:
    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets
        self.steps = 0
        self.values: dict[str, Any] = {}  # the script's own
        self.metrics: dict[str, float] = {}
        self.position = Position()
        self._random: Mapping[str, Any] | None = None  # to be put back when the loop is where it was

    def take(self) -> dict[str, Any]:
        """As it is now, but for the values. What is returned does not change any more, and is yet to be packed."""
        return {
            "steps": self.steps,
            "metrics": dict(self.metrics),
            "position": self.position.state(),
            "random": randomness.take(),
            "buckets": self._buckets.state(),
        }

    @staticmethod
    def pack(taken: Mapping[str, Any]) -> dict[str, Any]:
        """In any thread: what is put back later."""
        return {**taken, "random": randomness.pack(taken["random"])}

    def put_back(self, stored: OpenedPart, *, exact: bool) -> None:
        """Unless `exact`, it is another rank's: the epoch that was interrupted begins anew."""
        form = stored.form
        self.steps = form["steps"]
        self.values, self.metrics = stored.value(form["values"]), stored.value(form["metrics"])
        position = stored.value(form["position"])
        if exact:
            self.position.put_back(position)
            self._random = stored.value(form["random"])
            randomness.put_back(self._random or {})
        else:
            self.position.epoch = position["epoch"]

    def put_random_back(self, *, finally_: bool = True) -> None:
        """The random states once more: the script may have drawn since they were put back when it started."""
        if self._random is not None:
            randomness.put_back(self._random)
        if finally_:
            self._random = None
