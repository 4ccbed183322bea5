"""A job before it runs, with its expected cost, and a run after its end, with its receipt: lines of text, and an exit
code."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from stoker.cli.view import words
from stoker.cli.view.terminal import one_line
from stoker.cli.view.words import Column, Paint, TableCell, duration, table
from stoker.client.report.pages import Clock, compared, figures, left_words, machine, taken_words, weights
from stoker.client.report.spelling import CENT, FINE, how_old, money, usd
from stoker.errors import BudgetReached
from stoker.model.job.job import Job
from stoker.model.run.receipt import Expectation, Forecast, Part, Receipt, rounded
from stoker.model.run.run import Run, RunState

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
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(_short, value)) if isinstance(value, list) else str(value)


CANCELLED = 130
PAUSED = BudgetReached.exit_code
OWN_TROUBLE = 125  # distinct from exit codes of scripts, as with `docker run`


def exit_code(run: Run) -> int:
    """The script's own, if the script ended the run."""
    match run.state:
        case RunState.SUCCEEDED:
            return 0
        case RunState.CANCELLED:
            return CANCELLED
        case RunState.PAUSED:
            return PAUSED
        case _:
            return run.exit_code or OWN_TROUBLE


def lines(run: Run, here: Path) -> list[str]:
    """What to print when a run that was followed has ended. Paths are shown relative to `here`."""
    text = [_first(run) + _outputs(run, here), *_not_brought(run), *kept(run)]
    if run.land_problem:
        text.append(f"its outputs could not be downloaded: {one_line(run.land_problem)}")
        text.append(f"hint: retry with `stoker fetch {run.name}`")
    elif run.hint:
        text.append(f"hint: {one_line(run.hint)}")
        if run.state is RunState.FAILED and resumable(run):
            text.append(f"next: {next_command(run)}")
    else:
        text.append(f"next: {next_command(run)}")
    return text


def kept(run: Run) -> list[str]:
    """For a node that is kept: how to inspect and how to release it."""
    if run.kept_until is None:
        return []
    cost = f", at ${run.attempt.offer.usd_per_hour:.2f}/h" if run.attempt and run.attempt.offer else ""
    return [
        f"its node is kept until {run.kept_until.astimezone():%H:%M}{cost}",
        f"  stoker exec {run.name} -- COMMAND    inspect it",
        f"  stoker release {run.name}            release it now",
    ]


def next_command(run: Run) -> str:
    if run.state is not RunState.SUCCEEDED and resumable(run):
        return f"stoker resume {run.name}"
    if run.state is RunState.CANCELLED:
        return f"stoker rerun {run.name}"
    return f"stoker show {run.name} --plot" if run.metrics else f"stoker show {run.name}"


def resumable(run: Run) -> bool:
    """There is a checkpoint to resume from."""
    return run.state.ended and (run.start is not None or any(one.saved for one in run.attempts))


def took_s(run: Run) -> float | None:
    """From the script's start to its end."""
    if run.started_at is None or run.ended_at is None:
        return None
    return (run.ended_at - run.started_at).total_seconds()


def seen_from(path: str, here: Path) -> str:
    """The shortest form of a path."""
    try:
        short = os.path.relpath(path, here)
    except ValueError:  # another drive
        return path
    return path if short.startswith("..") else short


def _first(run: Run) -> str:
    seconds = took_s(run)
    time = words.duration(seconds) if seconds is not None else ""
    match run.state:
        case RunState.SUCCEEDED:
            reason = f", {one_line(run.reason)}" if run.reason else ""
            return f"{run.name} succeeded{f' in {time}' if time else ''}{reason}"
        case RunState.CANCELLED:
            return f"{run.name} was cancelled{f' after {time}' if time else ''}"
        case RunState.PAUSED:
            return f"{run.name} is paused: {one_line(run.reason)}; its work is saved, and it resumes where it stopped"
        case _:
            reason = f": {one_line(run.reason)}" if run.reason else ""
            return f"{run.name} failed{f' after {time}' if time else ''}{reason}{_code(run)}"


def _code(run: Run) -> str:
    """The exit code, if the reason does not contain it."""
    code = exit_code(run)
    return "" if re.search(rf"\b{code}\b", run.reason) else f" (exit code {code})"


def _outputs(run: Run, here: Path) -> str:
    amount = f"{words.count(run.output_files, 'file')}, {words.size_text(run.output_bytes)}" if run.output_files else ""
    checkpoint = _checkpoint(run) if run.brings_checkpoint else ""
    what = f"{'outputs' if run.output_files else 'its checkpoint'}"
    inside = ", ".join(filter(None, [amount, checkpoint if run.output_files else _amount(run)]))
    if not (amount or checkpoint):
        return ""
    return f"; {what} in {seen_from(run.landed, here)} ({inside})" if run.landed else f"; {what}: {inside}"


def _not_brought(run: Run) -> list[str]:
    """What is not where one would look for it."""
    text = []
    if run.checkpoint_files and not run.brings_checkpoint:
        text.append(
            f"its checkpoint ({_amount(run)}) is large: download it with `stoker fetch {run.name} --checkpoints`"
        )
    brought = run.output_files or run.brings_checkpoint
    if run.state is RunState.SUCCEEDED and not brought and not text:
        text.append(f"no outputs: it wrote nothing to `{one_line(run.job.outputs)}` or to its checkpoints")
    if run.clashes:
        names = ", ".join(one_line(name) for name in run.clashes)
        text.append(
            f"nodes wrote different files of the same name: {names}; those of other nodes are in node-1/ and so on"
        )
    if run.stray:
        names = ", ".join(one_line(name) for name in run.stray)
        how = (
            f"download them with `stoker fetch {run.name} --stray`" if run.stray_files else "they are too large to keep"
        )
        text.append(f"it wrote files outside its outputs: {names}; {how}")
    return text


def _checkpoint(run: Run) -> str:
    return f"and its checkpoint: {_amount(run)}"


def _amount(run: Run) -> str:
    return f"{words.count(run.checkpoint_files, 'file')}, {words.size_text(run.checkpoint_bytes)}"


_BAR = 60
# Each category has its own character, so that the bar is readable without colours.
_SIGNS = {
    Part.USEFUL: "█",
    Part.PROVISIONING: "░",
    Part.SETUP: "▒",
    Part.DATA: "▓",
    Part.CHECKPOINT: "■",
    Part.REDONE: "╳",
    Part.IDLE: "·",
}
_STYLES = {Part.USEFUL: "good", Part.REDONE: "error", Part.IDLE: "faint", Part.PROVISIONING: "busy"}


def receipt_lines(receipt: Receipt, now: datetime, width: int, paint: Paint) -> list[str]:
    clock = _clock(now)
    lines = [title(receipt)]
    if receipt.seconds:
        lines += ["", f"  {_bar(receipt, min(_BAR, width - 4), paint)}", "", *_parts(receipt, width, paint)]
        lines += ["", *_stays(receipt, clock, width, paint)]
    lines += [""] if receipt.stays or receipt.taken else []
    return lines + [f"  {line}" for line in _told(receipt, clock, now)]


def title(receipt: Receipt) -> str:
    so_far = "" if receipt.final or not receipt.usd_per_hour else f" so far, {usd(receipt.usd_per_hour)}/h now"
    time = f"{words.duration(float(receipt.seconds))} of {_machines(receipt)}"
    if receipt.free:
        return f"{receipt.run} {receipt.state}: {time}, which cost nothing"
    return f"{receipt.run} {receipt.state}: {usd(receipt.usd)} for {time}{so_far}"


def short(receipt: Receipt) -> str:
    """For the end of a run that was followed: `$0.31 for 2h 05m of machines, 91 % useful; $1.55 on demand`"""
    useful = weights(receipt)[Part.USEFUL]
    redone = receipt.parts[Part.REDONE].usd
    parts = [f"{usd(receipt.usd)} for {words.duration(float(receipt.seconds))} of {_machines(receipt)}"]
    parts.append(f"{100 * useful:.0f} % useful")
    parts += [f"{usd(redone)} for repeated work"] if redone else []
    parts += [compared(receipt.usd, receipt.undisturbed_usd)] if receipt.undisturbed_usd else []
    return ", ".join(parts)


def _machines(receipt: Receipt) -> str:
    return "machines" if len(receipt.stays) != 1 else "one machine"


def _bar(receipt: Receipt, width: int, paint: Paint) -> str:
    shares = rounded((weight * width for weight in weights(receipt).values()), Decimal(1))
    pieces = zip(Part, shares, strict=True)
    return "".join(paint(_SIGNS[part] * int(cells), _STYLES.get(part, "")) for part, cells in pieces if cells)


def _parts(receipt: Receipt, width: int, paint: Paint) -> list[str]:
    columns = (
        Column(""),
        Column("PART"),
        Column("TIME", right=True),
        Column("SHARE", right=True),
        Column("COST", right=True),
    )
    shown, whole = figures(receipt)
    rows = [[_SIGNS[one.part], str(one.part), one.time, one.percent, one.dollars] for one in shown]
    rows.append(["", "whole", whole.time, whole.percent, whole.dollars])
    rows = [[*row[:-1], ""] for row in rows] if receipt.free else rows
    return [f"  {line}" for line in table(columns, rows, width - 2, paint)]


def _stays(receipt: Receipt, clock: Clock, width: int, paint: Paint) -> list[str]:
    columns = (
        Column("#", right=True),
        Column("MACHINE", least=16),
        Column("FROM"),
        Column("TIME", right=True),
        Column("COST", right=True),
    )
    rows = [
        [
            str(one.attempt),
            machine(one),
            clock(one.since),
            words.duration(float(one.whole.seconds)),
            usd(one.whole.usd) if one.whole.usd else "",
        ]
        for one in receipt.stays
    ]
    return [f"  {line}" for line in table(columns, rows, width - 2, paint)]


def _told(receipt: Receipt, clock: Clock, now: datetime) -> Iterator[str]:
    yield from (taken_words(one, clock) for one in receipt.taken)
    if receipt.undisturbed_usd:
        yield f"{compared(receipt.usd, receipt.undisturbed_usd)}; prices {how_old(receipt.priced_at, now)}"
    if receipt.budget is not None:
        yield f"{usd(receipt.budget - receipt.usd)} of the budget of {usd(receipt.budget)} left"
    if not receipt.free:
        yield left_words(receipt)
    yield from receipt.notes


def _clock(now: datetime) -> Clock:
    return lambda at: words.clock(at, now)
