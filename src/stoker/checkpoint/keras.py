"""For Keras 3: `model.fit(…, callbacks=[…, StokerCallback()])` resumes after the last batch, on every backend."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

from stoker.checkpoint.checkpoint import Checkpoint
from stoker.checkpoint.state.structure import Flattener
from stoker.checkpoint.surroundings import require
from stoker.errors import BadInput, NotStorable

require("keras")  # before its private modules are looked for
# Not `import keras`: types are checked where it is not installed, too.
_keras = import_module("keras")
_EpochIterator = import_module("keras.src.trainers.epoch_iterator").EpochIterator
_Callback: Any = _keras.callbacks.Callback
_global_state = import_module("keras.src.backend.common.global_state")
_BACKEND = _keras.backend.backend()


class StokerCallback(_Callback):  # type: ignore[misc]  # untyped
    """Saves weights, optimizer, metrics, seed generators, history, epoch and batch, and puts them back.

    Put it last, so that it saves what the other callbacks have done. `also` are other callbacks whose counters have to
    survive, such as `ReduceLROnPlateau` or `EarlyStopping`. Everything else is as for `Checkpoint`.
    """

    def __init__(self, *, also: Sequence[Any] = (), **options: Any) -> None:
        super().__init__()
        self._also = also
        self._options = options
        self._resumed = False
        self._data: Any = None
        self._nothing_left = False
        self.state: Checkpoint | None = None

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002  # Keras fixes the signature
        self._data = data = _newest.get()
        if data is None:
            raise BadInput(
                f"`{type(self.model).__name__}` overrides `fit`, which is not supported",
                hint="use `stoker.checkpoint.Checkpoint` in the loop of your `fit`, or override `train_step` instead",
            )
        if _BACKEND == "tensorflow":  # which builds them at the first step; but a restore needs them now
            self.model._symbolic_build(iterator=data)
            data.reset()
        parts: dict[str, Any] = {"keras": _Variables(self.model), "callbacks": _Fields(self._also)}
        self.state = state = Checkpoint(**parts, **self._options)
        state.position.outside_epochs()
        self._batch = state.get("batch", 0)
        self._resumed = state.restored is not None
        if self._resumed:
            self.model._initial_epoch = state.epoch
        self._metrics = [_keras.ops.copy(variable.value) for variable in self.model.metrics_variables]
        self._take_over(data)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        state = self._running
        state.position.epoch = epoch
        state.setdefault("first_epoch", epoch)
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
        if _BACKEND == "jax":
            self._suffer_nothing_left()
        state.put_random_back(finally_=not state.position.within_pass)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._nothing_left:
            self._nothing_left = False
            return
        data = self._data
        if data.steps_per_epoch is None and batch + 1 == data.num_batches:
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
        """Batches are counted from the one that was interrupted, and come through the checkpoint from now on."""
        enumerate_all, loader = iterator._enumerate_iterator, iterator._get_iterator

        def batches() -> Iterator[Any]:
            yield from self._running.batches(loader())

        def enumerate_rest() -> Iterator[Any]:
            begin, left = self._batch, False
            for first, last, data in enumerate_all():
                if first >= begin:
                    left = True
                    yield first, last, data
            if not left and _BACKEND == "jax":
                yield begin - 1, begin - 1, iter(())

        if _BACKEND == "tensorflow":
            iterator._enumerate_iterator = self._enumerate_in_graph(iterator)
        else:
            iterator._get_iterator, iterator._enumerate_iterator = batches, enumerate_rest

    def _enumerate_in_graph(self, iterator: Any) -> Callable[[], Iterator[Any]]:
        """TensorFlow asks for batches by itself, so those before are asked for here. It draws the order of a pass when
        that is begun: the passes of earlier epochs are begun, too."""
        enumerate_all = iterator._enumerate_iterator
        earlier = self._running.epoch - self._running.get("first_epoch", self._running.epoch)

        def leave_out(first: int, last: int, data: Any) -> None:
            for _ in range(first, last + 1):
                next(data)

        def enumerate_rest() -> Iterator[Any]:
            nonlocal earlier
            for _ in range(earlier):
                for one in enumerate_all():
                    if iterator.steps_per_epoch is not None:  # one pass over the data may be several epochs
                        leave_out(*one)
            earlier, begin = 0, self._batch
            for first, last, data in enumerate_all():
                if first >= begin:
                    yield first, last, data
                else:
                    leave_out(first, last, data)

        return enumerate_rest

    def _suffer_nothing_left(self) -> None:
        """On JAX `fit` fails where an epoch has no batch left. The first is given the numbers of those before instead,
        if there is none."""
        model, train = self.model, self.model.train_function
        logs = model.get_metrics_result()

        def train_or_not(state: Any, data: Any) -> Any:
            model.train_function = train
            try:
                return train(state, data)
            except StopIteration:
                self._nothing_left = True
                return logs, state

        model.train_function = train_or_not


class _Newest:
    """The data of the `fit` that begins: Keras creates it just before, and passes it to no callback."""

    def __init__(self) -> None:
        self._made: Callable[[], Any] = lambda: None
        make = _EpochIterator.__init__

        def make_and_note(iterator: Any, *args: Any, **options: Any) -> None:
            make(iterator, *args, **options)
            self._made = weakref.ref(iterator)

        _EpochIterator.__init__ = make_and_note

    def get(self) -> Any:
        return self._made()


_newest = _Newest()


class _Variables:
    """All that a model, its optimizer and its metrics remember, by path."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        if _BACKEND == "jax":
            self._model.jax_state_sync()  # `fit` has them to itself between epochs
        return {name: _values(variable) for name, variable in self._named().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, variable in self._named().items():
            variable.assign(state[name])

    def _named(self) -> dict[str, Any]:
        model = self._model
        found = {"model": model.variables, "optimizer": model.optimizer.variables, "metrics": model.metrics_variables}
        if seeds := _global_state.get_global_attribute("global_seed_generator"):
            found["seeds"] = [seeds.state]
        return {
            f"{kind}.{number}.{variable.path.replace('/', '.')}": variable
            for kind, variables in found.items()
            for number, variable in enumerate(variables)
        }


def _values(variable: Any) -> Any:
    """For torch the tensor itself; for others a copy as an array, which training cannot change back."""
    if _BACKEND == "torch":
        return variable.value.detach()
    return import_module("numpy").array(_keras.ops.convert_to_numpy(variable.value))


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
