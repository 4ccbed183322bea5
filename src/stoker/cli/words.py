"""Values as people read and write them: times, sizes, counts and numbers. Pure: the time of day comes in."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from stoker.client.spelling import count as count  # those that programs spell out, too
from stoker.client.spelling import duration as duration
from stoker.errors import BadInput
from stoker.model.fields import seconds_of

_UNITS = (("d", 86400.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0))


def age(at: datetime, now: datetime) -> str:
    """One unit: `3s`, `5m`, `2h`, `8d`."""
    seconds = max(0.0, (now - at).total_seconds())
    name, size = next((unit for unit in _UNITS if seconds >= unit[1]), _UNITS[-1])
    return f"{int(seconds / size)}{name}"


def clock(at: datetime, now: datetime) -> str:
    """The local time, with the date where it is another day's."""
    local = at.astimezone()
    return local.strftime("%H:%M:%S" if local.date() == now.astimezone().date() else "%Y-%m-%d %H:%M:%S")


def size(size_bytes: int) -> str:
    """Decimal units, as disks are sold: `0 B`, `812 B`, `1.2 MB`, `34 GB`."""
    value, unit = float(size_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}" if unit != "B" and value < 9.95 else f"{value:.0f} {unit}"


def number(value: float) -> str:
    """Four significant digits: enough to compare by eye."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e7:
        return f"{value:.0f}"
    return f"{value:.4g}"


def signal_name(exit_code: int) -> str:
    """`SIGKILL` for 137, an empty string where the code is not that of a killed process."""
    import signal  # an enum of some size, needed only here

    try:
        return signal.Signals(exit_code - 128).name if 128 < exit_code < 193 else ""
    except ValueError:
        return ""


def moment(text: str, now: datetime) -> datetime:
    """A time as `--since` takes it: `10m` ago, or an ISO time, which is local where it names no zone."""
    ago_s = seconds_of(text)
    try:
        if ago_s is not None:
            return now - timedelta(seconds=ago_s)
        return datetime.fromisoformat(text).astimezone(now.tzinfo)
    except (ValueError, OverflowError):  # the second for more days than a calendar has
        expected = "a time ago such as `10m` or `1h30m`, or a time such as `2025-01-31 14:00`"
        raise BadInput(f"--since: found `{text}`, expected {expected}") from None
