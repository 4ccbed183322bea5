"""Commands that are made for each provider from what it says of itself: `stoker admin setup PROVIDER`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from stoker.cli.command import Command, Example, Group
from stoker.cli.terminal import say
from stoker.client import groundwork
from stoker.client.settings import from_environment
from stoker.model.groundwork import Asked, Groundwork, Option

Body = Callable[[Groundwork, Asked, dict[str, Any]], int]  # what a command does with what was said


class PerProvider(Group):
    """One command for each provider that an administrator can set up."""

    def __init__(self, *args: Any, build: Callable[[str], click.Command], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._build = build

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return groundwork.names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self._build(cmd_name) if cmd_name in self.list_commands(ctx) else None


def provider_command(
    name: str, help: str, options: list[click.Option], examples: list[Example], body: Body, *, teardown: bool = False
) -> Command:
    """The provider's own options, then those that every provider has."""
    found = groundwork.find(name)
    own = [one for one in found.options if one.teardown or not teardown]

    def callback(**given: Any) -> int:
        said = {one.key: given.pop(one.key) for one in own}
        twin = groundwork.rehearse(from_environment(), say) if given.pop("twin") else None
        return body(found, Asked(said, from_environment().environ, twin), given)

    params: list[click.Parameter] = [*map(_option, own), *options, _twin(name)]
    return Command(name, params=params, callback=callback, help=help, examples=examples)


def _option(one: Option) -> click.Option:
    if not one.metavar:
        return click.Option([one.name, one.key], is_flag=True, help=one.help)
    return click.Option([one.name, one.key], metavar=one.metavar, multiple=one.many, help=one.help)


def _twin(name: str) -> click.Option:
    return click.Option(["--twin"], is_flag=True, help=f"On the twin of {name} instead: a rehearsal, for nothing.")
