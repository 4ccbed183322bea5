"""`stoker evict`: the drill for losing a machine."""

from __future__ import annotations

import click

from stoker.cli.command import Command, json_option, run_argument
from stoker.cli.terminal import say, show_json
from stoker.client.client import Client
from stoker.errors import BadInput
from stoker.model.fields import Duration, Problems


@click.command(
    cls=Command,
    examples=[
        ("stoker evict ants-7", "30 s notice, as Azure gives"),
        ("stoker evict ants-7 --notice 0s", "no notice at all"),
        ("stoker evict ants-7 --withdraw", "the machine stays after all"),
    ],
)
@run_argument()
@click.option("--notice", default="30s", metavar="TIME", help="How long the run is warned before; 0s: not at all.")
@click.option("--withdraw", is_flag=True, help="Take a notice back.")
@json_option()
def command(name: str, notice: str, withdraw: bool, as_json: bool) -> int:
    """Take a run's machine away, to see what it does.

    The run gets the notice, then everything of it on the machine is killed, and it goes on elsewhere from its last
    checkpoint.
    """
    run = Client.connect().run(name)
    run.evict(seconds(notice), withdraw=withdraw)
    if as_json:
        show_json({"run": run.facts})
    elif withdraw:
        say(f"the notice of {run.name} is withdrawn")
    else:
        say(f"{run.name} is evicted in {notice}; watch it with: stoker logs -f {run.name}")
    return 0


def seconds(text: str) -> float:
    if text.strip().rstrip("s") in ("0", "0.0"):
        return 0.0
    try:
        return Duration().read(text, "--notice")
    except Problems as found:
        raise BadInput(str(found.problems[0])) from None
