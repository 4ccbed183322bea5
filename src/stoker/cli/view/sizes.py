"""What runs take up, as `stoker ps --sizes` and `stoker prune` show it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from stoker.cli.view import terminal, words
from stoker.cli.view.safetext import one_line
from stoker.cli.view.tables import Cell, Column, table
from stoker.cli.view.terminal import paint_data, say, show
from stoker.cli.view.words import STYLES
from stoker.model.run.pruning import RunSizes, Sizes
from stoker.model.run.run import Run

_COLUMNS = (
    Column("RUN", least=12),
    Column("STATE"),
    Column("AGE", right=True),
    Column("CODE", right=True),
    Column("CHECKPOINTS", right=True),
    Column("OUTPUTS", right=True),
    Column("LOGS", right=True),
    Column("STORED", right=True),
    Column("BROUGHT HERE", right=True),
    Column("STORE", least=6),
)


def tell(runs: Sequence[Run], sizes: Sizes, now: datetime) -> None:
    rows = [_row(run, sizes.runs[run.name], now) for run in runs if run.name in sizes.runs]
    for line in table(_COLUMNS, rows, terminal.width(), paint_data):
        show(line)
    say(f"{words.size(sizes.total)} stored in all; code that several runs share is counted once")
    if sizes.home:
        parts = ", ".join(f"{name} {words.size(size)}" for name, size in sizes.home.items())
        say(f"besides, in Stoker's folder: {parts}")
    for name, one in sizes.runs.items():
        if one.trouble:
            say(f"{name}: what is in its store is not known: {one_line(one.trouble)}")


def _row(run: Run, sizes: RunSizes, now: datetime) -> list[Cell | str]:
    stored = [sizes.code, sizes.checkpoints, sizes.outputs, sizes.logs, sizes.stored]
    shown = ["?" if sizes.trouble else words.size(one) if one else "" for one in stored]
    here = words.size(sizes.here) if sizes.here else ""
    state = Cell(str(run.state), STYLES[run.state])
    return [run.name, state, words.age(run.submitted_at, now), *shown, here, run.store]
