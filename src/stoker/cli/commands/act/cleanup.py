"""`stoker cleanup`: what is left in clouds, and its removal; and what one run has left, said at its end."""

from __future__ import annotations

import time
from collections.abc import Container, Sequence

import click

from stoker.cli.command import Command, json_option
from stoker.cli.view import terminal, words
from stoker.cli.view.receipttext import short
from stoker.cli.view.tables import Cell, Column, table
from stoker.cli.view.terminal import paint_data, say, show, show_json
from stoker.client.api.client import Client
from stoker.client.api.handle import Run as Handle
from stoker.client.api.leftovers import Look, Node, Nodes
from stoker.client.report.spelling import usd
from stoker.errors import ServerUnavailable, StokerError
from stoker.model.run.run import Run

_COLUMNS = (
    Column("NODE", least=12),
    Column("ON"),
    Column("USED BY", least=12),
    Column("STATE"),
    Column("RESOURCES", right=True),
    Column("$/H", right=True),
    Column("SO FAR", right=True),
    Column("WHAT", least=12),
)
_GONE_S = 120.0  # clouds delete slowly


@click.command(
    cls=Command,
    examples=[
        ("stoker cleanup", "show all machines, and ask to remove those that no run needs any more"),
        ("stoker cleanup --others", "also what other servers have left, where its lease is over"),
        ("stoker cleanup --json", "for a program: the list, nothing is removed"),
    ],
)
@click.option("-y", "--yes", is_flag=True, help="Remove it without asking.")
@click.option("--others", is_flag=True, help="Also remove what another server made, where its lease is over.")
@json_option()
def command(yes: bool, others: bool, as_json: bool) -> int:
    """Find and remove machines that no run needs any more.

    Every provider is asked for everything that is ours: machines, and whatever belongs to them. Those that runs use and
    those that are kept after a failure are shown with what they cost, and stay. The server removes the others by itself
    all the time; this is how you make sure. What other servers of the same workspace have is shown with
    the end of its lease, and is theirs until then.

    Providers that cannot be asked, and runs whose nodes say nothing that can be used, are named, and the exit code is
    1: what is left there is not known.
    """
    nodes = Nodes(Client.connect().connection)
    found = nodes.look()
    left, theirs = removable(found.nodes, others=others), [one for one in found.nodes if one.server]
    used = [one for one in found.nodes if one.claimed and not one.server]
    if as_json and not yes:
        known = {"left": left, "removed": [], "used": used, "others": theirs}
        show_json({**known, "unseen": found.unseen, "troubled": found.troubled})
        return 0 if found.whole else 1
    if found.nodes and not as_json:
        _tell([*left, *used, *(one for one in theirs if one not in left)])
    if left and not (yes or terminal.ask(f"remove {words.count(len(left), 'node')}?")):
        return 1
    refused = {one.key: error for one in left if (error := _refusal(nodes, one))}
    after = _until_gone(nodes, refused, others=others) if left else found
    remains = removable(after.nodes, others=others)
    if as_json:
        facts = {"left": remains, "removed": [one.key for one in left], "used": used, "others": theirs}
        show_json({**facts, "unseen": after.unseen, "troubled": after.troubled})
    else:
        say(summary(remains, after))
        for key, error in refused.items():
            say(f"{key} could not be removed: {error.message}; {error.hint}".rstrip("; "))
        for line in unknown(after):
            say(line)
    return 1 if remains or not after.whole else 0


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


def summary(left: Sequence[Node], look: Look) -> str:
    """`0 resources left, $0.00/h`, as the clouds say it, and never where something could not be looked at."""
    cost = sum(one.usd_per_hour for one in left)
    count = words.count(sum(len(one.resources) or 1 for one in left), "resource")
    if look.whole:
        return f"{count} left, ${cost:.2f}/h"
    blind = [f"provider {one.provider}" for one in look.unseen] + [f"run {one.run}" for one in look.troubled]
    return f"{count} found, ${cost:.2f}/h; what is left is not known: {', '.join(blind)} could not be looked at"


def unknown(look: Look) -> list[str]:
    """What could not be looked at and why, with what to do."""
    lines = [f"provider {one.provider}: {one.reason}{f'; {one.hint}' if one.hint else ''}" for one in look.unseen]
    for one in look.troubled:
        nodes = f", and has {words.count(len(one.keys), 'node')} at ${one.usd_per_hour:.4f}/h" if one.keys else ""
        lines.append(f"run {one.run} is in trouble{nodes}: {one.reason}; end it with `stoker cancel {one.run}`")
    return lines


def _tell(found: Sequence[Node]) -> None:
    rows = [
        [
            Cell(one.key),
            Cell(one.provider),
            Cell(_use(one)),
            Cell(one.state),
            Cell(str(len(one.resources) or 1)),
            Cell(f"{one.usd_per_hour:.4f}"),
            Cell("" if one.spent_usd is None else usd(one.spent_usd)),
            Cell(", ".join(one.resources) or one.reason),
        ]
        for one in found
    ]
    for line in table(_COLUMNS, rows, terminal.width(), paint_data):
        show(line)


def _use(one: Node) -> str:
    if one.kept_until:
        return f"kept for {one.run_name} until {one.kept_until.astimezone():%H:%M}"
    if not one.server:
        return one.run_name if one.claimed else "nobody: left over"
    until = f"{one.lease_until:%H:%M} UTC" if one.lease_until else "never"
    return f"another server's, lease {'over' if one.expired else f'until {until}'}"


def _until_gone(nodes: Nodes, refused: Container[str], *, others: bool) -> Look:
    deadline = time.monotonic() + _GONE_S
    while left := removable((look := nodes.look()).nodes, others=others):
        if time.monotonic() > deadline or all(one.key in refused for one in left):
            break
        time.sleep(0.5)
    return look


# What a run leaves behind, as the cloud says it: asked until nothing is there, or patience ends.

_PATIENCE_S = 60.0
_EVERY_S = 0.5


def left(client: Client, run: Run) -> str:
    """A line for the end of `stoker run`; empty where the run had no machine that costs anything."""
    if run.attempt is None or run.attempt.offer is None:
        return ""
    try:
        look = _until_run_is_gone(client, run)
    except StokerError as error:
        return f"what is left could not be asked: {error.message}; look with `stoker cleanup`"
    remains = look.nodes
    stuck = next((one.stuck for one in remains if one.stuck), "")
    going = f": they cannot be removed: {stuck}" if stuck else ": they are being removed; look with `stoker cleanup`"
    return summary(remains, look) + (going if remains else "")


def cost(run: Handle) -> str:
    """What it came to, in a line, once its machines are gone."""
    try:
        return f"{short(run.receipt())}; more: stoker receipt {run.name}"
    except StokerError as error:
        return f"what it cost could not be asked: {error.message}; see it with `stoker receipt {run.name}`"


def _until_run_is_gone(client: Client, run: Run) -> Look:
    """What is there of this run, as far as its provider could be asked."""
    nodes, deadline = Nodes(client.connection), time.monotonic() + _PATIENCE_S
    while True:
        seen = nodes.look(run.job.on)  # others have nothing of it, and may want a login that nobody has
        look = Look(
            tuple(one for one in seen.nodes if one.run == run.id),
            seen.unseen,
            tuple(one for one in seen.troubled if one.id == run.id),
        )
        if not look.nodes or time.monotonic() >= deadline or all(one.stuck for one in look.nodes):
            return look
        time.sleep(_EVERY_S)
