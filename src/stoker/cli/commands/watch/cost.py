"""`stoker cost` and `stoker receipt`: what runs have cost, and where the money of one went."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import click

from stoker.cli.command import Command, json_option, run_argument
from stoker.cli.view import terminal, words
from stoker.cli.view.receipttext import receipt_lines
from stoker.cli.view.tables import Cell, Column, table
from stoker.cli.view.terminal import paint_data, say, show, show_json
from stoker.client.api.client import Client
from stoker.client.report.spelling import grain, usd
from stoker.errors import BadInput
from stoker.model.run.money import By, CostRow, Costs
from stoker.model.run.receipt import Receipt, rounded

_NOBODY = "(nobody said)"


@click.command(
    cls=Command,
    examples=[
        ("stoker cost", "of each experiment"),
        ("stoker cost --by day --since 30d", "of each day of the last thirty"),
        ("stoker cost ants --by run", "of each run of one experiment"),
    ],
)
@click.argument("experiment", required=False, default="")
@click.option(
    "--by",
    type=click.Choice([str(by) for by in By]),
    default=str(By.EXPERIMENT),
    help="What to sum by.",
    show_default=True,
)
@click.option("--since", default="", metavar="TIME", help="Only what was spent since: `30d` ago, or a time.")
@json_option()
def command(experiment: str, by: str, since: str, as_json: bool) -> None:
    """Show what runs have cost.

    Metered by the second, each node at the price it had; runs that go on count until now. Computers of your own cost
    nothing. With EXPERIMENT: its runs only.
    """
    now = datetime.now(UTC)
    moment = words.moment(since, now) if since else None
    costs = Client.connect().costs(by, since=moment, experiment=experiment)
    if as_json:
        show_json(costs)
        return
    for line in lines(costs, terminal.width()):
        show(line)
    if not costs.rows:
        say("nothing has cost anything" + (f" since {since}" if since else ""))


def lines(costs: Costs, width: int) -> list[str]:
    if not costs.rows:
        return []
    columns = (
        Column(str(costs.by).upper(), least=12),
        Column("RUNS", right=True),
        Column("MACHINE TIME", right=True),
        Column("NOW", right=True),
        Column("COST", right=True),
    )
    quantum = grain(costs.total.usd)
    amounts = rounded((row.usd for row in costs.rows), quantum)
    rows = [_row(row, usd(amount, quantum)) for row, amount in zip(costs.rows, amounts, strict=True)]
    rows.append([Cell(cell.text, "strong") for cell in _row(costs.total, usd(sum(amounts, Decimal(0)), quantum))])
    return table(columns, rows, width, paint_data)


def _row(row: CostRow, amount: str) -> list[Cell]:
    per_hour = f"{usd(row.usd_per_hour)}/h" if row.usd_per_hour else ""
    time = words.duration(float(row.seconds))
    return [Cell(row.name or _NOBODY), Cell(str(row.runs)), Cell(time), Cell(per_hour), Cell(amount)]


@click.command(
    cls=Command,
    examples=[
        ("stoker receipt", "of the newest run"),
        ("stoker receipt ants-7 --html receipt.html", "as a page, to keep or to send"),
        ("stoker receipt ants-7 --json", "for a program"),
    ],
)
@run_argument()
@click.option(
    "--html", "file", type=click.Path(path_type=Path), metavar="FILE", help="Write it as a page to this file."
)
@json_option()
def receipt(name: str, file: Path | None, as_json: bool) -> None:
    """Show where the money and the minutes of a run went.

    Every second of its machines is in one part: useful work, provisioning, set-up, data, checkpoints, work done twice,
    or idle. The parts sum to the whole, and the whole to what the cloud bills. Also: what was taken away and what that
    cost, what it would have cost on demand, and what is left running now. Without RUN: the newest. Of a run that goes
    on: so far.
    """
    run = Client.connect().run(name)
    receipt = run.receipt(look=not run.facts.state.ended or bool(run.facts.spells))
    now = datetime.now(UTC)
    if file is not None:
        _write(file, receipt, now)
    if as_json:
        show_json({"receipt": receipt, "usd": receipt.usd, "seconds": receipt.seconds})
    elif file is None:
        for line in receipt_lines(receipt, now, terminal.width(), paint_data):
            show(line)


def _write(file: Path, receipt: Receipt, now: datetime) -> None:
    from stoker.client.report.receipt import page  # few want one

    try:
        file.write_text(page(receipt, lambda at: words.clock(at, now), now), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{file} cannot be written: {error.strerror}", hint="name another with --html") from error
    say(f"the receipt of {receipt.run} is in {file}")
