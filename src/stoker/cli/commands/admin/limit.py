"""`stoker admin limit`: what people may spend in a day or a month."""

from __future__ import annotations

import click

from stoker.cli.command import Command, json_option
from stoker.cli.view import terminal
from stoker.cli.view.tables import Cell, Column, table
from stoker.cli.view.terminal import paint_data, say, show, show_json
from stoker.client.api.client import Client
from stoker.client.report.spelling import usd
from stoker.errors import BadInput
from stoker.model.run.money import LimitState, Period

EVERYBODY = "everybody"
_COLUMNS = [Column(title) for title in ("whose", "each", "limit", "used", "left", "new one begins")]


@click.command(
    cls=Command,
    examples=[
        ("stoker admin limit", "the limits, and what is used of them"),
        ("stoker admin limit --month 200 --person anna", "anna may spend $200 each month"),
        ("stoker admin limit --day 50", "everybody together $50 each day"),
        ("stoker admin limit --day none", "no limit a day any more"),
    ],
)
@click.option("--person", default="", metavar="NAME", help="Whose runs; default: those of everybody together.")
@click.option("--day", metavar="AMOUNT", help="US dollars each day, by UTC, or `none`.")
@click.option("--month", metavar="AMOUNT", help="US dollars each month, by UTC, or `none`.")
@json_option()
def limit(person: str, day: str | None, month: str | None, as_json: bool) -> int:
    """Show or set what may be spent in a day or a month.

    Runs stop before a limit is passed: they save, give their machines back, and go on by themselves when a new day or
    month begins, or when the limit is raised.
    """
    limits = Client.connect().limits
    given = {Period.DAY: day, Period.MONTH: month}
    if person and day is None and month is None:
        hint = f"stoker admin limit --person {person} --month 200"
        raise BadInput(f"a limit for `{person}` needs an amount", hint=hint)
    for period, amount in given.items():
        if amount == "none":
            limits.remove(period, person)
        elif amount is not None:
            limits.save(period, amount, person)
    found = limits.all()
    if as_json:
        show_json({"limits": found})
    elif found:
        for line in table(_COLUMNS, [_row(one) for one in found], terminal.width(), paint_data):
            show(line)
    else:
        say("there are no limits; set one with: stoker admin limit --month 200")
    return 0


def _row(state: LimitState) -> list[Cell | str]:
    one, left = state.limit, max(state.limit.usd - state.used_usd, 0 * state.used_usd)
    return [
        one.person or EVERYBODY,
        str(one.period),
        usd(one.usd),
        usd(state.used_usd),
        Cell(usd(left), "warn" if not left else ""),
        f"{state.until:%d %B %H:%M} UTC",
    ]
