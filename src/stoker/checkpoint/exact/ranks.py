"""Several ranks of PyTorch: what the others were like when one of them saved.

In most scripts rank 0 saves and the others pass by, so nothing tells them of it. But between two steps every rank
comes by the same events: it begins a pass over data, fetches a batch, draws, calls its model, meets the others. Each
rank puts what it is like before each of them into the group's store. The rank that saves knows which of them it has
passed itself; another rank's first event that is not among them comes after the save, and what it was like before that
is what it was like at the save.

How far the hook goes: which saves and loads are the script's own, and what is said where it keeps out or fails.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from stoker.checkpoint.exact import sidecar
from stoker.checkpoint.surroundings import look

State = dict[str, Any]

_PATIENCE_S = 10.0  # ranks of one training are seldom further apart
_HURRIED_S = 0.5  # once one of them did not come
_POLL_S = 0.001
_MOST = 64  # events between two steps
_KEPT = 128  # steps that a rank may be behind, as with accumulated gradients
_BEGUN = "begun"


def group() -> tuple[int, int]:
    """The number of this rank, and of how many; before they have met, what the launcher says."""
    distributed = sys.modules.get("torch.distributed")
    with suppress(AttributeError, RuntimeError, ValueError):
        if distributed is not None and distributed.is_initialized():
            return int(distributed.get_rank()), int(distributed.get_world_size())
    with suppress(ValueError):
        around = look()
        return around.rank, around.world
    return 0, 1


class Ranks:
    """This rank among the others. `describe` says what it is like now."""

    def __init__(self, words: Words, describe: Callable[[], State]) -> None:
        self._words = words
        self._describe = describe
        self._step = 0
        self._passed: dict[str, None] = {}  # events since the last step, in their order
        self._counts: dict[int, int] = {}  # of events that are in the store, by step
        self._patience_s = _PATIENCE_S

    def worked(self) -> None:
        """A step has ended on all ranks."""
        if group_store() is not None:
            self._step += 1
            self._passed = {}
            self._publish(_BEGUN)

    def passing(self, kind: str, frames: list[FrameType]) -> str:
        """Before an event. Returns its name, empty for a process that trains alone."""
        if group_store() is None:
            return ""
        if not self._passed:
            self._publish(_BEGUN)
        event = _name(kind, frames)
        if event not in self._passed and len(self._passed) < _MOST:
            self._publish(event)
        return event

    def others(self, event: str) -> dict[str, State]:
        """What each other rank was like at the event, a save, that this one is at."""
        store, (own, world) = group_store(), group()
        if store is None or not event:
            return {}
        found = {str(rank): self._at(store, rank, event) for rank in range(world) if rank != own}
        return {rank: state for rank, state in found.items() if state is not None}

    def _at(self, store: Any, rank: int, event: str) -> State | None:
        until = time.monotonic() + self._patience_s
        last: State | None = None
        for number in range(_MOST + 1):
            key = _key(rank, self._step, number)
            while not store.check([key]):
                if time.monotonic() >= until:
                    self._patience_s = _HURRIED_S
                    self._words.say(f"rank {rank} did not pass the save within a few seconds: it may differ after it")
                    return last
                time.sleep(_POLL_S)
            held = sidecar.read_text(store.get(key))
            last = held["state"]
            if held["event"] == event or held["event"] not in self._passed:
                break
        return last

    def _publish(self, event: str) -> None:
        store, (own, _) = group_store(), group()
        store.set(
            _key(own, self._step, len(self._passed)), sidecar.as_text({"event": event, "state": self._describe()})
        )
        self._passed[event] = None
        self._counts[self._step] = len(self._passed)
        for step in [one for one in self._counts if one <= self._step - _KEPT]:
            for number in range(self._counts.pop(step)):
                store.delete_key(_key(own, step, number))


def group_store() -> Any:
    """Of the group, in which ranks find each other; None for a process that trains alone."""
    distributed = sys.modules.get("torch.distributed")
    with suppress(AttributeError, RuntimeError, ValueError):
        if distributed is not None and distributed.is_initialized() and distributed.get_world_size() > 1:
            return distributed.distributed_c10d._get_default_store()
    return None


def _key(rank: int, step: int, number: int) -> str:
    return f"stoker-exact/{rank}/{step}/{number}"


def _name(kind: str, frames: list[FrameType]) -> str:
    """The same on every rank: what happens, and the calls that lead there."""
    calls = [(frame.f_code.co_qualname, frame.f_lineno) for frame in frames]
    return hashlib.sha256(repr((kind, calls)).encode()).hexdigest()[:16]


# These save random states themselves, and pass over the batches that were used.
_BY_THEMSELVES = ("transformers.trainer", "accelerate.", "stoker.checkpoint")
_OURS = "stoker.checkpoint.exact"


class Words:
    """What the script's log says of the hook, each thing once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            sys.stderr.write(f"stoker: exact: {text}\n")
            sys.stderr.flush()

    def guarded(self, work: Callable[[], object]) -> None:
        """Whatever is wrong with us, the script has to train."""
        try:
            work()
        except Exception as error:
            self.tell_of(error)

    def tell_of(self, error: Exception) -> None:
        self.say(f"failed, and the script continues without it: {type(error).__name__}: {error}")


def is_ours(words: Words) -> bool:
    """A save or load of the script's own training, by a process that trains."""
    if threading.current_thread() is not threading.main_thread():
        words.say("a save in another thread is not consistent with the training: its random states are not saved")
        return False
    return not _is_exact_by_itself()


def _is_exact_by_itself() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(_BY_THEMSELVES) and not name.startswith(_OURS):
            return True
        frame = frame.f_back
    return False
