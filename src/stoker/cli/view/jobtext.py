"""A job as text, and its expected cost: the offers that fit, and the cheapest choice. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from stoker.cli.view import words
from stoker.cli.view.safetext import one_line
from stoker.cli.view.tables import Column, Paint, TableCell, table
from stoker.cli.view.words import duration
from stoker.client.report.spelling import CENT, FINE, how_old, money, usd
from stoker.model.job.job import Job
from stoker.model.run.forecast import Expectation, Forecast

_OLD = timedelta(days=30)  # of prices
_MOST = 8  # offers that are shown


def offer_lines(forecast: Forecast, now: datetime, width: int, paint: Paint) -> list[str]:
    """Empty if nothing costs money."""
    if not any(one.offer.usd_per_hour for one in forecast.offers):
        return []
    shown = _shown(forecast.offers)
    lines = ["", paint("offers", "strong"), *(f"  {line}" for line in _table(shown, forecast.choice, width - 2, paint))]
    if left := len(forecast.offers) - len(shown):
        lines.append(f"  … and {left:,} more")
    oldest = min((one.offer.priced_at for one in shown if one.offer.priced_at), default=None)
    lines.append(f"  prices {how_old(oldest, now)}, for a whole node: machine and disk")
    if oldest and now - oldest > _OLD and (command := next((one.offer.renewed_by for one in shown), "")):
        lines.append(f"  they come with Stoker; to get today's: {command}")
    lines += [f"  {line}" for line in _from_past(forecast)]
    return [*lines, "", f"{paint('cheapest choice', 'strong')}  {_choice(forecast)}"]


def _shown(offers: Sequence[Expectation]) -> list[Expectation]:
    """The best ones, and at least one on-demand and one spot offer of every size, for comparison."""
    kinds: dict[tuple[str, bool], Expectation] = {}
    for one in offers:
        kinds.setdefault((one.offer.size, one.offer.spot), one)
    wanted = {id(one) for one in [*kinds.values()][:_MOST]}
    wanted |= {id(one) for one in [one for one in offers if id(one) not in wanted][: _MOST - len(wanted)]}
    return [one for one in offers if id(one) in wanted]


def _table(shown: Sequence[Expectation], choice: Expectation | None, width: int, paint: Paint) -> list[str]:
    columns = (
        Column(""),
        Column("SIZE"),
        Column("WHERE"),
        Column("KIND"),
        Column("PER HOUR", right=True),
        Column("", right=True),  # in another currency
        Column("LESS", right=True),
        Column("EVICTIONS", right=True),
        Column("TIME", right=True),
        Column("COST", right=True),
        Column("", least=16),
    )
    return table(columns, [_row(one, one == choice) for one in shown], width, paint)


def _row(one: Expectation, chosen: bool) -> list[TableCell]:
    offer = one.offer
    cells = [
        "→" if chosen else "",
        offer.size,
        offer.place,
        "spot" if offer.spot else "on demand",
        usd(offer.usd_per_hour, FINE if offer.usd_per_hour < 10 else CENT),
        money(offer.quoted, offer.currency) if offer.quoted is not None else "",
        f"{100 * one.discount:.0f} %" if one.discount is not None and one.discount > 0 else "",
        _evictions(one.evictions),
        words.duration(one.seconds) if one.seconds is not None else "",
        usd(one.usd) if one.usd is not None else "",
        one.problem or _lasts(one),
    ]
    return [TableCell(text, "good" if chosen else "faint" if one.problem else "") for text in cells]


def _evictions(expected: float | None) -> str:
    if not expected:
        return ""
    return f"{expected:.1f}" if expected >= 0.05 else "<0.1"


def _lasts(one: Expectation) -> str:
    """If the cost of the run is unknown: how long the budget lasts."""
    if one.lasts_s is None or one.seconds is not None:
        return ""
    return f"the budget lasts {words.duration(one.lasts_s)}"


def _from_past(forecast: Forecast) -> list[str]:
    past = forecast.past
    if past.said_h is not None:
        return [f"time and cost are for {past.said_h:g} hours of work; a faster machine needs less time"]
    if not past.runs:
        return []
    told = [f"time and cost are estimated from {words.count(past.runs, 'earlier run')} of this experiment"]
    if past.evictions_per_hour is not None:
        hours = words.duration(past.spot_s)
        told.append(f"which had {words.count(past.evictions, 'eviction')} in {hours} on spot machines")
    return [", ".join(told)]


def _choice(forecast: Forecast) -> str:
    choice = forecast.choice
    if choice is None:
        return f"none: {forecast.why}"
    offer = choice.offer
    what = f"{'spot ' if offer.spot else ''}{offer.size} in {offer.place} at {usd(offer.usd_per_hour)}/h"
    if choice.usd is None or choice.seconds is None:
        return f"{what}: {forecast.why}"
    return f"{what}, {words.duration(choice.seconds)}, {usd(choice.usd)}: {forecast.why}"


_WORDS = {
    "time_limit": duration,
    "lease": duration,
    "deadline": duration,
    "keep_failed": duration,
    "budget": "${}".format,
}
_LONGEST = 60  # characters of a value
_SHOWN_ELSEWHERE = ("name", "run", "source", "environment", "data", "outputs", "on", "secrets", "env_file")


def settings(job: Job) -> str:
    """The fields of the job that differ from the defaults and have no line of their own."""
    plain = job.plain()
    usual = Job(name=job.name, run="true").plain()
    changed = {key: value for key, value in plain.items() if value != usual[key] and key not in _SHOWN_ELSEWHERE}
    return "\n".join(f"{key}: {_WORDS.get(key, _short)(value)}" for key, value in changed.items())


def variables(given: Mapping[str, str]) -> str:
    """`OMP_NUM_THREADS=1, PYTHONHASHSEED=0`"""
    shown = {name: value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…" for name, value in given.items()}
    return ", ".join(f"{name}={one_line(value)}" for name, value in shown.items())


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={_short(item)}" for key, item in value.items() if item not in (None, "none")) or "yes"
    return ", ".join(map(_short, value)) if isinstance(value, list) else str(value)
