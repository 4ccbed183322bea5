"""How long a training has waited for its saves in all, said in a file that the agent reads."""

from __future__ import annotations

import os
from contextlib import suppress


class Toll:
    """`file` is None outside of a run. One write of a few bytes for each save: next to nothing."""

    def __init__(self, file: str | None) -> None:
        self._file = file
        self._fd = -1
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        """Never raises: a figure is not worth a training."""
        self.total_s += seconds
        if self._file is None:
            return
        with suppress(OSError):
            if self._fd < 0:
                self._fd = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._fd, b"%020.6f" % self.total_s, 0)
