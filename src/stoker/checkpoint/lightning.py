"""For Lightning: `Trainer(callbacks=[StokerCallback()])` resumes after the last batch, with the state of its loops."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from stoker.checkpoint.checkpoint import Checkpoint
from stoker.checkpoint.surroundings import require

require("lightning")  # before its private modules are looked for
# Not `import lightning`: types are checked where it is not installed, too.
_Callback: Any = import_module("lightning.pytorch").Callback
_NOT_STATE = (
    "hyper_parameters",
    "datamodule_hyper_parameters",
    "hparams_name",
    "datamodule_hparams_name",
    "hparams_type",
)


class StokerCallback(_Callback):  # type: ignore[misc]  # untyped
    """Saves what Lightning's own checkpoints hold, and the random states and the place in the training data besides.

    Give `fit` no `ckpt_path`: this callback finds the newest checkpoint itself. Options are as for `Checkpoint`; what
    is due at the last batch of an epoch is saved with the first of the next.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._sums: dict[str, Any] = {}
        self.state: Checkpoint | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002  # Lightning fixes the signatures
        if stage != "fit":
            return
        self._trainer = _LightningState(trainer)
        self.state = Checkpoint(lightning=self._trainer, **self._options)
        self.state.position.outside_epochs()
        self._sums = self.state.get("sums", {})

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """From here on the training data comes through the checkpoint."""
        self._trainer.ready = True
        self._total = trainer.estimated_stepping_batches
        loop, state = trainer.fit_loop, self._running
        loop._combined_loader.flattened = [
            _LightningBatches(loader, state) for loader in loop._combined_loader.flattened
        ]
        iter(loop._data_fetcher)
        state.buckets.add(trainer.strategy.model)
        state.put_random_back(finally_=not state.position.within_pass)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        state, loop = self._running, trainer.fit_loop.epoch_loop
        state.say_share(trainer.global_step, self._total)
        _add(loop._results, self._sums)
        self._sums = {}
        if loop.batch_progress.is_last_batch:
            # Lightning would resume here behind the validation that is still to come: the next batch is a better place.
            state.position.end_pass()
            state.steps += 1
            return
        state["sums"] = _sums(loop._results)
        state.position.epoch = trainer.current_epoch
        state.step()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._running["sums"] = {}

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._running.finish()
        if not trainer.received_sigterm:
            self._running.say_finished()

    @property
    def _running(self) -> Checkpoint:
        assert self.state is not None
        return self.state


class _LightningState:
    """A trainer as a part. Restored state waits where Lightning looks for the contents of a `ckpt_path`."""

    def __init__(self, trainer: Any) -> None:
        self._connector = trainer._checkpoint_connector
        self.ready = False  # before, there are no optimizers to ask

    def state_dict(self) -> dict[str, Any]:
        if not self.ready:
            return {}
        held: dict[str, Any] = self._connector.dump_checkpoint(weights_only=False)
        return {name: value for name, value in held.items() if name not in _NOT_STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._connector._loaded_checkpoint = state


class _LightningBatches:
    """A loader whose batches come through the checkpoint; in everything else the loader itself."""

    def __init__(self, loader: Any, state: Checkpoint) -> None:
        self._loader = loader
        self._state = state

    def __iter__(self) -> Iterator[Any]:
        return self._state.batches(self._loader)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _sums(results: Any) -> dict[str, Any]:
    """What `self.log(…, on_epoch=True)` has added up in this epoch, which Lightning's checkpoints leave out."""
    return {
        name: {"value": metric.value, "count": getattr(metric, "cumulated_batch_size", None)}
        for name, metric in results.items()
        if metric.meta.on_epoch and metric.is_tensor and (metric.meta.is_mean_reduction or metric.meta.is_sum_reduction)
    }


def _add(results: Any, sums: dict[str, Any]) -> None:
    for name, held in sums.items():
        if name in results:
            metric = results[name]
            metric.value = metric.value + held["value"]
            if held["count"] is not None:
                metric.cumulated_batch_size = metric.cumulated_batch_size + held["count"]
