"""What a training script tells about itself while it runs, and what it may want to know."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from typing import Any

from stoker.checkpoint import surroundings


def log(step: float | None = None, **metrics: Any) -> None:
    """Reports metrics: numbers, or anything `float()` takes, such as a scalar of NumPy or PyTorch.

    In a run they appear in its metrics; outside of one they are printed, one JSON object per line.
    """
    values = {name: _number(name, value) for name, value in metrics.items()}
    at_step = None if step is None else _number("step", step)
    file = surroundings.metrics_file()
    if not file:
        shown = {"step": at_step, **values} if step is not None else values
        sys.stdout.write(json.dumps(shown) + "\n")
        sys.stdout.flush()
        return
    line = json.dumps({"at": time.time(), "step": at_step, "rank": surroundings.rank(), "values": values}) + "\n"
    fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, line.encode())  # one write, so that ranks do not mix their lines
    finally:
        os.close(fd)


def should_stop() -> bool:
    """True once the run's `stop_when` has been reached: a good moment to save and return."""
    file = surroundings.stop_file()
    return file is not None and os.path.exists(file)  # noqa: PTH110  # asked at every step: a Path would cost more


def _number(name: str, value: Any) -> float | int | None:
    """None stands for what JSON cannot hold: not a number, or infinite."""
    if isinstance(value, (str, bytes)):  # a script's Python may be older than ours
        raise TypeError(f"the metric `{name}` is {value!r}; expected a number")
    try:
        number = value if isinstance(value, int) and not isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"the metric `{name}` is of type {type(value).__name__}; expected a number ({error})") from None
    return number if isinstance(number, int) or math.isfinite(number) else None


# How much of the training is done, told now and then to whoever watches a deadline.

EVERY_S = 5.0


class ProgressLog:
    """Silent outside of a run, and on ranks that report nothing."""

    def __init__(self, *, reports: bool) -> None:
        self._reports = reports
        self._told_at = time.monotonic()

    def tell(self, step: int, done: float, total: float) -> None:
        """`done` of `total` steps or epochs. Cheap: called at every step."""
        if self._reports and 0 < total < math.inf and time.monotonic() - self._told_at >= EVERY_S:
            self._told_at = time.monotonic()
            log(step=step, progress=min(done / total, 1.0))
