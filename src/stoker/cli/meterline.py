"""The line that says what a run has cost so far, while somebody watches it."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from stoker.client.spelling import CENT, FINE, usd
from stoker.model.run import Run


def meter_line(run: Run, now: datetime) -> str:
    """`$0.0123 spent, $0.3600/h, $4.99 of $5.00 left`; empty for a run whose nodes cost nothing."""
    if not run.spells or run.state.ended:
        return ""
    spent = spent_by(run, now)
    per_hour = sum((spell.usd_per_hour for spell in run.spells if spell.until is None), Decimal(0))
    # No finer than that: a line whose last digits race is hard to look away from.
    parts = [f"{usd(spent, CENT if spent >= 1 else FINE)} spent", f"{usd(per_hour)}/h"]
    if run.budget is not None:
        parts.append(f"{usd(max(run.budget - spent, Decimal(0)))} of {usd(run.budget)} left")
    return ", ".join(parts)


def spent_by(run: Run, now: datetime) -> Decimal:
    """Good enough to look at: what counts is the server's meter, which rounds each spell up to a billionth."""
    spent = Decimal(0)
    for spell in run.spells:
        seconds = max(((spell.until or now) - spell.since).total_seconds(), 0.0)
        spent += Decimal(f"{seconds:.6f}") * spell.usd_per_hour / 3600
    return spent
