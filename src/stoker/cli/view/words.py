"""Values as people read and write them: times, sizes, numbers, states and costs so far. Pure: the time is an
argument.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from decimal import Decimal

from stoker.client.report.spelling import CENT, FINE, usd
from stoker.client.report.spelling import count as count  # shared with the API's texts
from stoker.client.report.spelling import duration as duration
from stoker.errors import BadInput
from stoker.model.job.values import seconds_of
from stoker.model.run.run import AttemptState, Run, RunState

_UNITS = (("d", 86400.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0))


def age(at: datetime, now: datetime) -> str:
    """One unit: `3s`, `5m`, `2h`, `8d`."""
    seconds = max(0.0, (now - at).total_seconds())
    name, size = next((unit for unit in _UNITS if seconds >= unit[1]), _UNITS[-1])
    return f"{int(seconds / size)}{name}"


def clock(at: datetime, now: datetime) -> str:
    """The local time, with the date if it is not today."""
    local = at.astimezone()
    return local.strftime("%H:%M:%S" if local.date() == now.astimezone().date() else "%Y-%m-%d %H:%M:%S")


def size(size_bytes: int) -> str:
    """Decimal units: `0 B`, `812 B`, `1.2 MB`, `34 GB`."""
    value, unit = float(size_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}" if unit != "B" and value < 9.95 else f"{value:.0f} {unit}"


def number(value: float) -> str:
    """Four significant digits: enough to compare."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e7:
        return f"{value:.0f}"
    return f"{value:.4g}"


def signal_name(exit_code: int) -> str:
    """`SIGKILL` for 137; empty if the code is not that of a killed process."""
    import signal  # slow to import, needed only here

    try:
        return signal.Signals(exit_code - 128).name if 128 < exit_code < 193 else ""
    except ValueError:
        return ""


def moment(text: str, now: datetime) -> datetime:
    """A time as `--since` accepts it: `10m` ago, or an ISO time, local if it has no time zone."""
    ago_s = seconds_of(text)
    try:
        if ago_s is not None:
            return now - timedelta(seconds=ago_s)
        return datetime.fromisoformat(text).astimezone(now.tzinfo)
    except (ValueError, OverflowError):  # the second for a date out of range
        expected = "a time ago such as `10m` or `1h30m`, or a time such as `2025-01-31 14:00`"
        raise BadInput(f"--since: found `{text}`, expected {expected}") from None


STYLES: dict[RunState, str] = {
    RunState.QUEUED: "faint",
    RunState.STARTING: "busy",
    RunState.RUNNING: "busy",
    RunState.PAUSED: "warn",
    RunState.SUCCEEDED: "good",
    RunState.FAILED: "error",
    RunState.CANCELLED: "warn",
}
ENDED: dict[RunState, str] = {
    RunState.PAUSED: "is paused",
    RunState.SUCCEEDED: "has succeeded",
    RunState.FAILED: "has failed",
    RunState.CANCELLED: "was cancelled",
}
ATTEMPT_STYLES: dict[AttemptState, str] = {
    AttemptState.ASKED: "faint",
    AttemptState.RUNNING: "busy",
    AttemptState.ENDED: "",
    AttemptState.LOST: "warn",
    AttemptState.EVICTED: "warn",
    AttemptState.MOVED: "",
}


def meter_line(run: Run, now: datetime) -> str:
    """`$0.0123 spent, $0.3600/h, $4.99 of $5.00 left`; empty for a run whose nodes cost nothing."""
    if not run.spells or run.state.ended:
        return ""
    spent = spent_by(run, now)
    per_hour = sum((spell.usd_per_hour for spell in run.spells if spell.until is None), Decimal(0))
    # No finer than that: digits that change too fast distract.
    parts = [f"{usd(spent, CENT if spent >= 1 else FINE)} spent", f"{usd(per_hour)}/h"]
    if run.budget is not None:
        parts.append(f"{usd(max(run.budget - spent, Decimal(0)))} of {usd(run.budget)} left")
    return ", ".join(parts)


def spent_by(run: Run, now: datetime) -> Decimal:
    """Accurate enough to display; the server's meter counts, which rounds each interval up to a billionth."""
    spent = Decimal(0)
    for spell in run.spells:
        seconds = max(((spell.until or now) - spell.since).total_seconds(), 0.0)
        spent += Decimal(f"{seconds:.6f}") * spell.usd_per_hour / 3600
    return spent
