"""The command line: one file per command. Nothing slow may be imported here at the top."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from stoker import __version__
from stoker.cli.command import Group, loaded

# These lines are here so that `stoker --help` loads none of the commands.
COMMANDS: dict[str, dict[str, str]] = {
    "Start": {
        "init": "Write a first job file for this folder.",
        "import": "Write a job file from a Slurm script or an Azure ML job.",
        "plan": "Show what `stoker run` would do, without doing it.",
        "run": "Run a job and show its output.",
        "rerun": "Run an earlier run again, with the same code and Python.",
        "resume": "Resume a failed or cancelled run from its last checkpoint.",
        "data": "Upload data to a store and version it.",
        "env": "List, build, lock and compare environments.",
        "sweep": "Manage sweeps: many runs of one job with different values.",
        "certify": "Prove that a script survives evictions exactly.",
    },
    "Watch": {
        "ps": "List runs: active ones first.",
        "queue": "Show what waiting runs wait for, and when they will start.",
        "show": "Show everything about a run.",
        "logs": "Show the output of a run.",
        "metrics": "List the metrics of a run, or try a pattern on its log.",
        "tensorboard": "Open TensorBoard on runs while they train.",
        "diff": "Show what differs between two runs.",
        "explain": "Explain what happened to a run, and why.",
        "results": "Compare the runs of an experiment or a sweep.",
        "export": "Show runs in a tracking server, such as your team's MLflow.",
        "cost": "Show what runs have cost.",
        "receipt": "Show how a run spent its money and time.",
        "exec": "Run a command on the node of a run.",
        "ssh": "Open a shell on the node of a run.",
        "stacks": "Show the Python stack of every rank of a run, on all nodes.",
    },
    "Act": {
        "fetch": "Download the outputs of a run.",
        "cancel": "Cancel runs.",
        "budget": "Show or set the budget of a run.",
        "evict": "Evict a run's machine, to see how the run recovers.",
        "release": "Release the node that was kept after a failed run.",
        "rm": "Delete runs that have ended, with their stored files.",
        "prune": "Delete old runs, with their stored files.",
        "cleanup": "Find and remove machines that no run needs.",
    },
    "Set up": {
        "doctor": "Check that this computer or a cloud is ready.",
        "server": "Start, stop or inspect this computer's server.",
        "cluster": "Manage clusters: named pools of nodes for runs.",
        "store": "Manage stores for runs and data: folders, Azure Blob, S3, GCS.",
        "workspace": "Use your team's cloud and store, from one file.",
        "admin": "Set up a cloud for a team, limit its costs, remove it.",
        "twin": "Start, stop or inspect the twin, the simulated cloud.",
        "uninstall": "List and remove what Stoker has left on this computer.",
        "schema": "Print the JSON Schema of the job file, for editors.",
        "completion": "Print the shell completion script.",
    },
}

# The module of each command, imported when it is called.
HOMES = {
    "init": "stoker.cli.commands.start.init.command",
    "import": "stoker.cli.commands.start.importing.command",
    "plan": "stoker.cli.commands.start.plan.command",
    "run": "stoker.cli.commands.start.run.command",
    "rerun": "stoker.cli.commands.start.run.rerun",
    "resume": "stoker.cli.commands.start.run.resume",
    "data": "stoker.cli.commands.start.data.command",
    "env": "stoker.cli.commands.start.env.command",
    "sweep": "stoker.cli.commands.sweep.sweep.command",
    "certify": "stoker.cli.commands.start.certify.command",
    "ps": "stoker.cli.commands.watch.ps.command",
    "queue": "stoker.cli.commands.watch.ps.queue",
    "show": "stoker.cli.commands.watch.show.command",
    "logs": "stoker.cli.commands.watch.logs.command",
    "metrics": "stoker.cli.commands.watch.show.metrics",
    "tensorboard": "stoker.cli.commands.watch.tensorboard.command",
    "diff": "stoker.cli.commands.watch.diff.command",
    "explain": "stoker.cli.commands.watch.show.explain",
    "results": "stoker.cli.commands.sweep.results.command",
    "export": "stoker.cli.commands.sweep.export.command",
    "cost": "stoker.cli.commands.watch.cost.command",
    "receipt": "stoker.cli.commands.watch.cost.receipt",
    "exec": "stoker.cli.commands.watch.ssh.execute",
    "ssh": "stoker.cli.commands.watch.ssh.command",
    "stacks": "stoker.cli.commands.watch.ssh.stacks",
    "fetch": "stoker.cli.commands.act.fetch.command",
    "cancel": "stoker.cli.commands.act.control.cancel",
    "budget": "stoker.cli.commands.act.control.budget",
    "evict": "stoker.cli.commands.act.control.evict",
    "release": "stoker.cli.commands.act.control.release",
    "rm": "stoker.cli.commands.act.prune.remove",
    "prune": "stoker.cli.commands.act.prune.command",
    "cleanup": "stoker.cli.commands.act.cleanup.command",
    "doctor": "stoker.cli.commands.setup.doctor.command",
    "server": "stoker.cli.commands.setup.computer.server",
    "cluster": "stoker.cli.commands.setup.cluster.command",
    "store": "stoker.cli.commands.setup.store.command",
    "workspace": "stoker.cli.commands.setup.workspace.command",
    "admin": "stoker.cli.commands.setup.admin.command",
    "twin": "stoker.cli.commands.setup.twin.command",
    "uninstall": "stoker.cli.commands.setup.computer.uninstall",
    "schema": "stoker.cli.commands.setup.computer.job_schema",
    "completion": "stoker.cli.commands.setup.computer.completion",
}


class PipeClosed(Exception):
    """The reader of our output is gone, as `head` is after its last line."""


class Commands(Group):
    """The commands of the table, imported one at a time."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return [name for section in COMMANDS.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        return loaded(HOMES[cmd_name])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        widest = max(len(name) for section in COMMANDS.values() for name in section)
        for title, section in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), line) for name, line in section.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        lines = {name: line for section in COMMANDS.values() for name, line in section.items()}
        items = [CompletionItem(name, help=line) for name, line in lines.items() if name.startswith(incomplete)]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # click would exit here with a failure
            raise PipeClosed from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="stoker", message="%(prog)s %(version)s")
def cli() -> None:
    """Stoker runs your training script unchanged, monitors it, and brings the model back.

    In a folder with a training script: `stoker init`, then `stoker run`.
    """


def main(args: Sequence[str] | None = None) -> None:
    """The program. Exits the process with the command's exit code."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.reconfigure(errors="replace")
    code = answer(sys.argv[1:] if args is None else args)
    try:
        if sys.stdout:
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
    sys.exit(code)


def answer(args: Sequence[str]) -> int:
    """Runs one command line. Every failure has been reported when it returns."""
    json = "--json" in args
    try:
        return int(cli.main(list(args), prog_name="stoker", standalone_mode=False) or 0)
    except Exception as error:
        return _failed(error, json=json)


def _failed(error: Exception, *, json: bool) -> int:
    from stoker.cli.view import terminal  # not needed by a command that succeeds
    from stoker.errors import StokerError

    match error:
        case StokerError():
            return terminal.report(error, json=json)
        case click.ClickException():
            return terminal.report(terminal.from_click(error), json=json)
        case click.Abort():
            return terminal.INTERRUPTED
        case PipeClosed():
            _drop_stdout()
            return terminal.PIPE_CLOSED
        case _:
            return terminal.report_bug(error, json=json)


def _drop_stdout() -> None:
    """Python flushes stdout once more at exit, and would report an error there."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
