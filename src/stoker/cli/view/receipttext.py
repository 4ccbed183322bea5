"""A receipt in the terminal: a bar, its categories, and remarks. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal

from stoker.cli.view import words
from stoker.cli.view.words import Column, Paint, table
from stoker.client.report.pages import Clock, compared, figures, left_words, machine, taken_words, weights
from stoker.client.report.spelling import how_old, usd
from stoker.model.run.receipt import Part, Receipt, rounded

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
