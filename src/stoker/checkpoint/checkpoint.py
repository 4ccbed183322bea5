"""`Checkpoint`: the state of a training, saved while it runs and put back when it starts again."""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from stoker.checkpoint import fit, interval, log, randomness, ranks, retention, surroundings
from stoker.checkpoint.copying import Copying
from stoker.checkpoint.interval import Cost, Since
from stoker.checkpoint.notice import NoticeBoard
from stoker.checkpoint.parts import Part, part_for
from stoker.checkpoint.position import Position
from stoker.checkpoint.reading import Opened, OpenedPart, open_as_is
from stoker.checkpoint.saver import Saver
from stoker.checkpoint.shelf import Shelf, say
from stoker.checkpoint.snapshot import Snapshot, mark_of_gpu
from stoker.checkpoint.structure import Flattener
from stoker.checkpoint.weights import load_weights
from stoker.checkpoint.writer import Writer

Batch = TypeVar("Batch")


class Checkpoint:
    """Everything a training needs to go on as if it had never stopped.

    `parts` are the things to save, under names of your choice: whatever has `state_dict` and `load_state_dict`, and
    random generators. If the folder holds a checkpoint, they are put back at once; `restored` says from where.

    `every` is a number of steps, `"1 epoch"`, a time such as `"30s"`, or `"auto"`: as often as the cost of a save and
    the rate of evictions make it worth, at most `max_loss` apart. The newest `keep` are kept, and with
    `best="val_acc"` or `best="-loss"` the best by that metric besides. `folder` is `$STOKER_CHECKPOINTS`, or
    `checkpoints` outside of Stoker.
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
        **parts: Any,
    ) -> None:
        self._every = interval.parse(every)
        self._max_loss_s = interval.seconds(max_loss)
        self._best = best
        retention.to_keep([], keep, best)  # refuses what makes no sense, before the training has begun
        self._parts: dict[str, Part] = {name: part_for(name, thing) for name, thing in parts.items()}
        self._ranks, self._around = ranks.find(surroundings.look())
        self._shelf = Shelf(Path(self._around.folder if folder is None else folder))
        self._saver = Saver(self._shelf, self._around, keep, best)
        self._writer = Writer(self._saver)
        self._saver.newer_waits = lambda: self._writer.has_newer
        self._notice = NoticeBoard(self._around.notice)
        self.position = Position()
        self._values: dict[str, Any] = {}
        self._random: Mapping[str, Any] | None = None  # to be put back when the loop is where it was
        self._saves = 0
        self._flat: Flattener | None = None
        self._copier = ThreadPoolExecutor(1, "stoker-copy")
        self._copying: Copying | None = None
        self._overlap = True
        self._again = False  # the last save came to nothing
        self._optimizers = [thing for thing in parts.values() if hasattr(thing, "register_step_pre_hook")]
        for optimizer in self._optimizers:
            optimizer.register_step_pre_hook(self._end_copying)
        self._blocked_s = 0.0
        self._prepared = False
        self._in_epochs = False
        self._save_at_end_of_epoch = False
        self.steps = 0
        self.metrics: dict[str, float] = {}
        self.restored: Path | None = None
        self._resume()
        self._saved_at = (self.steps, self.position.epoch, time.monotonic())
        atexit.register(_finish, weakref.ref(self))

    # The loop

    @property
    def epoch(self) -> int:
        """The epoch that is under way, from 0."""
        return self.position.epoch

    def epochs(self, total: int) -> Iterator[int]:
        """Counts from the epoch that was interrupted. When all are done, the last state is saved and safe."""
        self._in_epochs = True
        while self.position.epoch < total:
            self.put_random_back(finally_=not self.position.within_pass)
            yield self.position.epoch
            self.position.next_epoch()
            self.epoch_is_over()
        self._in_epochs = False
        self.put_random_back()
        if self._saved_at[:2] != (self.steps, self.position.epoch):
            self._save()
        self._writer.finish()

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of a loader that have not counted yet, in the order they would have come in.

        Batches count when `step` is called after them. Of a `DataLoader` with a sampler, the ones before are not
        loaded; of anything else they are loaded and left out.
        """
        return self.position.passes(loader, self.put_random_back)

    def range(self, total: int) -> Iterator[int]:
        """Steps from the one that was interrupted, for a loop without a loader. Call `step` at the end of each."""
        self.put_random_back()
        while self.steps < total:
            before = self.steps
            yield self.steps
            if self.steps == before:
                raise RuntimeError("`Checkpoint.range`: call `step()` at the end of each round")
        self._writer.finish()

    def step(self, **metrics: Any) -> None:
        """One training step is done. Saves if it is time, or if a notice has come.

        `metrics` are reported like those of `stoker.log`, and judged if `best` names one of them.
        """
        self.steps += 1
        improved = self.report(**metrics) if metrics else False
        wanted = self._notice.new() or improved or self._again or self._due()
        if self._ranks.save_now(self.steps, wanted=wanted):
            if self._notice.new(look_now=True):
                self._answer_notice()
            else:
                self._save()
        elif not self._prepared:
            self._prepare()

    def epoch_is_over(self) -> None:
        """Saves if it is time. `epochs` does this itself; it is for loops that are not ours."""
        if self._ranks.any(self._save_at_end_of_epoch or self._due(steps_count=False)):
            self._save_at_end_of_epoch = False
            self._save()

    def report(self, **metrics: Any) -> bool:
        """Metrics that are not of a step, such as those of a validation. True if they are the best so far.

        The best so far is saved: at once from `step`, at the end of the epoch otherwise.
        """
        if self._around.reports_metrics:
            log.log(step=self.steps, **metrics)
        numbers = {name: float(value) for name, value in metrics.items()}
        self.metrics |= numbers
        if not self._best or self._best.lstrip("-") not in numbers:
            return False
        now, before = retention.score(numbers, self._best), self._values.get(_BEST_SO_FAR)
        if before is not None and not now > before:
            return False
        self._values[_BEST_SO_FAR] = now
        self._save_at_end_of_epoch = True
        return True

    # Values

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._values[name] = value

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name, default)

    def setdefault(self, name: str, default: Any) -> Any:
        return self._values.setdefault(name, default)

    # Saving

    def save(self, *, wait: bool = False) -> None:
        """Saves now; with `wait` it is safe on return.

        Behind the last batch of an epoch there is no way back into the middle of your code, so there it is done at the
        end of the epoch.
        """
        if self._in_epochs and not self.position.within_pass:
            self._save_at_end_of_epoch = True
            return
        self._save()
        if wait:
            self._writer.finish()

    @property
    def trouble(self) -> str | None:
        """Why the last save failed; None if it did not."""
        return self._writer.trouble

    @property
    def last_save(self) -> Path | None:
        """The newest checkpoint of this process that is safe."""
        return self._writer.last

    @property
    def cost(self) -> Cost:
        """What the last save took."""
        return Cost(self._blocked_s, self._writer.written_s)

    def finish(self) -> None:
        """Waits until everything saved so far is safe. Also done when the process exits."""
        self._writer.finish()

    def _save(self, *, hurry: bool = False) -> None:
        begun = time.perf_counter()
        self._end_copying()
        flat, form = self._flatten()
        buffers = self._writer.take_buffers()
        copies, left = buffers.copy(flat.leaves, flat.values, () if hurry else self._only_optimizers_change())
        self._saves += 1
        snapshot = Snapshot(self.steps, self.position.epoch, form, flat.leaves, copies, dict(self.metrics), self._saves)
        snapshot.ready, snapshot.buffers = mark_of_gpu(), buffers
        if left:
            snapshot.copying = self._copying = Copying(left, self._copier)
        self._writer.submit(snapshot, hurry=hurry)
        self._prepared, self._again = True, False
        self._saved_at = (self.steps, self.position.epoch, time.monotonic())
        self._blocked_s = time.perf_counter() - begun

    def _only_optimizers_change(self) -> set[int]:
        """Tensors, by identity, that stay as they are until an optimizer that tells us makes its next step."""
        if not self._overlap:
            return set()
        found: set[int] = set()
        for optimizer in self._optimizers:
            found.update(id(one) for group in optimizer.param_groups for one in group["params"])
            found.update(id(one) for slot in optimizer.state.values() for one in slot.values())
        return found

    def _end_copying(self, *_: Any) -> None:
        """Before tensors change: waits for the rest of their copy."""
        copying, self._copying = self._copying, None
        if copying is None:
            return
        begun = time.perf_counter()
        if not copying.good():
            self._overlap, self._again = False, True
            say("weights were changed between two steps of their optimizer; that save is dropped, the next step saved")
        self._blocked_s += time.perf_counter() - begun

    def _answer_notice(self) -> None:
        begun = time.monotonic()
        self._save(hurry=True)
        self._writer.finish()
        if self._around.local_rank:
            self._notice.leave()  # to the rank that commits
        elif self._writer.trouble is None:
            self._notice.answer(self.steps, time.monotonic() - begun)

    def _flatten(self) -> tuple[Flattener, Any]:
        flat = self._flat = Flattener(self._flat)
        parts = {name: flat.flatten(part.state(), name) for name, part in self._parts.items()}
        form = {
            "steps": self.steps,
            "parts": parts,
            "values": flat.flatten(self._values, "values"),
            "metrics": flat.flatten(self.metrics, "metrics"),
            "position": flat.flatten(self.position.state(), "position"),
            "random": flat.flatten(randomness.capture(), "random"),
        }
        return flat, form

    def _prepare(self) -> None:
        """After the first step, when an optimizer has its state: gets memory for the copy before it is needed."""
        self._prepared = True
        flat, _ = self._flatten()
        self._writer.prepare(flat.leaves, flat.values)

    def _due(self, *, steps_count: bool = True) -> bool:
        steps, epoch, at = self._saved_at
        since = Since(self.steps - steps if steps_count else 0, self.position.epoch - epoch, time.monotonic() - at)
        if self._every.steps is not None or self._every.epochs is not None:
            return interval.due(self._every, since, 0.0)
        rate = self._around.evictions_per_hour
        rate = interval.SUPPOSED_EVICTIONS_PER_HOUR if rate is None else rate
        return interval.due(self._every, since, interval.best_interval_s(self.cost, rate, self._max_loss_s))

    # Resuming

    def _resume(self) -> None:
        opened = self._agreed()
        if opened is None:
            return
        own = opened.part(self._around.rank)
        mine = own or opened.part(0)
        if mine is None:
            return
        if own is None:
            saved_by = f"{opened.path.name} was saved by {opened.manifest.ranks} ranks"
            say(f"{saved_by}: rank {self._around.rank} goes on from the beginning of the epoch, in an order of its own")
        self._check(mine, opened.path.name)
        self._load(mine, exact=own is not None)
        self._saver.follow(opened)
        self.restored = opened.path
        say(f"resumed from {opened.path.name}, epoch {self.position.epoch}")

    def _agreed(self) -> Opened | None:
        """The newest good checkpoint that every node has. The first rank of a node verifies it for the others."""
        leads = self._around.local_rank == 0
        if leads:
            self._shelf.sweep()
        found: Opened | None = None
        least, same = None, False
        while not same:
            if leads:
                found = self._shelf.newest(up_to=least)
            least, same = self._ranks.least((found.path.name if found else "") if leads else None)
        return found if leads or not least else open_as_is(self._shelf.folder / least)

    def _check(self, stored: OpenedPart, name: str) -> None:
        fit.check_names(name, stored.form["parts"], self._parts)
        for part_name, part in self._parts.items():
            flat = Flattener()
            present = flat.flatten(part.state(), part_name)
            fit.check_groups(name, part_name, stored.form["parts"][part_name], present)
            fit.check_tensors(name, part_name, stored.leaves, flat.leaves, strict=part.in_place)

    def _load(self, stored: OpenedPart, *, exact: bool) -> None:
        form = stored.form
        for name, part in self._parts.items():
            part.load(stored.value(form["parts"][name], copy=not part.in_place))
        self.steps = form["steps"]
        self._values = stored.value(form["values"])
        self.metrics = stored.value(form["metrics"])
        if exact:
            self.position.put_back(stored.value(form["position"]))
            self._random = stored.value(form["random"])
            randomness.put_back(self._random)
        else:
            self.position.epoch = stored.value(form["position"])["epoch"]

    def put_random_back(self, *, finally_: bool = True) -> None:
        """The random states once more: the script may have drawn since they were put back when it started."""
        if self._random is not None:
            randomness.put_back(self._random)
        if finally_:
            self._random = None


_BEST_SO_FAR = "stoker.best"


def _finish(checkpoint: weakref.ref[Checkpoint]) -> None:
    if (living := checkpoint()) is not None:
        living.finish()
