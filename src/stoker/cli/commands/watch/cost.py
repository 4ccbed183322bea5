"""`stoker cost` and `stoker receipt`: the cost of runs, and how one run spent its money."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import click

from stoker.cli.command import Command, json_option, run_argument
from stoker.cli.view import terminal, words
from stoker.cli.view.summary import receipt_lines
from stoker.cli.view.terminal import paint_data, say, show, show_json, write_file
from stoker.cli.view.words import Column, TableCell, table
from stoker.client.api.client import Client
from stoker.client.report.spelling import grain, usd
from stoker.model.run.money import By, CostRow, Costs
from stoker.model.run.receipt import Receipt, rounded

_NOBODY = "(unknown)"


@click.command(
    cls=Command,
    examples=[
        ("stoker cost", "cost of each experiment"),
        ("stoker cost --by day --since 30d", "cost per day, for the last 30 days"),
        ("stoker cost ants --by run", "cost of each run of one experiment"),
    ],
)
@click.argument("experiment", required=False, default="")
@click.option(
    "--by",
    type=click.Choice([str(by) for by in By]),
    default=str(By.EXPERIMENT),
    help="Group the costs by this.",
    show_default=True,
)
@click.option("--since", default="", metavar="TIME", help="Only costs since then: `30d` ago, or a time.")
@json_option()
def command(experiment: str, by: str, since: str, as_json: bool) -> None:
    """Show what runs have cost.

    Metered by the second, each node at its own price; active runs count until now. Your own computers cost nothing.
    With EXPERIMENT: only its runs.
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
        say("no costs" + (f" since {since}" if since else ""))


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
    rows.append([TableCell(cell.text, "strong") for cell in _row(costs.total, usd(sum(amounts, Decimal(0)), quantum))])
    return table(columns, rows, width, paint_data)


def _row(row: CostRow, amount: str) -> list[TableCell]:
    per_hour = f"{usd(row.usd_per_hour)}/h" if row.usd_per_hour else ""
    time = words.duration(float(row.seconds))
    return [
        TableCell(row.name or _NOBODY),
        TableCell(str(row.runs)),
        TableCell(time),
        TableCell(per_hour),
        TableCell(amount),
    ]


@click.command(
    cls=Command,
    examples=[
        ("stoker receipt", "receipt of the newest run"),
        ("stoker receipt ants-7 --html receipt.html", "save it as a web page"),
        ("stoker receipt ants-7 --json", "for a program"),
    ],
)
@run_argument()
@click.option(
    "--html", "file", type=click.Path(path_type=Path), metavar="FILE", help="Write it to this file, as a web page."
)
@json_option()
def receipt(name: str, file: Path | None, as_json: bool) -> None:
    """Show how a run spent its money and time.

    Every second of its machines counts towards one category: useful work, provisioning, set-up, data, checkpoints,
    repeated work, or idle. The categories add up to the total, and the total to what the cloud bills. Also shows the
    evictions and their cost, the cost of the same work on demand, and what is still running. Without RUN: the newest.
    For an active run: so far.
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
    from stoker.client.report.pages import page  # rarely used

    write_file(file, page(receipt, lambda at: words.clock(at, now), now), "--html")
    say(f"wrote the receipt of {receipt.run} to {file}")
