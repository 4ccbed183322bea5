"""`stoker cluster`: named pools of nodes, that grow with their runs and shrink when they are idle."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from stoker.cli.command import Command, Group, json_option
from stoker.cli.view import terminal
from stoker.cli.view.terminal import paint_data, say, show, show_json
from stoker.cli.view.words import Column, TableCell, table
from stoker.client.api.client import Client
from stoker.client.report.spelling import duration, usd
from stoker.errors import BadInput
from stoker.model.cause import Cause
from stoker.model.job.fields import Problems
from stoker.model.job.values import Duration
from stoker.model.node import Cluster, ClusterState

_COLUMNS = [Column(title) for title in ("cluster", "provider", "size", "nodes", "busy", "idle", "waiting", "owner")]


@click.group(
    cls=Group,
    examples=[
        ("stoker cluster create dev --provider azure --max 4 --spot", "up to 4 spot machines, none while idle"),
        ("stoker run --on dev", "run a job there"),
        ("stoker cluster show dev", "show its nodes, its runs, and what idle time has cost"),
    ],
)
def command() -> None:
    """Manage clusters: named pools of nodes for runs.

    A cluster has no node until a run needs one, unless you ask for a minimum. When the run ends, its node waits for
    the next run for the idle time; then it is released.
    """


def _setting(line: str) -> tuple[str, str]:
    name, found, value = line.partition("=")
    if not found or not name:
        raise BadInput(f"invalid setting `{line}`", hint="write NAME=VALUE", cause=Cause.VALUE_INVALID)
    return name, value


def _seconds(text: str) -> timedelta:
    try:
        return timedelta(seconds=0.0 if text in ("0", "0s") else Duration().read(text, "--idle"))
    except Problems:
        raise BadInput(f"invalid time `{text}`", hint=f"use {Duration.expected}", cause=Cause.VALUE_INVALID) from None


@command.command(
    cls=Command,
    examples=[
        ("stoker cluster create dev --provider azure --size Standard_NC4as_T4_v3 --max 16 --spot", "spot machines"),
        ("stoker cluster create desk --provider local --max 2", "at most two nodes of this computer at once"),
        ("stoker cluster create lab --provider ssh --hosts hosts.txt --max 8", "your own machines"),
    ],
)
@click.argument("name")
@click.option("--provider", required=True, help="Where its nodes come from, such as `azure`.")
@click.option("--max", "max_nodes", type=int, required=True, help="The most nodes at once.")
@click.option(
    "--min", "min_nodes", type=int, default=0, help="The fewest nodes, started ahead of any run [default: 0]."
)
@click.option("--idle", default="10m", metavar="TIME", help="Release a node that had no run for TIME [default: 10m].")
@click.option("--size", default="", help="The provider's name for a size [default: what each job needs].")
@click.option("--region", default="", help="The provider's name for a region.")
@click.option("--spot", is_flag=True, help="Use spot machines.")
@click.option(
    "--hosts", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A file with one host per line."
)
@click.option("--setting", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the provider.")
@json_option()
def create(idle: str, hosts: Path | None, settings: tuple[str, ...], as_json: bool, **asked: Any) -> None:
    """Create a cluster. Costs nothing without `--min`: nodes come with the first run."""
    given = dict(_setting(one) for one in settings)
    if hosts:
        given["hosts"] = hosts.read_text(encoding="utf-8", errors="replace")
    client = Client.connect()
    cluster = Cluster(**asked, idle_s=_seconds(idle).total_seconds(), settings=given, owner=client.settings.person)
    client.stage(cluster.provider, say)
    made = client.clusters.create(cluster)
    _tell(made, f"created {cluster.name}; run a job there with: stoker run --on {cluster.name}", as_json=as_json)


@command.command(cls=Command, examples=[("stoker cluster ls", "list every cluster, and its nodes")])
@json_option()
def ls(as_json: bool) -> None:
    """List clusters."""
    found = Client.connect().clusters.all()
    if as_json:
        show_json({"clusters": found})
    elif not found:
        say("no clusters; create one with: stoker cluster create NAME --provider PROVIDER --max 4")
    else:
        for line in table(_COLUMNS, [_row(one) for one in found], terminal.width(), paint_data):
            show(line)


def _row(state: ClusterState) -> list[TableCell | str]:
    one = state.cluster
    nodes = TableCell("paused", "warn") if one.paused else f"{one.min_nodes} to {one.max_nodes}"
    counts = (state.busy_nodes, state.idle_nodes, len(state.waiting))
    kind = f"{one.size}{' spot' if one.spot else ''}".strip()
    return [one.name, one.provider, kind, nodes, *(str(count) for count in counts), one.owner]


@command.command("show", cls=Command, examples=[("stoker cluster show dev", "show its nodes, runs and idle time")])
@click.argument("name")
@json_option()
def show_one(name: str, as_json: bool) -> None:
    """Show a cluster: its nodes, its runs, and what idle time has cost."""
    state = Client.connect().clusters.show(name)
    if as_json:
        show_json({"cluster": state})
        return
    for label, text in _lines(state):
        show(f"{label:<9}  {text}")


def _lines(state: ClusterState) -> list[tuple[str, str]]:
    one = state.cluster
    kind = ", ".join(filter(None, [one.provider, one.size, one.region, "spot" if one.spot else ""]))
    idle = f"{duration(state.idle_hours * 3600)}, {usd(state.idle_usd)}, paid by {one.owner or 'nobody in particular'}"
    return [
        ("cluster", f"{one.name}{' (paused)' if one.paused else ''}"),
        ("nodes", f"{kind}; {one.min_nodes} to {one.max_nodes}, released after {duration(one.idle_s)} without a run"),
        ("now", f"{state.busy_nodes} busy, {state.idle_nodes} idle"),
        ("running", ", ".join(state.running) or "nothing"),
        ("waiting", ", ".join(state.waiting) or "nothing"),
        ("runs", f"{usd(state.runs_usd)}, paid by whoever submitted them"),
        ("idle time", idle),
    ]


@command.command(
    cls=Command,
    examples=[
        ("stoker cluster resize dev --max 8", "allow eight nodes"),
        ("stoker cluster resize dev --min 1 --idle 1h", "keep one node ready, release others after an hour"),
    ],
)
@click.argument("name")
@click.option("--max", "max_nodes", type=int, help="The most nodes at once.")
@click.option("--min", "min_nodes", type=int, help="The fewest nodes, started ahead of any run.")
@click.option("--idle", metavar="TIME", help="Release a node that had no run for TIME.")
@json_option()
def resize(name: str, max_nodes: int | None, min_nodes: int | None, idle: str | None, as_json: bool) -> None:
    """Change how many nodes a cluster has, and how long idle ones wait.

    Runs keep their nodes; idle nodes beyond the new size are released.
    """
    if max_nodes is None and min_nodes is None and idle is None:
        raise BadInput("nothing to change", hint=f"stoker cluster resize {name} --max 8", cause=Cause.NOTHING_TO_CHANGE)
    waits = _seconds(idle) if idle is not None else None
    state = Client.connect().clusters.resize(name, max_nodes=max_nodes, min_nodes=min_nodes, idle=waits)
    one = state.cluster
    text = f"{name} has {one.min_nodes} to {one.max_nodes} nodes, released after {duration(one.idle_s)} without a run"
    _tell(state, text, as_json=as_json)


@command.command(cls=Command, examples=[("stoker cluster pause dev", "release all its nodes, and start nothing")])
@click.argument("name")
@json_option()
def pause(name: str, as_json: bool) -> None:
    """Release all nodes of a cluster, and start nothing there.

    Runs get a notice, save a checkpoint and give their nodes back; work since the last checkpoint of a script that
    does not save on a notice is repeated. They resume, and runs that wait start, when you resume the cluster.
    """
    state = Client.connect().clusters.pause(name)
    busy = f"; these save and give their nodes back: {', '.join(state.running)}" if state.running else ""
    _tell(state, f"{name} is paused{busy}; continue with: stoker cluster resume {name}", as_json=as_json)


@command.command(cls=Command, examples=[("stoker cluster resume dev", "start the runs that wait for it")])
@click.argument("name")
@json_option()
def resume(name: str, as_json: bool) -> None:
    """Let a paused cluster start runs again."""
    _tell(Client.connect().clusters.resume(name), f"{name} starts runs again", as_json=as_json)


@command.command(cls=Command, examples=[("stoker cluster rm dev", "remove it, and release its idle nodes")])
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option()
def rm(name: str, yes: bool, as_json: bool) -> int:
    """Remove a cluster. Its idle nodes are released; its runs stay.

    Refused while a run uses it.
    """
    if not terminal.confirmed(f"remove the cluster {name} (its runs stay)?", yes=yes, as_json=as_json):
        return 1
    Client.connect().clusters.remove(name)
    if as_json:
        show_json({"removed": name})
    else:
        say(f"removed {name}")
    return 0


def _tell(state: ClusterState, text: str, *, as_json: bool) -> None:
    if as_json:
        show_json({"cluster": state})
    else:
        say(text)
