"""What a receipt says, in words and figures that add up: for the terminal and for the page. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from stoker.client.spelling import count, duration, grain, share, step, usd
from stoker.model.receipt import Part, Receipt, Share, Stay, Taken, rounded

Clock = Callable[[datetime], str]  # how a moment is shown


@dataclass(frozen=True, slots=True)
class Figures:
    """One part as it is shown."""

    part: Part
    time: str
    percent: str
    dollars: str


def figures(receipt: Receipt) -> tuple[list[Figures], Figures]:
    """Of each part, and of the whole. Rounded together: what is shown of the parts sums to that of the whole."""
    quantum = grain(receipt.usd)
    seconds = rounded((receipt.parts[part].seconds for part in Part), Decimal(1))
    dollars = rounded((receipt.parts[part].usd for part in Part), quantum)
    percents = rounded(weights(receipt).values(), Decimal("0.01"))
    rows = zip(Part, seconds, percents, dollars, strict=True)
    shown = [Figures(part, clockwise(int(s)), f"{100 * p:.0f} %", usd(d, quantum)) for part, s, p, d in rows]
    whole = Figures(Part.USEFUL, clockwise(int(sum(seconds))), "100 %", usd(sum(dollars, Decimal(0)), quantum))
    return shown, whole


def weights(receipt: Receipt) -> dict[Part, Decimal]:
    """What part of the whole each is: of the dollars, or, where there are none, of the time."""
    amounts = {part: receipt.parts[part].usd if receipt.usd else receipt.parts[part].seconds for part in Part}
    whole = sum(amounts.values(), Decimal(0)) or Decimal(1)
    return {part: amount / whole for part, amount in amounts.items()}


def compared(spent: Decimal, undisturbed: Decimal) -> str:
    saved = undisturbed - spent
    less = f": {share(saved, undisturbed)} saved" if saved > 0 else ""
    return f"{usd(undisturbed)} on demand, undisturbed{less}"


def taken_words(one: Taken, clock: Clock) -> str:
    """`attempt 1 evicted 14:02:25 with 30 s notice: 10 steps, 20 s and $0.0200 of work done twice`"""
    warned = "without notice" if one.notice_s is None else f"with {duration(one.notice_s)} notice"
    told = f"attempt {one.attempt} {one.how} {clock(one.at)} {warned if one.how != 'moved' else ''}".rstrip()
    if not one.redone.seconds and not one.steps_lost:
        safe = f"step {step(one.safe_step)} was safe" if one.safe_step is not None else "no work was lost"
        return f"{told}: {safe}"
    steps = f"{count(int(one.steps_lost), 'step')}, " if one.steps_lost else ""
    again = f", because the script began again at {one.again}" if one.again else ""
    return f"{told}: {steps}{both(one.redone)} of work done twice{again}"


def left_words(receipt: Receipt) -> str:
    """What is there of it now, as its provider says it."""
    if receipt.left is None:
        return "what is left running could not be asked"
    if receipt.left:
        return f"left running: {count(len(receipt.left), 'resource')}, {usd(receipt.usd_per_hour)}/h"
    return "left running: nothing, $0.00/h"


def machine(one: Stay) -> str:
    kind = "spot " if one.spot else ""
    return f"{kind}{one.size or 'this computer'}{f' in {one.place}' if one.place else ''}"


def clockwise(seconds: int) -> str:
    """Whole seconds that can be added up by eye: `1:02:03`, `0:45`."""
    minutes, rest = divmod(seconds, 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def both(of: Share) -> str:
    return f"{duration(float(of.seconds))} and {usd(of.usd)}" if of.usd else duration(float(of.seconds))
