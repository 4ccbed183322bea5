"""What all commands share: examples in their help, `--json`, and how a run or a job file is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

Example = tuple[str, str]  # a command line, and what it does
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

NEWEST = "last"  # the client's name for the newest run
_COMPLETION_S = 0.5  # a longer wait feels like a hung shell


class Command(click.Command):
    """A command whose help ends with examples."""

    def __init__(self, *args: Any, examples: Sequence[Example] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                formatter.write_dl(self.examples, col_max=54)
        super().format_epilog(ctx, formatter)


class Group(Command, click.Group):
    """Without a command it prints its help; an unknown one is answered with the closest match."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args:
            from stoker.cli.view.terminal import show  # needed only without a command

            show(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and args[0] not in self.list_commands(ctx):
            from stoker.cli.view.terminal import unknown_command  # needed only for an unknown command

            raise unknown_command(args[0], self.list_commands(ctx), ctx.command_path)
        return super().resolve_command(ctx, args)


def loaded(home: str) -> click.Command:
    """The command at `package.module.name`, imported now."""
    module, _, name = home.rpartition(".")
    command: click.Command = getattr(import_module(module), name)
    return command


def json_option() -> Decorator:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout, including errors.")


def run_argument() -> Decorator:
    """One run; the newest if none is named."""
    return click.argument(
        "name", metavar="[RUN]", required=False, default=NEWEST, shell_complete=run_names, type=click.STRING
    )


def run_arguments(required: bool = True) -> Decorator:
    return click.argument("names", metavar="RUN...", nargs=-1, required=required, shell_complete=run_names)


def job_options() -> Decorator:
    """A job file, and the options that override its fields."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        function = click.option("--name", default="", help="Name of the run [default: <job name>-<n>].")(function)
        function = click.option("--on", default="", metavar="WHERE", help="Where to run it: short for --set on=WHERE.")(
            function
        )
        function = click.option(
            "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a field of the job; repeatable."
        )(function)
        function = click.option(
            "--env",
            "env",
            multiple=True,
            metavar="NAME[=VALUE]",
            help="Set this environment variable for the script, by default to your shell's value; repeatable.",
        )(function)
        return click.argument("file", default="stoker.yaml", type=click.Path())(function)

    return decorate


def matrix_option() -> Decorator:
    """Of commands that work with all trials of a job."""
    return click.option(
        "--matrix",
        "matrix",
        multiple=True,
        metavar="NAME=VALUES",
        help="Run a trial for each value, such as lr=1e-3,1e-2 or seed=1..5; repeatable.",
    )


def change_options() -> Decorator:
    """The options that override the job of an earlier run."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        function = click.option("--name", "called", default="", help="Name of the new run.")(function)
        function = click.option("--on", default="", metavar="WHERE", help="Where to run it: short for --set on=WHERE.")(
            function
        )
        return click.option(
            "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a field of the job; repeatable."
        )(function)

    return decorate


def run_names(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For the shell: quick, silent, and never starts a server."""
    import threading

    found: list[CompletionItem] = []

    def look() -> None:
        from stoker.client.api.client import Client

        try:
            runs = Client.connect(start=False).runs(limit=30)
        except Exception:  # a completion has no way to report it
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
