"""`stoker twin`: the simulated cloud of this computer, by hand."""

from __future__ import annotations

from typing import Any

import click

from stoker.cli.command import Group, json_option, run_argument
from stoker.cli.commands.act.control import seconds
from stoker.cli.view.terminal import say, show, show_json
from stoker.client.api.client import Client
from stoker.client.local import rehearsal, twin, twinorders
from stoker.client.settings import Settings, from_environment
from stoker.errors import StokerError
from stoker.model.workspace.store import is_twin

_MOST = 1000


@click.group(
    cls=Group,
    examples=[
        ("stoker twin up --weather storm --speed 10", "rough, and ten times as fast"),
        ("stoker twin evict ants-7 --notice 8s", "take the machine of a run away"),
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
    "--weather",
    type=click.Choice(["calm", "changeable", "storm", "hostile"]),
    default=None,
    help="How much goes wrong by itself; `hostile` refuses, delays and forgets all that Azure may.",
)
@click.option("--speed", type=click.FloatRange(0.01, 100_000), default=1.0, help="How fast its time runs.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Listen there instead of on any free port.")
@click.option("--plain", is_flag=True, help="Machines are plain processes, even where namespaces are allowed.")
@click.option("--blob", is_flag=True, help="With its Blob service, as the store `twin`: for data of runs on it.")
@json_option()
def up(seed: int | None, weather: str | None, speed: float, port: int, plain: bool, blob: bool, as_json: bool) -> None:
    """Start the twin, if it is not there already."""
    settings = from_environment()
    told, started = twin.up(settings, twin.Wanted(seed, weather or "", speed, port, plain, blob))
    if blob:
        rehearsal.store(told, settings, Client.connect(settings).connection, say)
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
    """Stop the twin and switch its machines off.

    Runs on it wait until it is up again, and go on from their last checkpoint.
    """
    settings = from_environment()
    stopped = twin.down(settings, forget=forget)
    waiting = _under_way(settings) if stopped else []
    if as_json:
        show_json({"stopped": stopped, "waiting": waiting})
        return
    say("the twin is down" if stopped else "no twin was running")
    for name in waiting:
        say(f"{name} waits for it: `stoker twin up` lets it go on, `stoker cancel {name}` ends it")


@command.command()
@run_argument()
@click.option("--notice", default="30s", metavar="TIME", help="How long its machine is warned before; 0s: not at all.")
@click.option("--withdrawn", is_flag=True, help="The notice is taken back before it comes true.")
@json_option()
def evict(name: str, notice: str, withdrawn: bool, as_json: bool) -> None:
    """Take a run's machine away, as the cloud does.

    The machine reads the notice from its metadata service, and is switched off when it has run out. Without RUN: the
    newest.
    """
    settings = from_environment()
    run = Client.connect(settings).run(name)
    notice_s = seconds(notice)
    twin.evict(settings, run.facts, notice_s, withdrawn=withdrawn)
    if as_json:
        show_json({"run": run.name, "notice_s": notice_s, "withdrawn": withdrawn})
    else:
        say(f"the twin takes the machine of {run.name} in {notice_s:g} s; watch it with: stoker logs -f {run.name}")


@command.command()
@click.argument("name")
@json_option()
def person(name: str, as_json: bool) -> None:
    """Make somebody who can log in to the twin, with no rights yet.

    Prints what they log in with, for a shell: `eval "$(stoker twin person anna)"`. Their object id is what an
    administrator gives rights to.
    """
    told, _ = twin.up(from_environment(), twin.Wanted())
    made = twinorders.person(told, name)
    if as_json:
        show_json(made)
        return
    login = " ".join(f"{word}={value}" for word, value in made.items() if word.startswith("AZURE_"))
    show(f"export {login}")
    say(f"the object id of {name} is {made['object_id']}")


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


def _under_way(settings: Settings) -> list[str]:
    """Names of runs on the twin that have not ended. No server is started to find out."""
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
