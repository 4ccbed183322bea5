"""`Checkpoint`: the state of a training, saved while it runs and restored when it starts again."""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

from stoker.checkpoint import surroundings
from stoker.checkpoint.buckets import Buckets
from stoker.checkpoint.read import resuming, shelf
from stoker.checkpoint.read.reading import load_weights
from stoker.checkpoint.read.shelf import CheckpointFolder, Saver, say
from stoker.checkpoint.save import take
from stoker.checkpoint.save.take import Cost, Since, StateSaver
from stoker.checkpoint.save.writer import Writer
from stoker.checkpoint.state.feed import seated
from stoker.checkpoint.state.parts import EpochProgress, Position, StatePart, part_for, tells_of_steps
from stoker.checkpoint.surroundings import NoticeFile, ProgressLog

Batch = TypeVar("Batch")
_BEST_SO_FAR = "stoker.best"


class Checkpoint:
    """The state that a training needs to resume exactly.

    `parts` are the objects to save, under names of your choice: anything with `state_dict` and `load_state_dict`, and
    random generators. If the folder contains a checkpoint, they are restored immediately; `restored` says from where.

    `every` is a number of steps, `"1 epoch"`, a time such as `"30s"`, or `"auto"`: the optimal interval from
    the cost of a save and the eviction rate, at most `max_loss`. The newest `keep` checkpoints are kept, and with
    `best="val_acc"` or `best="-loss"` also the best by that metric. `folder` defaults to `$STOKER_CHECKPOINTS`, or
    `checkpoints` outside of Stoker.

    With several ranks, `exact="same-placement"` gives the same bits as long as ranks resume with the same backend and
    links; `exact="any-placement"` also on other nodes, and costs a little at every step of DistributedDataParallel.
    """

    load_weights = staticmethod(load_weights)

    def __init__(
        self,
        *,
        every: int | str = "auto",
        keep: int = 3,
        best: str | None = None,
        max_loss: str | float = "5m",
        folder: str | Path | None = None,
        exact: str = "same-placement",
        **parts: Any,
    ) -> None:
        self._every = take.parse(every)
        self._max_loss_s = take.seconds(max_loss)
        self._best = best
        shelf.to_keep([], keep, best)  # refuses invalid values before the training starts
        self._parts: dict[str, StatePart] = {name: part_for(name, thing) for name, thing in parts.items()}
        self._ranks, self._around = resuming.find_ranks(surroundings.look())
        self._shelf = CheckpointFolder(Path(self._around.folder if folder is None else folder))
        self._saver = Saver(self._shelf, self._around, keep, best)
        self._writer = Writer(self._saver)
        self._notice = NoticeFile(self._around.notice)
        self.buckets = Buckets(parts, exact)
        self._seats = seated(self._around.full_world, self._around.world, self._around.rank)
        self._progress = EpochProgress(self.buckets, self._seats)
        optimizers = [thing for thing in parts.values() if tells_of_steps(thing)]
        self._saving = StateSaver(self._parts, optimizers, self._progress, self._writer)
        self._share = ProgressLog(reports=self._around.reports_metrics and self._around.rank == 0)
        self._in_epochs = False
        self._save_at_end_of_epoch = False
        self.restored: Path | None = None
        self._resume()
        self._saved_at = (self.steps, self.epoch, time.monotonic())
        atexit.register(_finish, weakref.ref(self._saving), weakref.ref(self._writer))

    # The loop

    @property
    def steps(self) -> int:
        """The number of completed steps."""
        return self._progress.steps

    @steps.setter
    def steps(self, done: int) -> None:
        self._progress.steps = done

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self.position.epoch

    @property
    def position(self) -> Position:
        """The position of the training in its data."""
        return self._progress.position

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of each metric."""
        return self._progress.metrics

    def epochs(self, total: int) -> Iterator[int]:
        """Epochs from the interrupted one on. When all are done, the last state is saved."""
        self._in_epochs = True
        while self.position.epoch < total:
            self.put_random_back(finally_=not self.position.within_pass)
            yield self.position.epoch
            self.position.next_epoch()
            self._share.tell(self.steps, self.epoch, total)
            self.epoch_is_over()
        self._in_epochs = False
        self.put_random_back()
        if self._saved_at[:2] != (self.steps, self.epoch):
            self._save()
        self.finish()
        self.say_finished()

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of a loader after the last completed one, in the original order.

        A batch is completed when `step` is called after it. A `DataLoader` with a sampler does not load the earlier
        batches; any other iterable loads and skips them. While a job such as `nodes: 2..4` has fewer ranks than it
        prefers, a `DataLoader` with a `DistributedSampler` yields larger batches: see `micro_batches`.
        """
        return self.position.passes(loader, self.put_random_back)

    def micro_batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Like `batches`, for a job whose number of nodes may change, such as `nodes: 2..4`. All batches have the size
        that the loader says; while there are fewer ranks, a step has several of them. Accumulate their gradients, and
        call the optimizer and `step` only when `completes_step` is true:

            for x, y in state.micro_batches(loader):
                with state.accumulating(model):
                    loss = loss_function(model(x), y) * state.loss_scale
                    loss.backward()
                if state.completes_step:
                    optimizer.step()
                    optimizer.zero_grad()
                    state.step()

        With `batches`, they are one batch, which is larger then.
        """
        return self.position.passes(loader, self.put_random_back, one_by_one=True)

    @property
    def accumulation(self) -> int:
        """How many batches of `micro_batches` make one step of this rank; 1 if all nodes are there."""
        return len(self._seats.mine)

    @property
    def completes_step(self) -> bool:
        """The current batch is the last one of its step."""
        return self.position.completes_step

    @property
    def loss_scale(self) -> float:
        """What to multiply the mean loss of a batch with, so that every sample of the global batch counts the same when
        gradients are averaged over ranks. 1 if all nodes are there."""
        return self.position.loss_scale

    def accumulating(self, model: Any) -> AbstractContextManager[Any]:
        """For the forward and backward pass: a model of DistributedDataParallel exchanges gradients only where the
        current batch completes its step."""
        no_sync = None if self.completes_step else getattr(model, "no_sync", None)
        return no_sync() if no_sync else nullcontext()

    def range(self, total: int) -> Iterator[int]:
        """Steps from the interrupted one on, for a loop without a loader. Call `step` at the end of each."""
        self.put_random_back()
        while self.steps < total:
            before = self.steps
            yield self.steps
            if self.steps == before:
                raise RuntimeError("`Checkpoint.range`: call `step()` at the end of each round")
            self._share.tell(self.steps, self.steps, total)
        self.finish()
        self.say_finished()

    def step(self, **metrics: Any) -> None:
        """Marks a training step as done. Saves if a save is due, or on an eviction notice.

        `metrics` are reported like those of `stoker.log`, and compared if `best` names one of them.
        """
        if not self.completes_step:
            raise RuntimeError(
                "`Checkpoint.step`: call it when `completes_step` is true, after the last batch of a step"
            )
        self.steps += 1
        improved = self.report(**metrics) if metrics else False
        wanted = self._notice.new() or improved or self._saving.again or self._due()
        if self._ranks.save_now(self.steps, wanted=wanted):
            if not self.buckets.settled:
                self._saving.again = True
            elif self._notice.new(look_now=True):
                self._answer_notice()
            else:
                self._save()
        elif not self._saving.prepared:
            self._saving.prepare()

    def epoch_is_over(self) -> None:
        """Saves if a save is due. `epochs` calls this; use it in other loops."""
        if self._ranks.any(self._save_at_end_of_epoch or self._due(steps_count=False)):
            self._save_at_end_of_epoch = False
            self._save()

    def report(self, **metrics: Any) -> bool:
        """Reports metrics that do not belong to a step, such as of a validation. True if they are the best so far.

        The best so far is saved: immediately from `step`, at the end of the epoch otherwise.
        """
        if self._around.reports_metrics:
            surroundings.log(step=self.steps, **metrics)
        numbers = {name: float(value) for name, value in metrics.items()}
        self._progress.metrics |= numbers
        if not self._best or self._best.lstrip("-") not in numbers:
            return False
        now, before = shelf.score(numbers, self._best), self.get(_BEST_SO_FAR)
        if before is not None and not now > before:
            return False
        self[_BEST_SO_FAR] = now
        self._save_at_end_of_epoch = True
        return True

    def say_share(self, done: float, total: float) -> None:
        """Reports how much of the training is done, in steps or epochs, for deadlines. `epochs` and `range` call this;
        use it in other loops. It is cheap enough for every step."""
        self._share.tell(self.steps, done, total)

    def say_finished(self) -> None:
        """Marks the training as complete, so that a run whose node is being evicted is not started again. `epochs` and
        `range` call this; use it in other loops."""
        if self._around.finished is not None:
            with suppress(OSError):
                Path(self._around.finished).touch()

    # Values

    def __getitem__(self, name: str) -> Any:
        return self._progress.values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._progress.values[name] = value

    def __contains__(self, name: object) -> bool:
        return name in self._progress.values

    def get(self, name: str, default: Any = None) -> Any:
        """A value of yours that is saved with the state: `state["best"] = 0.97` sets one."""
        return self._progress.values.get(name, default)

    def setdefault(self, name: str, default: Any) -> Any:
        """The value of this name; if there is none, it is set to `default`."""
        return self._progress.values.setdefault(name, default)

    # Saving

    def save(self, *, wait: bool = False) -> None:
        """Saves now; with `wait` it returns when the save is complete.

        After the last batch of an epoch a script cannot resume in the middle of its code, so there the save is made at
        the end of the epoch.
        """
        if self._in_epochs and not self.position.within_pass:
            self._save_at_end_of_epoch = True
            return
        self._save()
        if wait:
            self.finish()

    @property
    def trouble(self) -> str | None:
        """Why the last save failed; None if it did not."""
        return self._writer.trouble

    @property
    def last_save(self) -> Path | None:
        """The newest complete checkpoint of this process."""
        return self._writer.last

    @property
    def cost(self) -> Cost:
        """The cost of the last save."""
        return self._saving.cost

    @property
    def moved_bytes(self) -> int:
        """The bytes that the last save wrote: unchanged files were linked."""
        return self._saver.moved_bytes

    def finish(self) -> None:
        """Waits until all saves are complete. Called automatically when the process exits."""
        self._saving.finish()

    def _save(self, *, hurry: bool = False) -> None:
        self._saving.save(hurry=hurry)
        self._saved_at = (self.steps, self.epoch, time.monotonic())

    def _answer_notice(self) -> None:
        begun = time.monotonic()
        self._save(hurry=True)
        self.finish()
        if self._around.local_rank:
            self._notice.leave()  # the rank that commits answers it
        elif self._writer.trouble is None:
            self._notice.answer(self.steps, time.monotonic() - begun)
        if self._notice.hold():
            say(f"step {self.steps} is saved, and no eviction came: training continues")

    def _due(self, *, steps_count: bool = True) -> bool:
        steps, epoch, at = self._saved_at
        since = Since(self.steps - steps if steps_count else 0, self.epoch - epoch, time.monotonic() - at)
        if self._every.steps is not None or self._every.epochs is not None:
            return take.due(self._every, since, 0.0)
        rate = self._around.evictions_per_hour
        rate = take.SUPPOSED_EVICTIONS_PER_HOUR if rate is None else rate
        return take.due(self._every, since, take.best_interval_s(self.cost, rate, self._max_loss_s))

    # Resuming

    def _resume(self) -> None:
        found = resuming.find(self._shelf, self._ranks, self._around)
        if found is None:
            return
        stored, exact = found
        resuming.check(stored, self._parts)
        self.buckets.restore(stored.value(stored.form.get("buckets", {})))
        for name, part in self._parts.items():
            part.load(stored.value(stored.form["parts"][name], copy=not part.in_place))
        self._progress.restore(stored, exact=exact)
        self._saver.follow(stored.opened)
        self.restored = stored.opened.path
        say(f"resumed from {self.restored.name}, epoch {self.epoch}")

    def put_random_back(self, *, finally_: bool = True) -> None:
        """Restores the random states again: the script may have drawn random numbers since its start."""
        self.buckets.begin()
        self._progress.put_random_back(finally_=finally_)


def _finish(saving: weakref.ref[StateSaver], writer: weakref.ref[Writer]) -> None:
    """Finishes whichever of the two still exists: a script may drop its checkpoint while something is being written."""
    if (living := saving() or writer()) is not None:
        living.finish()
