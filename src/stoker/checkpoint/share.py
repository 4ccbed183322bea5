"""How much of the training is done, told now and then to whoever watches a deadline."""

from __future__ import annotations

import math
import time

from stoker.checkpoint import log

EVERY_S = 5.0


class Share:
    """Silent outside of a run, and on ranks that report nothing."""

    def __init__(self, *, reports: bool) -> None:
        self._reports = reports
        self._told_at = time.monotonic()

    def tell(self, step: int, done: float, total: float) -> None:
        """`done` of `total` steps or epochs. Cheap: called at every step."""
        if self._reports and 0 < total < math.inf and time.monotonic() - self._told_at >= EVERY_S:
            self._told_at = time.monotonic()
            log.log(step=step, progress=min(done / total, 1.0))
