"""Amounts as people read them: times, counts, dollars and their ages. Pure."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

CENT, FINE, FINEST = Decimal("0.01"), Decimal("0.0001"), Decimal("0.000001")


def duration(seconds: float) -> str:
    """Two units at most: `0.4 s`, `12 s`, `4m 10s`, `2h 05m`, `3d 4h`."""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02}m"
    return f"{whole // 86400}d {whole % 86400 // 3600}h"


def count(number: int, thing: str) -> str:
    """`1 file`, `2,000 files`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def usd(amount: Decimal, quantum: Decimal | None = None) -> str:
    """In cents; below a dollar and below a cent with more digits, so that something is visible."""
    return f"${amount.quantize(quantum or grain(amount)):,f}"


def grain(amount: Decimal) -> Decimal:
    """The finest unit worth showing of a sum like this."""
    size = abs(amount)
    return CENT if size >= 1 or not size else FINE if size >= CENT else FINEST


def money(amount: Decimal, currency: str) -> str:
    """Any other currency by its code: `0.0883 EUR`."""
    return usd(amount) if currency == "USD" else f"{amount.quantize(grain(amount)):,f} {currency}"


def share(part: Decimal, whole: Decimal) -> str:
    """`71 %`; nothing of nothing is nothing."""
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


def step(number: float) -> str:
    """`4,100`, or `2.5` if scripts count so."""
    return f"{number:,.0f}" if number == int(number) else f"{number:,g}"


def how_old(at: datetime | None, now: datetime) -> str:
    """Of a price: `fetched 3 minutes ago`, `of 2025-01-01, 14 months old`."""
    if at is None:
        return "fixed"
    seconds = max((now - at).total_seconds(), 0.0)
    if seconds < 90:
        return "fetched just now"
    for name, size, most in (("minute", 60, 60), ("hour", 3600, 48), ("day", 86400, 60)):
        if seconds < most * size:
            return f"fetched {count(round(seconds / size), name)} ago"
    return f"of {at.date().isoformat()}, {count(round(seconds / 86400 / 30.4), 'month')} old"
