"""The warning before an eviction, as a file that appears, and the answer to it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import NamedTuple

_LOOK_EVERY_S = 0.2
_HOLD_EVERY_S = 0.05
_LONGEST_HOLD_S = 60.0  # whatever a clock says
GRACE_S = 15.0  # a machine may be taken a little later than was said


class Posted(NamedTuple):
    """`last`: there is time for one more save, and whatever is done behind it would be lost."""

    at: float
    deadline: float = 0.0
    last: bool = False


_UNREADABLE = Posted(-1.0)  # a notice that cannot be read is one all the same


class NoticeFile:
    """Looks for the notice at most five times a second, so that asking at every step costs next to nothing."""

    def __init__(self, file: str | None) -> None:
        self._file = file
        self._next_look = 0.0
        self._answered: Posted | None = None

    def new(self, *, look_now: bool = False) -> bool:
        """True if there is a notice that has not been answered. One that was withdrawn and came again is new, and so
        is one that has become the last word."""
        if self._file is None:
            return False
        now = time.monotonic()
        if now < self._next_look and not look_now:
            return False
        self._next_look = now + _LOOK_EVERY_S
        return self._posted() not in (None, self._answered)

    def leave(self) -> None:
        """Somebody else answers it."""
        self._answered = self._posted()

    def answer(self, step: int, seconds: float) -> None:
        """Says that everything up to `step` is safe, and took so long. Never raises: training goes on."""
        self.leave()
        saved = f"{self._file}.saved"
        try:
            Path(saved + ".new").write_text(json.dumps({"step": step, "seconds": round(seconds, 3)}), encoding="utf-8")
            Path(saved + ".new").replace(saved)
        except OSError:
            pass

    def hold(self) -> bool:
        """Behind the last save there is nothing worth doing: waits to be ended, until the notice is withdrawn or its
        deadline is long past. False: there was nothing to wait for."""
        answered = self._answered
        if answered is None or not answered.last:
            return False
        left_s = answered.deadline - time.time() + GRACE_S
        until = time.monotonic() + min(max(left_s, 0.0), _LONGEST_HOLD_S)
        while time.monotonic() < until and self._posted() == answered:
            time.sleep(_HOLD_EVERY_S)
        return True

    def _posted(self) -> Posted | None:
        assert self._file is not None
        try:
            os.stat(self._file)  # noqa: PTH116  # asked at every step: a Path would cost more
            words = json.loads(Path(self._file).read_bytes())
            return Posted(float(words["at"]), float(words["deadline"]), bool(words.get("last", False)))
        except OSError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError):
            return _UNREADABLE
