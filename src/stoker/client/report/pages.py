"""Reports as HTML: a receipt as one page, and the card of a run in a notebook."""

from __future__ import annotations

import html
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.client.report.spelling import count, duration, grain, how_old, share, step, usd
from stoker.errors import StokerError
from stoker.model.run.receipt import Part, Receipt, Share, Stay, Taken, rounded
from stoker.model.run.run import Run, RunState

if TYPE_CHECKING:
    from stoker.client.api.handle import RunHandle

# Okabe and Ito's colours, which colour-blind people can distinguish.
_COLOURS = {
    Part.USEFUL: "#009e73",
    Part.PROVISIONING: "#56b4e9",
    Part.SETUP: "#0072b2",
    Part.DATA: "#cc79a7",
    Part.CHECKPOINT: "#f0e442",
    Part.REDONE: "#d55e00",
    Part.IDLE: "#b3b3b3",
}
_MEANS = {
    Part.USEFUL: "the script’s work, each step once",
    Part.PROVISIONING: "waiting for machines",
    Part.SETUP: "code and environment",
    Part.DATA: "downloading inputs, uploading outputs",
    Part.CHECKPOINT: "waiting for saves, restoring",
    Part.REDONE: "work repeated after an eviction",
    Part.IDLE: "machines without work",
}
_LABEL_FROM = Decimal("0.11")  # of the bar: a narrower part has no room for its name
_STYLE = Path(__file__).with_name("receipt.css")


def page(receipt: Receipt, clock: Clock, now: datetime) -> str:
    sections = [*_head(receipt, now), _bar(receipt), _parts(receipt), *_stays(receipt, clock), *_taken(receipt, clock)]
    sections.append(_foot(receipt, clock))
    title = escape(f"{receipt.run}: {usd(receipt.usd)}")
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f"<head>{meta}<title>{title}</title><style>{_STYLE.read_text(encoding='utf-8')}</style></head>"
    return f'<!doctype html>\n<html lang="en">{head}\n<body><main>\n{chr(10).join(sections)}\n</main></body></html>\n'


def _head(receipt: Receipt, now: datetime) -> Iterator[str]:
    yield f"<h1>{escape(receipt.run)} <small>{escape(receipt.state)}</small></h1>"
    so_far = "" if receipt.final else " so far"
    time = f"{duration(float(receipt.seconds))} of machines{so_far}"
    yield f'<p class="sum">{usd(receipt.usd)} <small>{time}</small></p>'
    told = []
    if receipt.undisturbed_usd:
        told.append(compared(receipt.usd, receipt.undisturbed_usd))
        told.append(f"prices {how_old(receipt.priced_at, now)}")
    if receipt.budget is not None:
        told.append(f"{usd(receipt.budget - receipt.usd)} of the budget of {usd(receipt.budget)} left")
    yield f'<p class="told">{escape(" · ".join(told))}</p>'


def _bar(receipt: Receipt) -> str:
    """By dollars; by time if there are none."""
    pieces = []
    for part, width in weights(receipt).items():
        if width <= 0:
            continue
        told = f"{part}: {both(receipt.parts[part])} ({share(width, Decimal(1))})"
        inside = escape(f"{part} {share(width, Decimal(1))}") if width >= _LABEL_FROM else ""
        kind = f"{part}{'' if inside else ' thin'}"
        ink = "#fff" if part is Part.SETUP else "#111"
        style = f"flex:{float(width):.5f} 0 0;background-color:{_COLOURS[part]};color:{ink}"
        pieces.append(f'<span class="{kind}" style="{style}" title="{escape(told)}">{inside}</span>')
    label = ", ".join(f"{part} {share(width, Decimal(1))}" for part, width in weights(receipt).items())
    return f'<div class="bar" role="img" aria-label="{escape(label)}">{"".join(pieces)}</div>'


def _parts(receipt: Receipt) -> str:
    shown, whole = figures(receipt)
    rows = [
        _row(
            f'<i class="{one.part}" style="background-color:{_COLOURS[one.part]}"></i>{one.part}',
            _MEANS[one.part],
            one.time,
            one.percent,
            one.dollars,
        )
        for one in shown
    ]
    last = _row("whole", "", whole.time, whole.percent, whole.dollars).replace("<tr>", '<tr class="whole">')
    return f'<table class="parts">{"".join(rows)}{last}</table>'


def _stays(receipt: Receipt, clock: Clock) -> Iterator[str]:
    if not receipt.stays:
        return
    head = _row("#", "machine", "from", "time", "cost", tag="th")
    rows = [
        _row(str(one.attempt), machine(one), clock(one.since), duration(float(one.whole.seconds)), usd(one.whole.usd))
        for one in receipt.stays
    ]
    yield f"<h2>{count(len(receipt.stays), 'machine')}</h2><table>{head}{''.join(rows)}</table>"


def _taken(receipt: Receipt, clock: Clock) -> Iterator[str]:
    if receipt.taken:
        items = "".join(f"<li>{escape(taken_words(one, clock))}</li>" for one in receipt.taken)
        yield f"<h2>Evictions</h2><ul>{items}</ul>"


def _foot(receipt: Receipt, clock: Clock) -> str:
    notes = "".join(f"<br>{escape(note)}" for note in receipt.notes)
    sums = "every part is metered by the second, and the parts add up to the total"
    return f"<footer>{escape(left_words(receipt))}<br>as of {escape(clock(receipt.as_of))}; {sums}{notes}</footer>"


def _row(name: str, what: str, *figures: str, tag: str = "td") -> str:
    cells = "".join(f'<{tag} class="n">{escape(figure)}</{tag}>' for figure in figures)
    return f'<tr><{tag}>{name}</{tag}><{tag} class="what">{escape(what)}</{tag}>{cells}</tr>'


# The content of a receipt, as texts and figures that add up: for the terminal and for the page. Pure.

Clock = Callable[[datetime], str]  # formats a time


@dataclass(frozen=True, slots=True)
class Figures:
    """One part as it is shown."""

    part: Part
    time: str
    percent: str
    dollars: str


def figures(receipt: Receipt) -> tuple[list[Figures], Figures]:
    """Of each part, and of the total. Rounded together: the parts shown add up to the total shown."""
    quantum = grain(receipt.usd)
    seconds = rounded((receipt.parts[part].seconds for part in Part), Decimal(1))
    dollars = rounded((receipt.parts[part].usd for part in Part), quantum)
    percents = rounded(weights(receipt).values(), Decimal("0.01"))
    rows = zip(Part, seconds, percents, dollars, strict=True)
    shown = [Figures(part, clockwise(int(s)), f"{100 * p:.0f} %", usd(d, quantum)) for part, s, p, d in rows]
    whole = Figures(Part.USEFUL, clockwise(int(sum(seconds))), "100 %", usd(sum(dollars, Decimal(0)), quantum))
    return shown, whole


def weights(receipt: Receipt) -> dict[Part, Decimal]:
    """Each part's share of the total: of the dollars, or of the time if there are none."""
    amounts = {part: receipt.parts[part].usd if receipt.usd else receipt.parts[part].seconds for part in Part}
    whole = sum(amounts.values(), Decimal(0)) or Decimal(1)
    return {part: amount / whole for part, amount in amounts.items()}


def compared(spent: Decimal, undisturbed: Decimal) -> str:
    saved = undisturbed - spent
    less = f" (you saved {share(saved, undisturbed)})" if saved > 0 else ""
    return f"the same work on demand without evictions: {usd(undisturbed)}{less}"


def taken_words(one: Taken, clock: Clock) -> str:
    """`attempt 1 evicted 14:02:25 with 30 s notice: 10 steps, 20 s and $0.0200 of work repeated`"""
    warned = "without notice" if one.notice_s is None else f"with {duration(one.notice_s)} notice"
    warned = "while no server was running" if one.alone else warned
    told = f"attempt {one.attempt} {one.how} {clock(one.at)} {warned if one.how != 'moved' else ''}".rstrip()
    if not one.redone.seconds and not one.steps_lost:
        safe = f"step {step(one.safe_step)} was saved" if one.safe_step is not None else "no work was lost"
        return f"{told}: {safe}"
    steps = f"{count(int(one.steps_lost), 'step')}, " if one.steps_lost else ""
    again = f", because the script started over at {one.again}" if one.again else ""
    return f"{told}: {steps}{both(one.redone)} of work repeated{again}"


def left_words(receipt: Receipt) -> str:
    """What exists of it now, as its provider reports it."""
    if receipt.left is None:
        return "could not check what is still running"
    if receipt.left:
        return f"still running: {count(len(receipt.left), 'resource')}, {usd(receipt.usd_per_hour)}/h"
    return "still running: nothing, $0.00/h"


def machine(one: Stay) -> str:
    kind = "spot " if one.spot else ""
    return f"{kind}{one.size or 'this computer'}{f' in {one.place}' if one.place else ''}"


def clockwise(seconds: int) -> str:
    """Whole seconds that are easy to add up: `1:02:03`, `0:45`."""
    minutes, rest = divmod(seconds, 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def both(of: Share) -> str:
    return f"{duration(float(of.seconds))} and {usd(of.usd)}" if of.usd else duration(float(of.seconds))


_LINES = 10
_TICK_S = 0.5
_STATE_COLOURS = {RunState.SUCCEEDED: "#2e7d32", RunState.FAILED: "#c62828", RunState.CANCELLED: "#757575"}


def inside() -> bool:
    """Whether this is a notebook: a kernel runs us. IPython is not imported for that, because a kernel already has
    it."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return hasattr(shell, "kernel")


def card(facts: Run, now: datetime, lines: Sequence[str] = ()) -> str:
    """The run as HTML: its state, its duration, its last metrics, and its last lines of output."""
    colour = _STATE_COLOURS.get(facts.state, "#1565c0")
    rows = [
        f'<b>{html.escape(facts.name)}</b> <b style="color:{colour}">{facts.state}</b> {_elapsed(facts, now)}',
        html.escape(facts.reason),
        ", ".join(f"{html.escape(name)} = {summary.last:.4g}" for name, summary in facts.metrics.items()),
        f"outputs in {html.escape(facts.landed)}" if facts.landed else "",
    ]
    printed = html.escape("\n".join(lines))
    log = f'<pre style="margin:4px 0 0;font-size:smaller">{printed}</pre>' if lines else ""
    return f"<div>{'<br>'.join(row for row in rows if row)}{log}</div>"


class Live(AbstractContextManager[None]):
    """A card that is redrawn twice a second inside a `with` block, and once at its end.

    `display` adds HTML to the notebook and returns how to replace it.
    """

    def __init__(
        self, run: RunHandle, display: Callable[[str], Callable[[str], None]] | None = None, tick_s: float = _TICK_S
    ) -> None:
        self._run = run
        self._tick_s = tick_s
        self._display = display or _display
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._rest = b""  # of a line that is not complete yet
        self._over = threading.Event()

    def __enter__(self) -> None:
        self._replace = self._display(self._card())
        self._drawing = threading.Thread(target=self._draw, daemon=True)
        self._drawing.start()
        threading.Thread(target=self._read, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._drawing.join()
        self._replace(self._card())

    def _draw(self) -> None:
        while not self._over.wait(self._tick_s):
            self._replace(self._card())

    def _read(self) -> None:
        with suppress(StokerError):  # the card then has no lines
            for piece in self._run.logs(follow=True):
                self._add(piece)
                if self._over.is_set():
                    return

    def _add(self, piece: bytes) -> None:
        *whole, self._rest = (self._rest + piece).split(b"\n")
        # A progress bar overwrites its line: only its last state counts.
        self._lines.extend(line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace") for line in whole)

    def _card(self) -> str:
        return card(self._run.facts, datetime.now(UTC), list(self._lines))


def _display(first: str) -> Callable[[str], None]:
    from IPython.display import HTML, display  # a notebook has it

    shown: Any = display(HTML(first), display_id=True)  # type: ignore[no-untyped-call]  # IPython's own lack
    return lambda text: shown.update(HTML(text))  # type: ignore[no-untyped-call]  # likewise


def _elapsed(facts: Run, now: datetime) -> str:
    seconds = max(0, int(((facts.ended_at or now) - (facts.started_at or facts.submitted_at)).total_seconds()))
    hours, rest = divmod(seconds, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
