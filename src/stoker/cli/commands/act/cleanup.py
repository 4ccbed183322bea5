"""`stoker cleanup`: the machines left in clouds, and their removal; and the same for one run, printed at its end."""

from __future__ import annotations

import time
from collections.abc import Container, Sequence

import click

from stoker.cli.command import Command, json_option
from stoker.cli.view import terminal, words
from stoker.cli.view.summary import short
from stoker.cli.view.terminal import paint_data, say, show, show_json
from stoker.cli.view.words import Column, TableCell, table
from stoker.client.api.client import Client
from stoker.client.api.handle import RunHandle
from stoker.client.api.resources import Nodes
from stoker.client.report.spelling import usd
from stoker.errors import ServerUnavailable, StokerError
from stoker.model.node import ListedNode, NodeListing
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
        ("stoker cleanup", "list all machines, and ask to remove those that no run needs"),
        ("stoker cleanup --others", "also those of other servers whose lease has expired"),
        ("stoker cleanup --json", "list them for a program; remove nothing"),
    ],
)
@click.option("-y", "--yes", is_flag=True, help="Remove them without asking.")
@click.option("--others", is_flag=True, help="Also remove resources of other servers whose lease has expired.")
@json_option()
def command(yes: bool, others: bool, as_json: bool) -> int:
    """Find and remove machines that no run needs.

    Asks every provider for all resources that Stoker created: machines, disks, network interfaces. Those in use by a
    run, or kept after a failure, are listed with their cost and stay. The server removes the others continuously;
    this command lets you verify it. Resources of other servers in the same workspace are listed with the expiry of
    their lease, and are not touched before.

    Providers that cannot be reached, and runs whose nodes report unusable data, are named, and the exit code is 1:
    what is left there is unknown.
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


def removable(found: Sequence[ListedNode], *, others: bool = False) -> list[ListedNode]:
    """The nodes that no run of this server needs, and on request those of other servers whose lease has expired."""
    return [one for one in found if (others and one.expired if one.server else not one.claimed)]


def _refusal(nodes: Nodes, one: ListedNode) -> StokerError | None:
    """Why one of them cannot be released; the others are released nevertheless."""
    try:
        nodes.release(one)
    except ServerUnavailable:
        raise
    except StokerError as error:
        return error
    return None


def summary(left: Sequence[ListedNode], look: NodeListing) -> str:
    """`0 resources left, $0.00/h`, as the clouds report it; never if something could not be inspected."""
    cost = sum(one.usd_per_hour for one in left)
    count = words.count(sum(len(one.resources) or 1 for one in left), "resource")
    if look.whole:
        return f"{count} left, ${cost:.2f}/h"
    blind = [f"provider {one.provider}" for one in look.unseen] + [f"run {one.run}" for one in look.troubled]
    return f"{count} found, ${cost:.2f}/h; what is left is unknown: {', '.join(blind)} could not be inspected"


def unknown(look: NodeListing) -> list[str]:
    """What could not be inspected and why, with what to do."""
    lines = [f"provider {one.provider}: {one.reason}{f'; {one.hint}' if one.hint else ''}" for one in look.unseen]
    for one in look.troubled:
        nodes = f", and has {words.count(len(one.keys), 'node')} at ${one.usd_per_hour:.4f}/h" if one.keys else ""
        lines.append(f"run {one.run} is stuck{nodes}: {one.reason}; cancel it with `stoker cancel {one.run}`")
    return lines


def _tell(found: Sequence[ListedNode]) -> None:
    rows = [
        [
            TableCell(one.key),
            TableCell(one.provider),
            TableCell(_use(one)),
            TableCell(one.state),
            TableCell(str(len(one.resources) or 1)),
            TableCell(f"{one.usd_per_hour:.4f}"),
            TableCell("" if one.spent_usd is None else usd(one.spent_usd)),
            TableCell(", ".join(one.resources) or one.reason),
        ]
        for one in found
    ]
    for line in table(_COLUMNS, rows, terminal.width(), paint_data):
        show(line)


def _use(one: ListedNode) -> str:
    if one.kept_until:
        return f"kept for {one.run_name} until {one.kept_until.astimezone():%H:%M}"
    if not one.server:
        return one.run_name if one.claimed else "no run (left over)"
    until = f"{one.lease_until:%H:%M} UTC" if one.lease_until else "never"
    return f"another server, lease {'expired' if one.expired else f'until {until}'}"


def _until_gone(nodes: Nodes, refused: Container[str], *, others: bool) -> NodeListing:
    deadline = time.monotonic() + _GONE_S
    while left := removable((look := nodes.look()).nodes, others=others):
        if time.monotonic() > deadline or all(one.key in refused for one in left):
            break
        time.sleep(0.5)
    return look


# What a run leaves behind, as the cloud reports it: polled until nothing is left or the time is over.

_PATIENCE_S = 60.0
_EVERY_S = 0.5


def left(client: Client, run: Run) -> str:
    """A line for the end of `stoker run`; empty if the run had no machine that costs money."""
    if run.attempt is None or run.attempt.offer is None:
        return ""
    try:
        look = _until_run_is_gone(client, run)
    except StokerError as error:
        return f"could not check for leftover machines: {error.message}; check with `stoker cleanup`"
    remains = look.nodes
    stuck = next((one.stuck for one in remains if one.stuck), "")
    going = f": they cannot be removed: {stuck}" if stuck else ": they are being removed; check with `stoker cleanup`"
    return summary(remains, look) + (going if remains else "")


def cost(run: RunHandle) -> str:
    """The cost in one line, once its machines are gone."""
    try:
        return f"{short(run.receipt())}; details: stoker receipt {run.name}"
    except StokerError as error:
        return f"could not get its cost: {error.message}; see `stoker receipt {run.name}`"


def _until_run_is_gone(client: Client, run: Run) -> NodeListing:
    """The nodes of this run, if its provider can be reached."""
    nodes, deadline = Nodes(client.connection), time.monotonic() + _PATIENCE_S
    while True:
        seen = nodes.look(run.job.on)  # the others have no node of it, and may require a login
        look = NodeListing(
            tuple(one for one in seen.nodes if one.run == run.id),
            seen.unseen,
            tuple(one for one in seen.troubled if one.id == run.id),
        )
        if not look.nodes or time.monotonic() >= deadline or all(one.stuck for one in look.nodes):
            return look
        time.sleep(_EVERY_S)
