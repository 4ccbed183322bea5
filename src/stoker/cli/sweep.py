"""`stoker sweep`: what is left, and its removal."""

from __future__ import annotations

import time
from collections.abc import Container, Sequence

import click

from stoker.cli import terminal, words
from stoker.cli.command import Command, json_option
from stoker.cli.tables import Cell, Column, table
from stoker.cli.terminal import paint_data, say, show, show_json
from stoker.client.client import Client
from stoker.client.nodes import Node, Nodes
from stoker.errors import ServerUnavailable, StokerError

_COLUMNS = (
    Column("NODE", least=12),
    Column("ON"),
    Column("STATE"),
    Column("RESOURCES", right=True),
    Column("$/H", right=True),
    Column("WHAT", least=12),
)
_GONE_S = 120.0  # clouds delete slowly


@click.command(
    cls=Command,
    examples=[
        ("stoker sweep", "show what no run needs any more, and ask"),
        ("stoker sweep --others", "also what other servers have left, where its lease is over"),
        ("stoker sweep --json", "for a program: the list, nothing is removed"),
    ],
)
@click.option("-y", "--yes", is_flag=True, help="Remove it without asking.")
@click.option("--others", is_flag=True, help="Also remove what another server made, where its lease is over.")
@json_option()
def command(yes: bool, others: bool, as_json: bool) -> int:
    """Find and remove machines that no run needs any more.

    Every provider is asked for everything that is ours: machines, and whatever belongs to them. The server does the
    same by itself all the time; this is how you make sure. What other servers of the same workspace have is shown with
    the end of its lease, and is theirs until then.
    """
    nodes = Nodes(Client.connect().connection)
    found = nodes.all()
    left, theirs = removable(found, others=others), [one for one in found if one.server]
    if as_json and not yes:
        show_json({"left": left, "removed": [], "others": theirs})
        return 0
    if (left or theirs) and not as_json:
        _tell([*left, *(one for one in theirs if one not in left)])
    if left and not (yes or terminal.ask(f"remove {words.count(len(left), 'node')}?")):
        return 1
    refused = {one.key: error for one in left if (error := _refusal(nodes, one))}
    after = _until_gone(nodes, refused, others=others) if left else []
    if as_json:
        show_json({"left": after, "removed": [one.key for one in left], "others": theirs})
    else:
        say(summary(after))
        for key, error in refused.items():
            say(f"{key} could not be removed: {error.message}; {error.hint}".rstrip("; "))
    return 1 if after else 0


def removable(found: Sequence[Node], *, others: bool = False) -> list[Node]:
    """What no run of this server needs, and of other servers, where that is wanted, what has outlived its lease."""
    return [one for one in found if (others and one.expired if one.server else not one.claimed)]


def _refusal(nodes: Nodes, one: Node) -> StokerError | None:
    """Why one of them cannot be released; the others are, all the same."""
    try:
        nodes.release(one)
    except ServerUnavailable:
        raise
    except StokerError as error:
        return error
    return None


def summary(left: Sequence[Node]) -> str:
    """`0 resources, $0.00/h`, as the clouds say it."""
    cost = sum(one.usd_per_hour for one in left)
    return f"{words.count(sum(len(one.resources) or 1 for one in left), 'resource')} left, ${cost:.2f}/h"


def _tell(left: Sequence[Node]) -> None:
    rows = [
        [
            Cell(one.key),
            Cell(one.provider),
            Cell(_state(one)),
            Cell(str(len(one.resources) or 1)),
            Cell(f"{one.usd_per_hour:.4f}"),
            Cell(", ".join(one.resources) or one.reason),
        ]
        for one in left
    ]
    for line in table(_COLUMNS, rows, terminal.width(), paint_data):
        show(line)


def _state(one: Node) -> str:
    if not one.server:
        return one.state
    until = f"{one.lease_until:%H:%M} UTC" if one.lease_until else "never"
    return f"another server's, lease {'over' if one.expired else f'until {until}'}"


def _until_gone(nodes: Nodes, refused: Container[str], *, others: bool) -> list[Node]:
    deadline = time.monotonic() + _GONE_S
    while left := removable(nodes.all(), others=others):
        if time.monotonic() > deadline or all(one.key in refused for one in left):
            break
        time.sleep(0.5)
    return left
