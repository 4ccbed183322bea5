"""For Hugging Face's `Trainer`: `StokerCallback(trainer)` before `trainer.train()`, which then resumes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from stoker.checkpoint.checkpoint import Checkpoint
from stoker.checkpoint.surroundings import require

require("transformers")  # before its private modules are looked for
# Not `import transformers`: types are checked where it is not installed, too.
_transformers = import_module("transformers")
_trainer_module: Any = import_module("transformers.trainer")
_TrainerCallback: Any = _transformers.TrainerCallback
_ExportableState: Any = import_module("transformers.trainer_callback").ExportableState
_EPOCH = 4  # where `_maybe_log_save_evaluate` is told the epoch
_OURS = "stoker"  # stands where `resume_from_checkpoint` would
_COUNTERS = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "current_flos")


class StokerCallback(_TrainerCallback):  # type: ignore[misc]  # untyped
    """Saves model, optimizer, schedule, log history, random states and the place in the data after any step.

    It adds itself to the trainer and steps in where the trainer begins, fetches data and ends a step; give `train` no
    `resume_from_checkpoint`. Options are as for `Checkpoint`; what is due at the last step of an epoch is saved with
    the first of the next.
    """

    def __init__(self, trainer: Any, **options: Any) -> None:
        self._trainer = trainer
        self._options = options
        self._part = _TrainerState(trainer)
        self._counters: dict[str, Any] = {}
        self.state: Checkpoint | None = None
        trainer.add_callback(self)
        for name in ("_init_training_state", "_prepare_for_training", "_run_epoch", "_maybe_log_save_evaluate"):
            setattr(trainer, name, _around(getattr(trainer, name), getattr(self, name)))
        trainer._load_rng_state = _around(trainer._load_rng_state, self._load_rng_state)

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002  # fixed
        for name, value in self._counters.items():
            setattr(self._trainer, name, value)
        ours = self._running
        ours.buckets.add(self._trainer.model_wrapped)
        ours.put_random_back(finally_=not ours.position.within_pass)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        self._running.finish()
        if state.global_step >= state.max_steps:
            self._running.say_finished()

    def _init_training_state(self, original: Callable[..., Any], max_steps: int, per_epoch: int, *more: Any) -> Any:
        found = original(max_steps, per_epoch, *more)
        self.state = state = Checkpoint(trainer=self._part, **self._options)
        state.position.outside_epochs()
        if state.restored is None:
            return found
        trainer = self._trainer
        for name, value in json.loads(state["trainer_state"]).items():
            setattr(trainer.state, name, value)
        trainer._load_callback_state()
        self._counters = state["counters"]
        epochs, steps = divmod(trainer.state.global_step, per_epoch)
        return epochs, steps * trainer.args.gradient_accumulation_steps

    def _prepare_for_training(self, original: Callable[..., Any], *given: Any) -> Any:
        prepared = original(*given)
        self._part.apply()
        return prepared

    def _run_epoch(self, original: Callable[..., Any], **given: Any) -> Any:
        """Data comes through the checkpoint, which leaves out by itself what Hugging Face would skip."""
        given["train_dataloader"] = _TrainerBatches(given["train_dataloader"], self._running)
        if self._running.restored is not None:
            given["resume_from_checkpoint"] = _OURS
        skip = _trainer_module.skip_first_batches
        _trainer_module.skip_first_batches = lambda loader, count: loader  # noqa: ARG005  # as the one it stands for
        try:
            return original(**given)
        finally:
            _trainer_module.skip_first_batches = skip

    def _load_rng_state(self, original: Callable[..., Any], checkpoint: Any) -> None:
        if checkpoint != _OURS:
            original(checkpoint)

    def _maybe_log_save_evaluate(self, original: Callable[..., Any], *given: Any, **more: Any) -> Any:
        result = original(*given, **more)
        state, trainer = self._running, self._trainer
        if trainer.state.global_step > state.steps:  # called at the end of an epoch, too
            state.say_share(trainer.state.global_step, trainer.state.max_steps)
            state.position.epoch = int(trainer.state.epoch)
            if trainer.state.epoch >= given[_EPOCH] + 1:
                # The trainer would resume here behind the evaluation still to come: the next step is a better place.
                state.position.end_pass()
                state.steps = trainer.state.global_step
                return result
            state["trainer_state"] = _exported(trainer)
            state["counters"] = {name: getattr(trainer, name) for name in _COUNTERS}
            state.step()
        return result

    @property
    def _running(self) -> Checkpoint:
        assert self.state is not None
        return self.state


class _TrainerState:
    """Model, optimizer, schedule and scaler of a trainer, once it has them."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._ready = False
        self._waiting: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self._parts().items()} if self._ready else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._waiting = state

    def apply(self) -> None:
        """Restores the state that was loaded before the objects it belongs to existed."""
        self._ready = True
        waiting, self._waiting = self._waiting, None
        for name, part in self._parts().items() if waiting is not None else ():
            assert waiting is not None
            part.load_state_dict(waiting[name])

    def _parts(self) -> dict[str, Any]:
        trainer = self._trainer
        found = {"model": trainer.model, "optimizer": trainer.optimizer, "schedule": trainer.lr_scheduler}
        scaler = getattr(trainer.accelerator, "scaler", None)
        return found | ({"scaler": scaler} if scaler is not None else {})


class _TrainerBatches:
    """A loader whose batches come through the checkpoint; in everything else the loader itself.

    Accelerate's loader fetches one batch ahead, so the one inside it is asked; the trainer moves batches by itself.
    """

    def __init__(self, loader: Any, state: Checkpoint) -> None:
        self._loader = loader
        self._state = state

    def __iter__(self) -> Iterator[Any]:
        return self._state.batches(getattr(self._loader, "base_dataloader", self._loader))

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _around(original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given, **more: ours(original, *given, **more)


def _exported(trainer: Any) -> str:
    """The trainer's own state, with that of its callbacks, as Hugging Face writes it."""
    for callback in [*trainer.callback_handler.callbacks, trainer.control]:
        if isinstance(callback, _ExportableState):
            trainer.state.stateful_callbacks[type(callback).__name__] = callback.state()
    return json.dumps(dataclasses.asdict(trainer.state))
