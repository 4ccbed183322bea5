"""The hook at work in one process: what is taken at a save, and what is done with it after a load."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from stoker.checkpoint.exact import places, sidecar, states
from stoker.checkpoint.exact.loaders import Loaders, Primers, continue_pass, without_new_workers
from stoker.checkpoint.exact.places import Entering, Line, LoopId
from stoker.checkpoint.exact.ranks import Ranks, Words, group, is_ours
from stoker.checkpoint.state import randomness

if TYPE_CHECKING:
    from stoker.checkpoint.exact.gradients import Gradients

# Lightning begins the first pass over its data here, before its loop.
_SETS_UP = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")


class Session:
    def __init__(self, *, active: bool = True) -> None:
        self.active = active
        self.words = Words()
        self.loaders = Loaders()
        self.primers = Primers()
        self._ranks = Ranks(self.words, self._own_state)
        self.gradients: Gradients | None = None  # of a process that may meet others
        self._token = os.urandom(8).hex()
        self._saves = 0  # counted over all processes of a run
        self._trains = False  # it has saved in a loop
        self._inside = False  # a save calls others
        self._worked: tuple[list[Line], randomness.Raw | None] | None = None  # the last backward pass
        self._repeats: bool | None = None  # saves come before the step of their turn; None: there was none yet
        self._pending: dict[str, Any] | None = None  # what was loaded and not restored yet
        self._entering: Entering | None = None
        os.register_at_fork(after_in_child=self._leave)

    def _leave(self) -> None:
        """A worker of a DataLoader does not train."""
        self.active = False

    def joining(self) -> None:
        """A process that meets other ranks trains, whichever program started it."""
        self.active = True

    def event(self, kind: str) -> str:
        """Before something that every rank comes by. Returns its name, empty for a process that trains alone."""
        names: list[str] = []
        if self.active and not self._inside:
            self.words.guarded(lambda: names.append(self._ranks.passing(kind, places.stack())))
        return names[0] if names else ""

    def wrapped(self, wrapper: Any) -> None:
        """A model whose gradients the ranks add up."""
        if self.active and (gradients := self.gradients):
            self.words.guarded(lambda: gradients.add(wrapper))

    def calling(self, wrapper: Any) -> None:
        self.event("forward")
        if self.active and (gradients := self.gradients):
            self.words.guarded(lambda: gradients.before_call(wrapper))

    def _own_state(self) -> dict[str, Any]:
        """Of this rank between two steps, for a rank that saves there."""
        frames = places.stack()
        return {
            "state": states.capture(frames),
            "loaders": self.loaders.capture(),
            "primers": self.primers.capture(),
            "worked": randomness.pack(self._worked[1]) if self._worked and self._worked[1] is not None else None,
        }

    # Saving

    def saving(self, path: str | None, save: Callable[[], Any], *, closed: bool = True) -> Any:
        """Around a save of the script. `closed`: the file is complete when `save` returns."""
        event = self.event("save") if path is not None else ""
        if path is None or self._inside or not self.active or not is_ours(self.words):
            return save()
        self._inside = True
        try:
            record = self._announced(path, event)
            result = save()
            if closed and record:
                self.words.guarded(lambda: sidecar.confirm(path, record))
            return result
        finally:
            self._inside = False

    def _announced(self, path: str, event: str) -> dict[str, Any]:
        record: dict[str, Any] = {}

        def announce() -> None:
            record.update(self._record())
            record["rank"], record["world"] = group()
            record["ranks"] = self._ranks.others(event)
            record["buckets"] = self.gradients.records() if self.gradients else {}
            sidecar.announce(path, record)

        self.words.guarded(announce)
        return record

    def _record(self) -> dict[str, Any]:
        frames = places.stack()
        here, around = places.lines(frames), places.enclosing(frames)
        self._saves += 1
        self._trains = self._trains or bool(around)
        record: dict[str, Any] = {
            "process": self._token,
            "saves": self._saves,
            "loops": [_spelled(places.identity(frame, loop)) for frame, loop in around],
            "counters": [_counter(frame, loop.target) for frame, loop in around],
            "state": states.capture(frames),
            "loaders": self.loaders.capture(),
            "primers": self.primers.capture(),
            "again": False,
        }
        # A save before the step of its turn of the loop: the next process does that turn again, from its beginning.
        if self._worked is not None and around:
            again = places.comes_before(here, self._worked[0])
            self._repeats = self._repeats or again
            if again and self._worked[1] is not None:
                record["again"] = True
                record["state"]["random"] = randomness.pack(self._worked[1])
        return record

    def worked(self) -> None:
        """After every backward pass."""
        if self.active and not self._inside:
            self.words.guarded(self._note_work)

    def _note_work(self) -> None:
        self._forget_pending()
        self.primers.worked()
        self._worked = (places.lines(places.stack()), randomness.take() if self._repeats is not False else None)
        self._ranks.worked()

    # Loading

    def loading(self, path: str | None, load: Callable[[], Any]) -> Any:
        nested, self._inside = self._inside, True
        try:
            result = load()
        finally:
            self._inside = nested
        if path is not None and not nested and self.active:
            self.words.guarded(lambda: self._loaded(path))
        return result

    def _loaded(self, path: str) -> None:
        """A file that this process has saved itself, or loads in the midst of its training, is none to resume from."""
        if self._trains or self._worked is not None or not is_ours(self.words):
            return
        if not sidecar.beside(path).exists():
            return
        record = sidecar.find(path)
        if record is None:
            self.words.say(
                f"no random states were saved for `{Path(path).name}` in its current form: none are restored"
            )
            return
        record = self._of_this_rank(record, Path(path).name)
        newest = self._pending["saves"] if self._pending is not None else 0
        if record is None or record["process"] == self._token or record["saves"] < newest:
            return
        self._pending = record
        if self.gradients:
            self.gradients.loaded = dict(record.get("buckets", {}))
        self._wait_for_loop(Path(path).name)

    def _of_this_rank(self, record: dict[str, Any], name: str) -> dict[str, Any] | None:
        """Where the save was, and what this rank was like there."""
        rank, world = group()
        if record.get("world", 1) != world:
            was = record.get("world", 1)
            self.words.say(f"`{name}` was saved by one of {was} ranks, and there are {world}: none are restored")
            return None
        if record.get("rank", 0) == rank:
            return record
        own = record["ranks"].get(str(rank))
        if own is None:
            self.words.say(f"no random states of rank {rank} were saved with `{name}`: none are restored")
            return None
        state = {**own["state"], "random": own["worked"]} if record["again"] and own["worked"] else own["state"]
        return {**record, "state": state, "loaders": own["loaders"], "primers": own["primers"]}

    def _wait_for_loop(self, name: str) -> None:
        record = self._pending
        assert record is not None
        frames = places.stack()
        active = {
            places.identity(frame, loop) for frame, loop in places.enclosing(frames) if frame.f_lineno >= loop.body
        }
        wanted = [LoopId(*one) for one in record["loops"]]
        target = next((one for one in wanted if one not in active), None)
        if self._entering is not None:
            self._entering.stop()
        self._entering = None
        if target is None:
            self._restore(name)
            return
        self._entering = Entering(target, lambda _: self.words.guarded(lambda: self._restore(name)))
        self._entering.watch()

    def _restore(self, name: str, *, frames: list[FrameType] | None = None) -> None:
        record = self._pending
        if record is None or record.get("restored"):
            return
        record["restored"] = True
        if self._entering is not None:
            self._entering.stop()
        self._saves = record["saves"]
        missing = self._apply(record, frames or places.stack())
        self.words.say(f"random states are as they were when `{name}` was saved")
        for one in missing:
            self.words.say(f"not restored: {one}")

    def _apply(self, record: dict[str, Any], frames: list[FrameType]) -> list[str]:
        missing = states.restore(record["state"], frames)
        self.loaders.restore(record["loaders"])
        return missing

    def _forget_pending(self) -> None:
        if self._pending is None:
            return
        if not self._pending.get("restored"):
            self.words.say(
                "the script did not enter the loop in which the checkpoint was saved: random states are not restored"
            )
        if self._entering is not None:
            self._entering.stop()
        self._pending = self._entering = None

    # Data and draws

    def passing(self, loader: Any, make: Callable[[], Any]) -> Any:
        """Around the beginning of a pass over a loader. What the loader itself raises is the script's."""
        if not self.active:
            return make()
        self.event("pass")
        asked, made = [], []

        def make_one() -> Any:
            asked.append(True)
            made.append(make())
            return made[-1]

        try:
            return self._pass(loader, make_one)
        except Exception as error:
            if len(asked) > len(made):
                raise
            self.words.tell_of(error)
            return made[-1] if made else make()

    def _pass(self, loader: Any, make: Callable[[], Any]) -> Any:
        record = self._pending
        held = self.loaders.found(loader, record["loaders"]) if record else None
        if record is None or held is None:
            return self.loaders.begin(loader, make)
        frames = places.stack()
        if _is_before_loop(frames):
            record.pop(
                "restored", None
            )  # it is asked for an iterator to see whether it has one, and then for the real one
            self._restore("the checkpoint", frames=frames)
        if self._is_interrupted(held, record, frames):
            return self.loaders.begin(loader, lambda: self._continued(loader, held, record, make, frames))
        if held["lasting"] and getattr(loader, "_iterator", None) is None:
            self.words.say("persistent workers start over: their own random draws are not restored")
            return self.loaders.begin(loader, lambda: without_new_workers(loader, make))
        return self.loaders.begin(loader, make)

    def _is_interrupted(self, held: dict[str, Any], record: dict[str, Any], frames: list[FrameType]) -> bool:
        """Whether the pass that begins is the one that the save was in the midst of."""
        if "begun" not in held or any(frame.f_globals.get("__name__", "").startswith("keras.") for frame in frames):
            return False
        now = {
            _spelled(places.identity(frame, loop)): _counter(frame, loop.target)
            for frame, loop in places.enclosing(frames)
        }
        known = [
            (now[loop], then)
            for loop, then in zip(map(tuple, record["loops"]), record["counters"], strict=True)
            if loop in now and then is not None and now[loop] is not None
        ]
        if known:  # the loop over epochs counts: the same epoch again, or the next one
            return all(one == then for one, then in known) and not (held["lasting"] and held["over"])
        return not held["over"]

    def _continued(
        self,
        loader: Any,
        held: dict[str, Any],
        record: dict[str, Any],
        make: Callable[[], Any],
        frames: list[FrameType],
    ) -> Any:
        skip = max(held["used"] - (1 if record["again"] else 0), 0)
        around = places.loops_around(frames[-1])
        by_itself = bool(around) and around[-1].skips and around[-1].header == frames[-1].f_lineno
        iterator = continue_pass(loader, held, make, 0 if by_itself else skip)
        if by_itself:
            self._at_batch = (iterator, skip, record)
            return iterator
        self._apply(record, frames)
        self.words.say(f"the pass over the data continues after {skip} batches")
        return iterator

    _at_batch: tuple[Any, int, dict[str, Any]] | None = None

    def fetching(self, iterator: Any) -> None:
        """Before a batch is fetched: the script may have passed over those that were used by now."""
        self.event("batch")
        if self._at_batch is not None and self._at_batch[0] is iterator and iterator._num_yielded == self._at_batch[1]:
            record, self._at_batch = self._at_batch[2], None
            self.words.guarded(lambda: self._apply(record, places.stack()))

    def drawing(self) -> None:
        """Before the script draws numbers itself."""
        self.event("draw")
        if self.active and not self._inside:
            kept = self._pending["primers"] if self._pending and not self._pending.get("restored") else None
            self.words.guarded(lambda: self.primers.drawing(kept))


def _is_before_loop(frames: list[FrameType]) -> bool:
    return any(one.f_globals.get("__name__") in _SETS_UP and one.f_code.co_name == "setup_data" for one in frames)


def _spelled(loop: LoopId) -> tuple[str, str, int]:
    return loop.file, loop.function, loop.header


def _counter(frame: FrameType, name: str) -> int | None:
    value = frame.f_locals.get(name) if name else None
    return value if type(value) is int else None
