"""The warning before an eviction, as a file that appears, and the answer to it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

_LOOK_EVERY_S = 0.2


class NoticeBoard:
    """Looks for the notice at most five times a second, so that asking at every step costs next to nothing."""

    def __init__(self, file: str | None) -> None:
        self._file = file
        self._next_look = 0.0
        self._answered: float | None = None

    def new(self, *, look_now: bool = False) -> bool:
        """True if there is a notice that has not been answered. One that was withdrawn and came again is new."""
        if self._file is None:
            return False
        now = time.monotonic()
        if now < self._next_look and not look_now:
            return False
        self._next_look = now + _LOOK_EVERY_S
        return self._at() not in (None, self._answered)

    def leave(self) -> None:
        """Somebody else answers it."""
        self._answered = self._at()

    def answer(self, step: int, seconds: float) -> None:
        """Says that everything up to `step` is safe, and took so long. Never raises: training goes on."""
        self.leave()
        saved = f"{self._file}.saved"
        try:
            Path(saved + ".new").write_text(json.dumps({"step": step, "seconds": round(seconds, 3)}), encoding="utf-8")
            Path(saved + ".new").replace(saved)
        except OSError:
            pass

    def _at(self) -> float | None:
        assert self._file is not None
        try:
            os.stat(self._file)  # noqa: PTH116  # asked at every step: a Path would cost more
            return float(json.loads(Path(self._file).read_bytes())["at"])
        except OSError:
            return None
        except (ValueError, KeyError, TypeError):
            return -1.0  # a notice that cannot be read is one all the same
