"""`stoker completion` and `stoker schema`: completion for shells and editors."""

from __future__ import annotations

import json

import click
from click.shell_completion import get_completion_class

from stoker.cli.command import Command, json_option
from stoker.cli.view.terminal import show, show_json
from stoker.model.job.job import schema


@click.command(
    cls=Command,
    examples=[
        ('eval "$(stoker completion bash)"', "in ~/.bashrc"),
        ('eval "$(stoker completion zsh)"', "in ~/.zshrc"),
        ("stoker completion fish | source", "in ~/.config/fish/config.fish"),
    ],
)
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(["bash", "zsh", "fish"]))
@json_option()
def command(shell: str, as_json: bool) -> None:
    """Print the shell completion script.

    Names of runs are completed, too, while the server is running.
    """
    from stoker.cli import cli  # the group that loads this module

    kind = get_completion_class(shell)
    assert kind is not None  # click supports all three
    script = kind(cli, {}, "stoker", "_STOKER_COMPLETE").source()
    if as_json:
        show_json({"shell": shell, "script": script})
    else:
        show(script)


@click.command(
    cls=Command,
    examples=[
        ("stoker schema > stoker.schema.json", "write it to a file"),
        ("# yaml-language-server: $schema=stoker.schema.json", "line 1 of stoker.yaml"),
    ],
)
@json_option()
def job_schema(as_json: bool) -> None:  # noqa: ARG001  # it is JSON either way
    """Print the JSON Schema of the job file, for editors.

    With it, an editor completes and explains the fields of stoker.yaml, and marks mistakes as you type.
    """
    show(json.dumps(schema(), indent=2, ensure_ascii=False))
