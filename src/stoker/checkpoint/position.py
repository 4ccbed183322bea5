"""Where a training is: epoch, pass over the data, batch. What turns saved numbers into a place to go on from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from stoker.checkpoint.feed import Source, State


class Position:
    """`phase` counts the passes over a loader within the epoch, `batch` the batches of this pass handed out so far."""

    def __init__(self) -> None:
        self.epoch = 0
        self.phase = 0
        self.batch = 0
        self.within_pass = False
        self._calls = 0  # of `batches` in this epoch by this process
        self._begun: State | None = None
        self._sources: list[Source] = []
        self._saved: list[State] = []  # of sources that this process has not met yet
        self._stateful: Any = None
        self._current = 0

    def state(self) -> State:
        state: State = {
            "epoch": self.epoch,
            "phase": self.phase,
            "batch": self.batch,
            "sources": [source.state() for source in self._sources] + self._saved[len(self._sources) :],
        }
        if self.within_pass:
            state["begun"] = self._begun
            current = self._sources[self._current]
            if current.stateful:
                state["stateful"] = current.loader.state_dict()
        return state

    def put_back(self, state: State) -> None:
        self.epoch, self.phase, self.batch = state["epoch"], state["phase"], state["batch"]
        self._saved = state["sources"]
        self._begun = state.get("begun")
        self._stateful = state.get("stateful")
        self.within_pass = self._begun is not None

    def next_epoch(self) -> None:
        self.epoch += 1
        self.phase = self.batch = self._calls = 0
        self.within_pass = False
        self._begun = None

    def passes(self, loader: Any, ready: Callable[[], None]) -> Iterator[Any]:
        """The batches that have not counted yet. `ready` is called when the next thing to happen is the next batch."""
        source = self._source(loader)
        self._calls += 1
        if self._calls <= self.phase:
            return
        resumed = self.within_pass
        self._current = self._sources.index(source)
        if resumed and self._begun is not None:
            now = source.generators()
            source.begin_again(self._begun)
            if source.stateful and self._stateful is not None:
                source.loader.load_state_dict(self._stateful)
            iterator = source.iterate(self.batch, resumed=True)
            source.set_generators(now)
        else:
            self._begun = source.begin()
            iterator = source.iterate(0, resumed=False)
        self.within_pass = True
        ready()
        try:
            for batch in iterator:
                self.batch += 1
                yield batch
        finally:  # also when the script breaks out: then this pass is over, too
            self.phase, self.batch = self._calls, 0
            self.within_pass = False
            self._begun = None

    def _source(self, loader: Any) -> Source:
        for source in self._sources:
            if source.loader is loader:
                return source
        source = Source(loader)
        if len(self._sources) < len(self._saved):
            source.put_back(self._saved[len(self._sources)])
        self._sources.append(source)
        return source
