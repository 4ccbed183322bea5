"""`stoker admin`: commands for a team's administrator, and spending limits."""

from __future__ import annotations

import click

from stoker.cli.command import Command, Group, json_option, loaded
from stoker.cli.view import terminal
from stoker.cli.view.terminal import paint_data, say, show, show_json
from stoker.cli.view.words import Column, TableCell, table
from stoker.client.api.client import Client
from stoker.client.report.spelling import usd
from stoker.errors import BadInput
from stoker.model.run.money import LimitState, Period

# By name: the command, and the first line of its help, so that the list imports none of them.
COMMANDS = {
    "setup": ("stoker.cli.commands.setup.cloud.setup", "Set up a cloud for a team, once."),
    "limit": ("stoker.cli.commands.setup.admin.limit", "Show or set spending limits per day or month."),
    "teardown": (
        "stoker.cli.commands.setup.cloud.teardown",
        "Remove a set-up, and verify that nothing is left.",
    ),
}


class Lazy(Group):
    """The commands of the table, imported one at a time."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        return loaded(COMMANDS[cmd_name][0]) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(
    cls=Lazy,
    examples=[
        ("stoker admin setup azure --workspace vision-team", "show what it creates and costs, ask, create it"),
        ("stoker admin limit --person anna --month 200", "limit what anna may spend"),
        ("stoker admin teardown azure --workspace vision-team", "remove everything it created"),
    ],
)
def command() -> None:
    """Set up a cloud for a team, limit its costs, remove it.

    Practitioners need none of this: they get one file and run `stoker workspace use FILE`.
    """


EVERYBODY = "everybody"
_COLUMNS = [Column(title) for title in ("person", "per", "limit", "used", "left", "resets")]


@click.command(
    cls=Command,
    examples=[
        ("stoker admin limit", "show the limits, and how much is used"),
        ("stoker admin limit --month 200 --person anna", "anna may spend $200 each month"),
        ("stoker admin limit --day 50", "everybody together may spend $50 each day"),
        ("stoker admin limit --day none", "remove the daily limit"),
    ],
)
@click.option("--person", default="", metavar="NAME", help="Limit this person's runs [default: everybody's together].")
@click.option("--day", metavar="AMOUNT", help="US dollars each day, by UTC, or `none`.")
@click.option("--month", metavar="AMOUNT", help="US dollars each month, by UTC, or `none`.")
@json_option()
def limit(person: str, day: str | None, month: str | None, as_json: bool) -> int:
    """Show or set spending limits per day or month.

    Runs stop before they exceed a limit: they save, release their machines, and resume when the new day or month
    begins, or when the limit is raised.
    """
    limits = Client.connect().limits
    given = {Period.DAY: day, Period.MONTH: month}
    if person and day is None and month is None:
        hint = f"stoker admin limit --person {person} --month 200"
        raise BadInput(f"a limit for `{person}` requires an amount", hint=hint)
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
        say("no limits are set; set one with: stoker admin limit --month 200")
    return 0


def _row(state: LimitState) -> list[TableCell | str]:
    one, left = state.limit, max(state.limit.usd - state.used_usd, 0 * state.used_usd)
    return [
        one.person or EVERYBODY,
        str(one.period),
        usd(one.usd),
        usd(state.used_usd),
        TableCell(usd(left), "warn" if not left else ""),
        f"{state.until:%d %B %H:%M} UTC",
    ]
