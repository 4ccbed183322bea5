"""`stoker server`: this computer's server, by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import click

from stoker.cli.command import Group, json_option
from stoker.cli.view import words
from stoker.cli.view.terminal import say, show, show_json
from stoker.client.local import launch
from stoker.client.settings import from_environment
from stoker.errors import Conflict, ServerUnavailable


@click.group(
    cls=Group,
    examples=[
        ("stoker server status", "show its address and uptime"),
        ("stoker server stop", "stop it; runs continue, and the next command starts it again"),
        ("stoker server start --port 8080", "also listen on a port for other programs, with the token"),
    ],
)
def command() -> None:
    """Start, stop or inspect this computer's server.

    Commands start it when they need it, and runs continue without it: you can stop it at any time.
    """


@command.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Also listen on this port of 127.0.0.1, for programs that cannot use its Unix socket; 0: any free port.",
)
@json_option()
def start(port: int | None, as_json: bool) -> None:
    """Start the server, unless it is running.

    It listens on a Unix socket in Stoker's folder, which no other user of this computer can reach. Started with this
    command, it keeps your shell's CUDA_VISIBLE_DEVICES and the like for runs whose own shell sets none.
    """
    settings = replace(from_environment(), by_hand=True)
    if port is not None:
        settings = settings.with_variable("STOKER_PORT", str(port))
    launch.connect(settings).get("/v1/health")
    facts = launch.status(settings)
    if facts and port is not None and not facts["http"].endswith(f":{port}" if port else facts["http"] or "none"):
        found = f"on {facts['http']}" if facts["http"] else "on no port"
        raise Conflict(f"the server is already running and listens {found}", hint="stoker server stop")
    _tell(facts, as_json)


@command.command()
@json_option()
def stop(as_json: bool) -> None:
    """Stop the server. Runs continue, and the server catches up with them when it starts again."""
    stopped = launch.stop(from_environment())
    if as_json:
        show_json({"stopped": stopped})
    else:
        say("stopped the server; runs continue" if stopped else "the server was not running")


@command.command()
@json_option()
def status(as_json: bool) -> int:
    """Show whether the server is running. The exit code is 1 if it is not."""
    facts = launch.status(from_environment())
    if facts is None and not as_json:
        say("the server is not running; commands start it when they need it")
        return 1
    _tell(facts, as_json)
    return 0 if facts else 1


def _tell(facts: dict[str, Any] | None, as_json: bool) -> None:
    if as_json:
        show_json({"up": facts is not None, "server": facts})
        return
    if facts is None:
        raise ServerUnavailable("the server stopped right after its start", hint="stoker doctor")
    since = words.age(datetime.fromisoformat(facts["started_at"]), datetime.now(UTC))
    where = " and ".join(place for place in (facts["url"], facts["http"]) if place)
    show(f"up for {since} at {where} (version {facts['version']}, process {facts['pid']}, home {facts['home']})")
    for notice in facts["notices"]:
        show(notice)
