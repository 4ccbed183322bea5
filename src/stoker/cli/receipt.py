"""`stoker receipt`: where the money and the minutes of a run went."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from stoker.cli import terminal, words
from stoker.cli.command import Command, json_option, run_argument
from stoker.cli.receipttext import receipt_lines
from stoker.cli.terminal import paint_data, say, show, show_json
from stoker.client.client import Client
from stoker.errors import BadInput
from stoker.model.receipt import Receipt


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
def command(name: str, file: Path | None, as_json: bool) -> None:
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
    from stoker.client.receiptpage import page  # few want one

    try:
        file.write_text(page(receipt, lambda at: words.clock(at, now), now), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{file} cannot be written: {error.strerror}", hint="name another with --html") from error
    say(f"the receipt of {receipt.run} is in {file}")
