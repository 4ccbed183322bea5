"""`stoker admin`: commands for a team's administrator, one file each."""

from __future__ import annotations

import click

from stoker.cli.command import Group, loaded

# By name: the command, and the first line of its help, so that the list imports none of them.
COMMANDS = {
    "setup": ("stoker.cli.commands.admin.setup.setup", "Set up a cloud for a team, once."),
    "limit": ("stoker.cli.commands.admin.limit.limit", "Show or set spending limits per day or month."),
    "teardown": (
        "stoker.cli.commands.admin.teardown.teardown",
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
