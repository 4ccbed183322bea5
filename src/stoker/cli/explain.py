"""`stoker explain`: what happened to a run and why, in sentences."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from stoker.cli import words
from stoker.cli.command import Command, json_option, run_argument
from stoker.cli.safetext import one_line
from stoker.cli.terminal import show, show_json
from stoker.client.client import Client


@click.command(
    cls=Command,
    examples=[
        ("stoker explain", "what became of the newest run"),
        ("stoker explain ants-7", "of another"),
    ],
)
@run_argument()
@json_option()
def command(name: str, as_json: bool) -> None:
    """Tell what happened to a run and why, in sentences.

    When it started and where, what was taken away from it and with how much notice, what was safe by then and what had
    to be done twice, what that cost; how it stands now, why, and what you can do about it. Without RUN: the newest.
    """
    now = datetime.now(UTC)
    sentences = Client.connect().run(name).explain(lambda at: words.clock(at, now))
    if as_json:
        show_json({"sentences": sentences})
        return
    for sentence in sentences:
        show(one_line(sentence))
