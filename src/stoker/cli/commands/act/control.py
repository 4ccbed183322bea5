"""`stoker cancel`, `budget`, `evict` and `release`: what a run is told while it is there."""

from __future__ import annotations

import click

from stoker.cli.command import Command, json_option, run_argument, run_arguments
from stoker.cli.view import terminal
from stoker.cli.view.terminal import say, show_json
from stoker.cli.view.words import ENDED
from stoker.client.api.client import Client
from stoker.client.api.handle import Run
from stoker.client.report.spelling import usd
from stoker.errors import BadInput, Conflict
from stoker.model.job.fields import Duration, Problems
from stoker.model.run.run import RunState

_PATIENCE_S = 60.0  # agents give a script 10 s, and are ended from outside after 45


@click.command(
    cls=Command,
    examples=[
        ("stoker cancel ants-7", "end one run"),
        ("stoker cancel ants-7 ants-8 --yes", "end two without being asked"),
    ],
)
@run_arguments()
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option()
def cancel(names: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """End runs early.

    The script gets SIGTERM and ten seconds; what it has written to its outputs is kept. Nothing is cancelled if one of
    the runs does not exist or has ended.
    """
    client = Client.connect()
    runs = [client.run(name) for name in dict.fromkeys(names)]
    ended = [run for run in runs if run.state.ended]
    if ended:
        raise Conflict(f"`{ended[0].name}` {ENDED[ended[0].state]} already", hint=f"stoker show {ended[0].name}")
    question = f"cancel {', '.join(run.name for run in runs)}?"
    if not yes and not as_json and terminal.interactive() and not terminal.ask(question):
        return 1
    for run in runs:
        run.cancel()
    for run in runs:
        run.wait(_PATIENCE_S)
        if not as_json:
            say(f"{run.name} {ENDED.get(run.state, f'is still {run.state}, and will end soon')}")
    if as_json:
        show_json({"runs": [run.facts for run in runs]})
    return 0


NONE = "none"


@click.command(
    cls=Command,
    examples=[
        ("stoker budget ants-7", "what it may cost, and has cost so far"),
        ("stoker budget ants-7 10", "ten dollars in all; a paused run goes on"),
        ("stoker budget ants-7 none", "whatever it costs"),
    ],
)
@run_argument()
@click.argument("amount", required=False)
@json_option()
def budget(name: str, amount: str | None, as_json: bool) -> int:
    """Show or set what a run may cost in all.

    AMOUNT is in US dollars, for the whole run with what it has cost so far. A run that is paused because its budget
    was spent goes on from where it stopped. One that has cost more than AMOUNT saves, and is paused.
    """
    run = Client.connect().run(name)
    if amount is not None:
        run.set_budget(None if amount == NONE else amount)
    if as_json:
        show_json({"run": run.facts, "budget": run.budget()})
        return 0
    for line in lines(run):
        say(line)
    return 0


def lines(run: Run) -> list[str]:
    state = run.budget()
    limit = f"of {usd(state.budget_usd)}" if state.budget_usd is not None else "and has no budget"
    said = [f"{run.name} has cost {usd(state.spent_usd)} {limit}"]
    if state.usd_per_hour:
        said.append(f"it costs {usd(state.usd_per_hour)} an hour; {usd(state.reserve_usd)} are held back to stop it")
    if run.state is RunState.PAUSED:
        said += [f"it is paused: {run.facts.reason}", f"hint: {run.facts.hint}"]
    elif not run.state.ended:
        said.append(f"it is {run.state}")
    return said


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
def evict(name: str, notice: str, withdraw: bool, as_json: bool) -> int:
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


@click.command(
    cls=Command,
    examples=[
        ("stoker release ants-7", "you have seen enough"),
        ("stoker release", "of the newest run"),
    ],
)
@run_argument()
@json_option()
def release(name: str, as_json: bool) -> int:
    """Release the node of a failed run that was kept.

    A job with `keep_failed`, or `stoker run --keep-failed 30m`, leaves the node of a run that fails in place for so
    long. It costs what it cost before; this ends that now.
    """
    run = Client.connect().run(name).release()
    if as_json:
        show_json({"run": run.facts})
    else:
        say(f"the node of {run.name} is released; see that nothing is left with: stoker cleanup")
    return 0
