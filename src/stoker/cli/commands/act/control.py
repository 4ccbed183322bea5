"""`stoker cancel`, `budget`, `evict` and `release`: commands to a run that exists."""

from __future__ import annotations

import click

from stoker.cli.command import Command, json_option, run_argument, run_arguments
from stoker.cli.view import terminal
from stoker.cli.view.terminal import say, show_json
from stoker.cli.view.words import ENDED
from stoker.client.api.client import Client
from stoker.client.api.handle import RunHandle
from stoker.client.report.spelling import usd
from stoker.errors import BadInput, Conflict
from stoker.model.cause import Cause
from stoker.model.job.fields import Problems
from stoker.model.job.values import Duration
from stoker.model.run.run import RunState

_PATIENCE_S = 60.0  # an agent gives the script 10 s, and is killed after 45


@click.command(
    cls=Command,
    examples=[
        ("stoker cancel ants-7", "cancel one run"),
        ("stoker cancel ants-7 ants-8 --yes", "cancel two without confirmation"),
    ],
)
@run_arguments()
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option()
def cancel(names: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Cancel runs.

    The script gets SIGTERM and ten seconds to exit; the outputs it has written are kept. If one of the runs does not
    exist or has ended, none is cancelled.
    """
    client = Client.connect()
    runs = [client.run(name) for name in dict.fromkeys(names)]
    ended = [run for run in runs if run.state.ended]
    if ended:
        raise Conflict(
            f"cannot cancel `{ended[0].name}`: it {ENDED[ended[0].state]}",
            hint=f"stoker show {ended[0].name}",
            cause=Cause.RUN_ENDED,
        )
    question = f"cancel {', '.join(run.name for run in runs)}?"
    if not yes and not as_json and terminal.interactive() and not terminal.ask(question):
        return 1
    for run in runs:
        run.cancel()
    for run in runs:
        run.wait(_PATIENCE_S)
        if not as_json:
            say(f"{run.name} {ENDED.get(run.state, f'is still {run.state}; it ends soon')}")
    if as_json:
        show_json({"runs": [run.facts for run in runs]})
    return 0


NONE = "none"


@click.command(
    cls=Command,
    examples=[
        ("stoker budget ants-7", "show its budget and its cost so far"),
        ("stoker budget ants-7 10", "set it to 10 dollars in total; a paused run resumes"),
        ("stoker budget ants-7 none", "remove the budget"),
    ],
)
@run_argument()
@click.argument("amount", required=False)
@json_option()
def budget(name: str, amount: str | None, as_json: bool) -> int:
    """Show or set the budget of a run.

    AMOUNT is in US dollars, for the whole run including its cost so far. A run that is paused because its budget was
    spent resumes from where it stopped. A run that has cost more than AMOUNT saves and pauses.
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


def lines(run: RunHandle) -> list[str]:
    state = run.budget()
    limit = f"of {usd(state.budget_usd)}" if state.budget_usd is not None else "and has no budget"
    said = [f"{run.name} has cost {usd(state.spent_usd)} {limit}"]
    if state.usd_per_hour:
        said.append(
            f"it costs {usd(state.usd_per_hour)} an hour; {usd(state.reserve_usd)} are reserved to stop it in time"
        )
    if run.state is RunState.PAUSED:
        said += [f"it is paused: {run.facts.reason}", f"hint: {run.facts.hint}"]
    elif not run.state.ended:
        said.append(f"it is {run.state}")
    return said


@click.command(
    cls=Command,
    examples=[
        ("stoker evict ants-7", "with 30 s notice, as Azure gives"),
        ("stoker evict ants-7 --notice 0s", "without notice"),
        ("stoker evict ants-7 --withdraw", "withdraw the notice: the machine stays"),
    ],
)
@run_argument()
@click.option("--notice", default="30s", metavar="TIME", help="How long in advance the run is notified; 0s: no notice.")
@click.option("--withdraw", is_flag=True, help="Withdraw a notice.")
@json_option()
def evict(name: str, notice: str, withdraw: bool, as_json: bool) -> int:
    """Evict a run's machine, to see how the run recovers.

    The run gets the notice, then all its processes on the machine are killed, and it resumes on another machine from
    its last checkpoint.
    """
    run = Client.connect().run(name)
    run.evict(seconds(notice), withdraw=withdraw)
    if as_json:
        show_json({"run": run.facts})
    elif withdraw:
        say(f"withdrew the eviction notice of {run.name}")
    else:
        say(f"{run.name} will be evicted in {notice}; follow it with: stoker logs -f {run.name}")
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
        ("stoker release ants-7", "release the node of ants-7"),
        ("stoker release", "release the node of the newest run"),
    ],
)
@run_argument()
@json_option()
def release(name: str, as_json: bool) -> int:
    """Release the node that was kept after a failed run.

    With `keep_failed` in the job, or `stoker run --keep-failed 30m`, the node of a run that fails is kept for that
    time. It is billed like before; this command releases it now.
    """
    run = Client.connect().run(name).release()
    if as_json:
        show_json({"run": run.facts})
    else:
        say(f"released the node of {run.name}; check that nothing is left with: stoker cleanup")
    return 0
