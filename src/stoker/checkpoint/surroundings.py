"""What a training process finds around it: where checkpoints go, who warns it, and which rank it is; and what it
reports."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from stoker.errors import BadInput


class Surroundings(NamedTuple):
    """`notice` and `finished` are None outside of Stoker; `evictions_per_hour` is None if unknown."""

    folder: str
    notice: str | None = None
    finished: str | None = None
    reports_metrics: bool = False
    evictions_per_hour: float | None = None
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 0  # 0 if unknown
    full_world: int | None = None  # how many ranks there are if all nodes are available; None: always as many as now


def look() -> Surroundings:
    env = os.environ
    return Surroundings(
        folder=env.get("STOKER_CHECKPOINTS") or "checkpoints",
        notice=env.get("STOKER_NOTICE") or None,
        finished=env.get("STOKER_FINISHED") or None,
        reports_metrics=metrics_file() is not None,
        evictions_per_hour=float(rate) if (rate := env.get("STOKER_EVICTIONS_PER_HOUR")) else None,
        rank=int(env.get("RANK") or 0),
        world=int(env.get("WORLD_SIZE") or 1),
        local_rank=int(env.get("LOCAL_RANK") or 0),
        local_world=int(env.get("LOCAL_WORLD_SIZE") or 0),
        full_world=int(env.get("STOKER_FULL_WORLD_SIZE") or 0) or None,
    )


def metrics_file() -> str | None:
    """Where metrics are reported; None outside of a run."""
    return os.environ.get("STOKER_METRICS") or None


def stop_file() -> str | None:
    """A file that appears once the run may stop; None outside of a run."""
    return os.environ.get("STOKER_STOP") or None


def toll_file() -> str | None:
    """Where this rank records how long it has waited for its saves; None outside of a run."""
    prefix = os.environ.get("STOKER_TOLL")
    return f"{prefix}.{rank()}" if prefix else None


def rank() -> int:
    """The rank, from the variables of torchrun and of plain ranks, or of MPI."""
    known = (os.environ.get(name) for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"))
    return int(next((one for one in known if one), "0"))


def log(step: float | None = None, **metrics: Any) -> None:
    """Reports metrics: numbers, or anything `float()` takes, such as a scalar of NumPy or PyTorch.

    In a run they appear in its metrics; outside of one they are printed, one JSON object per line.
    """
    values = {name: _number(name, value) for name, value in metrics.items()}
    at_step = None if step is None else _number("step", step)
    file = metrics_file()
    if not file:
        shown = {"step": at_step, **values} if step is not None else values
        sys.stdout.write(json.dumps(shown) + "\n")
        sys.stdout.flush()
        return
    line = json.dumps({"at": time.time(), "step": at_step, "rank": rank(), "values": values}) + "\n"
    fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, line.encode())  # one write, so that ranks do not mix their lines
    finally:
        os.close(fd)


def should_stop() -> bool:
    """True once the run's `stop_when` has been reached: a good moment to save and return."""
    file = stop_file()
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


# How much of the training is done, written now and then for the deadline.

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


_LOOK_EVERY_S = 0.2
_HOLD_EVERY_S = 0.05
_LONGEST_HOLD_S = 60.0  # even if the clock of the machine is wrong
GRACE_S = 15.0  # a machine may be taken a little later than was said


class Posted(NamedTuple):
    """`last`: there is time for one more save, and any work after it would be lost."""

    at: float
    deadline: float = 0.0
    last: bool = False


_UNREADABLE = Posted(-1.0)  # an unreadable notice still counts as a notice


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
        """Leaves the answer to another rank."""
        self._answered = self._posted()

    def answer(self, step: int, seconds: float) -> None:
        """Reports that everything up to `step` is safe, and how long that took. Never raises: training continues."""
        self.leave()
        saved = f"{self._file}.saved"
        try:
            Path(saved + ".new").write_text(json.dumps({"step": step, "seconds": round(seconds, 3)}), encoding="utf-8")
            Path(saved + ".new").replace(saved)
        except OSError:
            pass

    def hold(self) -> bool:
        """Work after the last save would be lost: waits to be stopped, until the notice is withdrawn or its
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


# Supported from the first version, and before the second.
MADE_FOR = {
    "torch": ((2, 0), (2, 15)),
    "keras": ((3, 0), (3, 17)),
    "lightning": ((2, 0), (2, 8)),
    "pytorch_lightning": ((2, 0), (2, 8)),
    "numpy": ((1, 22), (3, 0)),
    "joblib": ((1, 0), (2, 0)),
    "safetensors": ((0, 3), (1, 0)),
}
# The callbacks replace private methods, so their ranges are narrower. Each begins where what they replace took its
# present form: batches of Keras in threes, `_combined_loader` of Lightning, `_initial_global_step` of Transformers.
CALLBACKS = {
    "keras": ((3, 11), (3, 16)),
    "lightning": ((2, 2), (2, 7)),
    "transformers": ((5, 19), (5, 24)),
}


def is_known(name: str) -> str:
    """Empty if the installed version is supported; otherwise why it is not."""
    found = _outside(name, MADE_FOR)
    if not found:
        return ""
    versions = f"from {_text(MADE_FOR[name][0])} on, and below {_text(MADE_FOR[name][1])}"
    return f"{name} {found} is not a supported version ({versions}): its saves are not changed"


def require(name: str) -> None:
    """Raises BadInput where the callback of this framework does not know the version that is installed."""
    if found := _outside(name, CALLBACKS):
        first, before = map(_text, CALLBACKS[name])
        raise BadInput(
            f"Stoker's callback supports {name} from {first} to below {before}, and {name} {found} is installed",
            hint=f"pip install '{name}>={first},<{before}', or use `stoker.checkpoint.Checkpoint` in your own loop",
        )


def _outside(name: str, ranges: Mapping[str, tuple[tuple[int, int], tuple[int, int]]]) -> str:
    """The version that is installed, where it is outside of its range."""
    try:
        found = version(name)
    except PackageNotFoundError:
        return ""
    first, before = ranges[name]
    return "" if first <= _numbers(found) < before else found


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in re.findall(r"\d+", text)[:2])


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
