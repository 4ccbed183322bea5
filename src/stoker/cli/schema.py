"""`stoker schema`: the job file, as editors understand it."""

from __future__ import annotations

import json

import click

from stoker.cli.command import Command, json_option
from stoker.cli.terminal import show
from stoker.model.job import schema


@click.command(
    cls=Command,
    examples=[
        ("stoker schema > stoker.schema.json", "write it to a file"),
        ("# yaml-language-server: $schema=stoker.schema.json", "line 1 of stoker.yaml"),
    ],
)
@json_option()
def command(as_json: bool) -> None:  # noqa: ARG001  # it is JSON either way
    """Print the JSON Schema of the job file, for editors.

    With it an editor completes the fields of stoker.yaml, explains them, and marks mistakes as you type.
    """
    show(json.dumps(schema(), indent=2, ensure_ascii=False))
