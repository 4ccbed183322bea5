"""`stoker admin`: what an administrator does for a team. Each command has a file of its own."""

from __future__ import annotations

import click

from stoker.cli.command import Group, loaded

# By name: where it is, and the first line of its help, so that the list loads none of them.
COMMANDS = {
    "setup": ("stoker.cli.commands.admin.setup.setup", "Set up a cloud for a team, once."),
    "limit": ("stoker.cli.commands.admin.limit.limit", "Show or set what may be spent in a day or a month."),
    "teardown": (
        "stoker.cli.commands.admin.teardown.teardown",
        "Take a set-up away again, and prove that nothing is left.",
    ),
}


class Lazy(Group):
    """The commands of the table, loaded one at a time."""

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
        ("stoker admin setup azure --workspace vision-team", "show what it makes and costs, ask, make it"),
        ("stoker admin limit --person anna --month 200", "what anna may spend"),
        ("stoker admin teardown azure --workspace vision-team", "remove everything it made"),
    ],
)
def command() -> None:
    """Set up a cloud for a team, limit its costs, remove it.

    Practitioners need none of this: they get one file, and `stoker workspace use FILE`.
    """
