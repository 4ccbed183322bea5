"""Values, tables and the progress of a transfer as people read them."""

from __future__ import annotations

import math
import shutil
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from stoker.cli.view import terminal
from stoker.cli.view.terminal import is_terminal, one_line, paint_data, redraw, say, show, show_json
from stoker.client.progress import TransferProgress, TransferState
from stoker.client.report.spelling import CENT, FINE, usd
from stoker.client.report.spelling import count as count  # shared with the API's texts
from stoker.client.report.spelling import duration as duration
from stoker.errors import BadInput
from stoker.model.cause import Cause
from stoker.model.job.values import seconds_of
from stoker.model.run.run import AttemptState, Run, RunSizes, RunState, Sizes

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


def size_text(size_bytes: int) -> str:
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
        raise BadInput(f"--since: found `{text}`, expected {expected}", cause=Cause.VALUE_INVALID) from None


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


GAP = "  "
Paint = Callable[[str, str], str]  # text and the name of a style to text


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    right: bool = False
    least: int = 0  # minimum width; 0: never shrinks


@dataclass(frozen=True, slots=True)
class TableCell:
    text: str
    style: str = ""


def table(columns: Sequence[Column], rows: Sequence[Sequence[TableCell | str]], width: int, paint: Paint) -> list[str]:
    """The lines. A column that is empty in every row is omitted."""
    cells = [[cell if isinstance(cell, TableCell) else TableCell(cell) for cell in row] for row in rows]
    kept = [index for index in range(len(columns)) if any(row[index].text for row in cells)]
    columns = [columns[index] for index in kept]
    cells = [[TableCell(one_line(row[index].text), row[index].style) for index in kept] for row in cells]
    wanted = [
        max(map(cells_wide, [column.title, *(row[at].text for row in cells)])) for at, column in enumerate(columns)
    ]
    widths = _shrunk(columns, wanted, width)
    head = [TableCell(column.title, "faint") for column in columns]
    return [_line(columns, row, widths, paint) for row in [head, *cells]]


def pairs(rows: Sequence[tuple[str, str]], paint: Paint, indent: str = "  ") -> list[str]:
    """Names and values in two columns; rows without a value are omitted, further lines of a value are indented."""
    kept = [(name, value) for name, value in rows if value]
    widest = max((cells_wide(name) for name, _ in kept), default=0)
    lines = []
    for name, value in kept:
        first, *more = value.splitlines()
        lines.append(f"{indent}{paint(name, 'faint')}{' ' * (widest - cells_wide(name))}{GAP}{first}")
        lines += [f"{indent}{' ' * widest}{GAP}{line}" for line in more]
    return lines


def cells_wide(text: str) -> int:
    """The columns of a terminal that the text occupies: some characters take two, some none."""
    if text.isascii():
        return len(text)
    return sum(_char_wide(char) for char in text)


def clipped(text: str, width: int) -> str:
    """The text in at most `width` columns, with an ellipsis where it was cut."""
    if cells_wide(text) <= width:
        return text
    kept, used = [], 0
    for char in text:
        used += _char_wide(char)
        if used > width - 1:
            break
        kept.append(char)
    return "".join(kept) + "…"


def _char_wide(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Cf", "Me", "Mn"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _shrunk(columns: Sequence[Column], wanted: list[int], width: int) -> list[int]:
    """Shrinks the widest column that may shrink, repeatedly, until the table fits."""
    widths = list(wanted)
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - width
    while excess > 0:
        able = [at for at, column in enumerate(columns) if column.least and widths[at] > column.least]
        if not able:
            break
        widest = max(able, key=lambda at: widths[at])
        others = [widths[at] for at in able if at != widest and widths[at] < widths[widest]]
        floor = max([columns[widest].least, *others])
        taken = min(excess, widths[widest] - floor) or 1
        widths[widest] -= taken
        excess -= taken
    return widths


def _line(columns: Sequence[Column], row: Sequence[TableCell], widths: Sequence[int], paint: Paint) -> str:
    parts = []
    for column, cell, width in zip(columns, row, widths, strict=True):
        text = clipped(cell.text, width)
        space = " " * (width - cells_wide(text))
        painted = paint(text, cell.style) if cell.style and text else text
        parts.append(space + painted if column.right else painted + space)
    return GAP.join(parts).rstrip()


_COLUMNS = (
    Column("RUN", least=12),
    Column("STATE"),
    Column("AGE", right=True),
    Column("CODE", right=True),
    Column("CHECKPOINTS", right=True),
    Column("OUTPUTS", right=True),
    Column("LOGS", right=True),
    Column("STORED", right=True),
    Column("DOWNLOADED", right=True),
    Column("STORE", least=6),
)


def tell(runs: Sequence[Run], sizes: Sizes, now: datetime) -> None:
    rows = [_row(run, sizes.runs[run.name], now) for run in runs if run.name in sizes.runs]
    for line in table(_COLUMNS, rows, terminal.width(), paint_data):
        show(line)
    say(f"{size_text(sizes.total)} stored in total; code shared by several runs is counted once")
    if sizes.home:
        parts = ", ".join(f"{name} {size_text(size)}" for name, size in sizes.home.items())
        say(f"also in Stoker's folder: {parts}")
    for name, one in sizes.runs.items():
        if one.trouble:
            say(f"{name}: size in its store unknown: {one_line(one.trouble)}")


def _row(run: Run, sizes: RunSizes, now: datetime) -> list[TableCell | str]:
    stored = [sizes.code, sizes.checkpoints, sizes.outputs, sizes.logs, sizes.stored]
    shown = ["?" if sizes.trouble else size_text(one) if one else "" for one in stored]
    here = size_text(sizes.here) if sizes.here else ""
    state = TableCell(str(run.state), STYLES[run.state])
    return [run.name, state, age(run.submitted_at, now), *shown, here, run.store]


_PATIENCE_S = 1.0
_LINE_S = 0.2
_EVENT_S = 1.0


@contextmanager
def watched(*, as_json: bool) -> Iterator[TransferProgress]:
    """A progress callback for the transfer. Silent if stderr is not a terminal, unless events were requested."""
    progress = TransferProgress()
    over = threading.Event()
    terminal = is_terminal(sys.stderr) and not as_json
    watching = threading.Thread(target=_watch, args=(progress, over, as_json), daemon=True)
    if terminal or as_json:
        watching.start()
    try:
        yield progress
    finally:
        over.set()
        if terminal or as_json:
            watching.join()


def line(at: TransferState) -> str:
    """`uploading  1,234 of 5,000 files  1.2 of 3.4 GB  35%  210 MB/s  12 s left`"""
    if not at.all_bytes:
        return f"{at.what}  {count(at.files, 'file')}" if at.files else f"{at.what} …"
    share = f"{100 * at.size_bytes // at.all_bytes}%"
    left = "" if at.left_s is None else f"{duration(at.left_s)} left"
    amount = f"{size_text(at.size_bytes)} of {size_text(at.all_bytes)}"
    rate = f"{size_text(round(at.bytes_per_s))}/s" if at.bytes_per_s else ""
    return "  ".join(filter(None, [at.what, f"{at.files:,} of {at.all_files:,} files", amount, share, rate, left]))


def _watch(progress: TransferProgress, over: threading.Event, as_json: bool) -> None:
    shown = False
    over.wait(_PATIENCE_S)
    while not over.is_set():
        if as_json:
            show_json({"event": "progress", **_facts(progress.standing())})
        else:
            shown = True
            columns = max(40, shutil.get_terminal_size().columns)
            redraw(clipped(line(progress.standing()), columns - 1), err=True)
        over.wait(_EVENT_S if as_json else _LINE_S)
    if shown:
        redraw("", err=True)


def _facts(at: TransferState) -> dict[str, object]:
    return {name: getattr(at, name) for name in TransferState.__slots__}
