"""For Keras 3 on the torch backend: `model.fit(…, callbacks=[…, StokerCallback()])` goes on behind the last batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from stoker.checkpoint.checkpoint import Checkpoint
from stoker.checkpoint.structure import Flattener
from stoker.errors import BadInput, NotStorable

# Not `import keras`: types are checked where it is not installed, too.
_keras = import_module("keras")
_EpochIterator = import_module("keras.src.trainers.epoch_iterator").EpochIterator
_Callback: Any = _keras.callbacks.Callback
_global_state = import_module("keras.src.backend.common.global_state")


class StokerCallback(_Callback):  # type: ignore[misc]  # untyped
    """Saves weights, optimizer, metrics, seed generators, history, epoch and batch, and puts them back.

    Put it last, so that it saves what the other callbacks have done. `also` are other callbacks whose counters have to
    survive, such as `ReduceLROnPlateau` or `EarlyStopping`. Everything else is as for `Checkpoint`.
    """

    def __init__(self, *, also: Sequence[Any] = (), **options: Any) -> None:
        super().__init__()
        if _keras.backend.backend() != "torch":
            raise BadInput(
                f"the backend is {_keras.backend.backend()}; this callback knows how to go on with torch only",
                hint="set KERAS_BACKEND=torch, or list the folder of `keras.callbacks.BackupAndRestore` under "
                "`checkpoints` in the job file",
            )
        self._also = also
        self._options = options
        self._resumed = False
        self._data: Any = None
        self.state: Checkpoint | None = None

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002  # Keras fixes the signature
        parts: dict[str, Any] = {"keras": _Variables(self.model), "callbacks": _Fields(self._also)}
        self.state = state = Checkpoint(**parts, **self._options)
        state.position.outside_epochs()
        self._batch = state.get("batch", 0)
        self._resumed = state.restored is not None
        if self._resumed:
            self.model._initial_epoch = state.epoch
        self._metrics = [variable.value.clone() for variable in self.model.metrics_variables]
        _when_it_begins(self._take_over)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        state = self._running
        state.position.epoch = epoch
        history = self.model.history
        if not self._resumed:
            self._batch = state["batch"] = 0
            state["history"] = [history.epoch, history.history]
            state.epoch_is_over()
            return
        self._resumed = False
        history.epoch[:], history.history = state["history"]
        state["history"] = [history.epoch, history.history]
        for variable, value in zip(self.model.metrics_variables, self._metrics, strict=True):
            variable.assign(value)  # Keras has just reset them
        # With no batch left to train on, Keras would take an empty answer for the epoch's.
        self.model._get_metrics_result_or_logs = lambda logs: logs or self.model.get_metrics_result()
        state.put_random_back(finally_=not state.position.within_pass)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        data = self._data
        if data is not None and data.steps_per_epoch is None and batch + 1 == data.num_batches:
            self._running.position.end_pass()  # Keras knows that there is no more, and does not ask
        self._running["batch"] = batch + 1
        epochs = self._running.epoch + (batch + 1) / (self.params.get("steps") or batch + 1)
        self._running.say_share(epochs, self.params["epochs"])
        self._running.step(**{name: float(value) for name, value in (logs or {}).items()})

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.model.__dict__.pop("_get_metrics_result_or_logs", None)
        if logs:
            self._running.report(**{name: float(value) for name, value in logs.items()})

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        state = self._running
        state.position.epoch += 1
        state["batch"] = 0
        state.save(wait=True)
        if state.epoch >= self.params["epochs"]:
            state.say_finished()

    @property
    def _running(self) -> Checkpoint:
        assert self.state is not None
        return self.state

    def _take_over(self, iterator: Any) -> None:
        """Batches come through the checkpoint from now on, and are counted from the one that was interrupted."""
        self._data = iterator
        loader, enumerate_all = iterator._get_iterator, iterator._enumerate_iterator

        def batches() -> Iterator[Any]:
            yield from self._running.batches(loader())

        def enumerate_rest() -> Iterator[Any]:
            begin = self._batch
            for first, last, data in enumerate_all():
                if first >= begin:
                    yield first, last, data

        iterator._get_iterator, iterator._enumerate_iterator = batches, enumerate_rest


def _when_it_begins(take_over: Any) -> None:
    """Calls back with the iterator of the next loop over data, which `fit` tells nobody about."""
    begin = _EpochIterator.__iter__

    def once(iterator: Any) -> Any:
        _EpochIterator.__iter__ = begin
        take_over(iterator)
        return begin(iterator)

    _EpochIterator.__iter__ = once


class _Variables:
    """All that a model, its optimizer and its metrics remember, by path."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        return {name: variable.value.detach() for name, variable in self._named().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, variable in self._named().items():
            variable.assign(state[name])

    def _named(self) -> dict[str, Any]:
        model = self._model
        found = {"model": model.variables, "optimizer": model.optimizer.variables, "metrics": model.metrics_variables}
        if seeds := import_module("keras.src.backend.common.global_state").get_global_attribute(
            "global_seed_generator"
        ):
            found["seeds"] = [seeds.state]
        return {
            f"{kind}.{number}.{variable.path.replace('/', '.')}": variable
            for kind, variables in found.items()
            for number, variable in enumerate(variables)
        }


class _Fields:
    """The plain attributes of other callbacks: counters, bests, histories."""

    def __init__(self, things: Sequence[Any]) -> None:
        self._things = things

    def state_dict(self) -> dict[str, Any]:
        return {str(number): dict(_plain(thing)) for number, thing in enumerate(self._things)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for number, thing in enumerate(self._things):
            vars(thing).update(state[str(number)])


def _plain(thing: Any) -> Iterator[tuple[str, Any]]:
    for name, value in vars(thing).items():
        if name.startswith("_") or name in _SETTINGS:
            continue
        try:
            Flattener().flatten(value, name)
        except NotStorable:
            continue
        yield name, value


_SETTINGS = ("params", "min_delta")  # Keras turns the sign of the second when it has found out what is better
