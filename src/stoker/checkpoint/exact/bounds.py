"""How far the hook goes: which saves and loads are the script's own, and what is said where it keeps out or fails."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

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
    """A save or load of the script's own training, by the one process that trains."""
    if threading.current_thread() is not threading.main_thread():
        words.say("a save in another thread is not consistent with the training: its random states are not saved")
        return False
    if _is_distributed():
        words.say("several ranks train together: each would need its own random states, so none are saved")
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


def _is_distributed() -> bool:
    distributed = sys.modules.get("torch.distributed")
    with suppress(AttributeError, RuntimeError):
        return distributed is not None and distributed.is_initialized() and distributed.get_world_size() > 1
    return False
