"""`stoker twin`: the simulated cloud of this computer, by hand."""

from __future__ import annotations

from typing import Any

import click

from stoker.cli.command import Group, json_option
from stoker.cli.terminal import say, show, show_json
from stoker.client import twin
from stoker.client.settings import from_environment


@click.group(
    cls=Group,
    examples=[
        ("stoker twin up", "start it, or go on with what it knew"),
        ("stoker twin up --weather storm --speed 10", "rough, and ten times as fast"),
        ("stoker twin down --forget", "stop it, and begin with nothing the next time"),
    ],
)
def command() -> None:
    """Start, stop or look at the twin, the simulated cloud.

    It speaks Azure's own protocols on this computer only, and costs nothing. What you make in it stays until you
    delete it, or the twin is told to forget.
    """


@command.command()
@click.option("--seed", type=int, help="Where its weather and its names come from.")
@click.option(
    "--weather", type=click.Choice(["calm", "changeable", "storm"]), default=None, help="How much goes wrong by itself."
)
@click.option("--speed", type=click.FloatRange(0.01, 100_000), default=1.0, help="How fast its time runs.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Listen there instead of on any free port.")
@click.option("--plain", is_flag=True, help="Machines are plain processes, even where namespaces are allowed.")
@json_option()
def up(seed: int | None, weather: str | None, speed: float, port: int, plain: bool, as_json: bool) -> None:
    """Start the twin, if it is not there already."""
    told, started = twin.up(from_environment(), twin.Wanted(seed, weather or "", speed, port, plain))
    if as_json:
        show_json({"started": started, "twin": told})
        return
    say("the twin is up" if started else "the twin was up already, and is as it was started")
    for name in ("url", "authority", "tenant", "subscription", "client_id"):
        show(f"{name.replace('_', ' '):<13} {told[name]}")
    say("hint: the secret of the client is in `stoker twin up --json`")


@command.command()
@click.option("--forget", is_flag=True, help="Remove everything that was made in it.")
@json_option()
def down(forget: bool, as_json: bool) -> None:
    """Stop the twin and switch its machines off."""
    stopped = twin.down(from_environment(), forget=forget)
    if as_json:
        show_json({"stopped": stopped})
    else:
        say("the twin is down" if stopped else "no twin was running")


@command.command()
@json_option()
def status(as_json: bool) -> int:
    """Say what is in the twin, and what it costs. The exit code is 1 where none runs."""
    facts = twin.status(from_environment())
    if as_json:
        show_json({"up": facts is not None, "twin": facts})
    elif facts is None:
        say("no twin is running; start one with `stoker twin up`")
    else:
        _tell(facts)
    return 0 if facts else 1


def _tell(facts: dict[str, Any]) -> None:
    times = f"{facts['now_s']:.0f} s of its time, at speed {facts['speed']:g}, seed {facts['seed']}"
    show(f"up at {facts['url']} for {times}")
    show(f"{facts['resources']} resources, ${facts['usd_per_hour']:.4f}/h, ${facts['usd']:.4f} so far")
    for machine in facts["machines"]:
        show(f"  {machine['name']}  {machine['power']}  {machine['address']}  {machine['boots']} boots")
