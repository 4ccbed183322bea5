"""`stoker twin`: the simulated cloud of this computer, by hand."""

from __future__ import annotations

from typing import Any

import click

from stoker.cli.command import Group, json_option, run_argument
from stoker.cli.commands.act.control import seconds
from stoker.cli.view.terminal import say, show, show_json
from stoker.client.api.client import Client
from stoker.client.local import rehearsal, twin
from stoker.client.settings import ClientSettings, from_environment
from stoker.errors import StokerError
from stoker.model.workspace.store import is_twin

_MOST = 1000


@click.group(
    cls=Group,
    examples=[
        ("stoker twin up --weather storm --speed 10", "many failures, ten times as fast"),
        ("stoker twin evict ants-7 --notice 8s", "evict the machine of a run"),
        ("stoker twin down --forget", "stop it, and delete everything in it"),
    ],
)
def command() -> None:
    """Start, stop or inspect the twin, the simulated cloud.

    It implements Azure's protocols on this computer, and costs nothing. What you create in it stays until you delete
    it or run `stoker twin down --forget`.
    """


@command.command()
@click.option("--seed", type=int, help="Seed of its random failures and names.")
@click.option(
    "--weather",
    type=click.Choice(["calm", "changeable", "storm", "hostile"]),
    default=None,
    help="How often things fail; `hostile` refuses, delays and loses everything that Azure may.",
)
@click.option("--speed", type=click.FloatRange(0.01, 100_000), default=1.0, help="How fast its time runs.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on [default: any free port].")
@click.option("--plain", is_flag=True, help="Run machines as plain processes, even if namespaces are allowed.")
@click.option("--blob", is_flag=True, help="Also start its Blob service, as the store `twin`, for data of its runs.")
@json_option()
def up(seed: int | None, weather: str | None, speed: float, port: int, plain: bool, blob: bool, as_json: bool) -> None:
    """Start the twin, unless it is running."""
    settings = from_environment()
    told, started = twin.up(settings, twin.TwinOptions(seed, weather or "", speed, port, plain, blob))
    if blob:
        rehearsal.store(told, settings, Client.connect(settings).connection, say)
    if as_json:
        show_json({"started": started, "twin": told})
        return
    say("the twin is up" if started else "the twin was already up; its options have not changed")
    for name in ("url", "authority", "tenant", "subscription", "client_id"):
        show(f"{name.replace('_', ' '):<13} {told[name]}")
    say("hint: `stoker twin up --json` prints the client secret")


@command.command()
@click.option("--forget", is_flag=True, help="Delete everything in it.")
@json_option()
def down(forget: bool, as_json: bool) -> None:
    """Stop the twin and its machines.

    Its runs wait until it is up again, and resume from their last checkpoint.
    """
    settings = from_environment()
    stopped = twin.down(settings, forget=forget)
    waiting = _under_way(settings) if stopped else []
    if as_json:
        show_json({"stopped": stopped, "waiting": waiting})
        return
    say("the twin is down" if stopped else "the twin was not running")
    for name in waiting:
        say(f"{name} waits for the twin: resume it with `stoker twin up`, or cancel it with `stoker cancel {name}`")


@command.command()
@run_argument()
@click.option(
    "--notice", default="30s", metavar="TIME", help="How long in advance the machine is notified; 0s: no notice."
)
@click.option("--withdrawn", is_flag=True, help="Withdraw the notice before the eviction.")
@json_option()
def evict(name: str, notice: str, withdrawn: bool, as_json: bool) -> None:
    """Evict a run's machine, as the cloud does.

    The machine reads the notice from its metadata service, and is stopped when it expires. Without RUN: the newest.
    """
    settings = from_environment()
    run = Client.connect(settings).run(name)
    notice_s = seconds(notice)
    twin.evict(settings, run.facts, notice_s, withdrawn=withdrawn)
    if as_json:
        show_json({"run": run.name, "notice_s": notice_s, "withdrawn": withdrawn})
    else:
        say(f"the twin evicts the machine of {run.name} in {notice_s:g} s; follow it with: stoker logs -f {run.name}")


@command.command()
@click.argument("name")
@json_option()
def person(name: str, as_json: bool) -> None:
    """Create a user who can log in to the twin, without any rights.

    Prints their login for a shell: `eval "$(stoker twin person anna)"`. An administrator gives rights to their object
    id.
    """
    told, _ = twin.up(from_environment(), twin.TwinOptions())
    made = twin.person(told, name)
    if as_json:
        show_json(made)
        return
    login = " ".join(f"{word}={value}" for word, value in made.items() if word.startswith("AZURE_"))
    show(f"export {login}")
    say(f"the object id of {name} is {made['object_id']}")


@command.command()
@json_option()
def status(as_json: bool) -> int:
    """Show what is in the twin, and its cost. The exit code is 1 if it is not running."""
    facts = twin.status(from_environment())
    if as_json:
        show_json({"up": facts is not None, "twin": facts})
    elif facts is None:
        say("the twin is not running; start it with `stoker twin up`")
    else:
        _tell(facts)
    return 0 if facts else 1


def _under_way(settings: ClientSettings) -> list[str]:
    """Names of active runs on the twin. Never starts a server."""
    try:
        runs = Client.connect(settings, start=False).runs(limit=_MOST, state="active")
    except StokerError:
        return []
    return [run.name for run in runs if is_twin(run.job.on)]


def _tell(facts: dict[str, Any]) -> None:
    times = f"{facts['now_s']:.0f} s of its time, at speed {facts['speed']:g}, seed {facts['seed']}"
    show(f"up at {facts['url']} for {times}")
    show(f"{facts['resources']} resources, ${facts['usd_per_hour']:.4f}/h, ${facts['usd']:.4f} so far")
    for machine in facts["machines"]:
        show(f"  {machine['name']}  {machine['power']}  {machine['address']}  {machine['boots']} boots")
