"""`stoker budget`: what a run may cost in all."""

from __future__ import annotations

import click

from stoker.cli.command import Command, json_option, run_argument
from stoker.cli.terminal import say, show_json
from stoker.client.client import Client
from stoker.client.handle import Run
from stoker.client.spelling import usd
from stoker.model.run import RunState

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
def command(name: str, amount: str | None, as_json: bool) -> int:
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
