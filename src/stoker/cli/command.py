"""What all commands have in common: examples in their help, `--json`, and how a run or a job file is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

Example = tuple[str, str]  # a command line, and what it does
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

NEWEST = "last"  # what the client takes for the newest run of all
_COMPLETION_S = 0.5  # a shell that waits for names any longer feels broken


class Command(click.Command):
    """The help of a command ends with examples of its use."""

    def __init__(self, *args: Any, examples: Sequence[Example] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                formatter.write_dl(self.examples, col_max=54)
        super().format_epilog(ctx, formatter)


class Group(Command, click.Group):
    """Without a command it shows its help; a wrong one is answered with the nearest."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args:
            from stoker.cli.view.terminal import show  # a command that is named has no use for it

            show(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and args[0] not in self.list_commands(ctx):
            from stoker.cli.view.failure import unknown_command  # a command that exists has no use for it

            raise unknown_command(args[0], self.list_commands(ctx), ctx.command_path)
        return super().resolve_command(ctx, args)


def loaded(home: str) -> click.Command:
    """The command at `package.module.name`, imported now."""
    module, _, name = home.rpartition(".")
    command: click.Command = getattr(import_module(module), name)
    return command


def json_option() -> Decorator:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout, errors too.")


def run_argument() -> Decorator:
    """One run; the newest where none is named."""
    return click.argument(
        "name", metavar="[RUN]", required=False, default=NEWEST, shell_complete=run_names, type=click.STRING
    )


def run_arguments(required: bool = True) -> Decorator:
    return click.argument("names", metavar="RUN...", nargs=-1, required=required, shell_complete=run_names)


def job_options() -> Decorator:
    """A job file and what the command line changes in it."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        function = click.option("--name", default="", help="Call the run this instead of `<job name>-<n>`.")(function)
        function = click.option("--on", default="", metavar="WHERE", help="Run it there: short for --set on=WHERE.")(
            function
        )
        function = click.option(
            "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Change a field of the job; may be repeated."
        )(function)
        function = click.option(
            "--env",
            "env",
            multiple=True,
            metavar="NAME[=VALUE]",
            help="Give the script this variable, as your shell has it or with this value; may be repeated.",
        )(function)
        return click.argument("file", default="stoker.yaml", type=click.Path())(function)

    return decorate


def change_options() -> Decorator:
    """What the command line changes in the job of an earlier run."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        function = click.option("--name", "called", default="", help="Call the new run this.")(function)
        function = click.option("--on", default="", metavar="WHERE", help="Run it there: short for --set on=WHERE.")(
            function
        )
        return click.option(
            "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Change a field of the job; may be repeated."
        )(function)

    return decorate


def run_names(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For the shell: quick, silent, and never starting a server."""
    import threading

    found: list[CompletionItem] = []

    def look() -> None:
        from stoker.client.api.client import Client

        try:
            runs = Client.connect(start=False).runs(limit=30)
        except Exception:  # a completion has nobody to complain to
            return
        found.extend(
            CompletionItem(run.name, help=str(run.state))
            for run in runs
            if run.name.startswith(incomplete) and run.name.isprintable()
        )

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(_COMPLETION_S)
    return list(found)
