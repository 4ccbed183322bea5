"""What `run` and `rerun` do once there is a run: say so, stand by, step back on Ctrl-C, and end as the script did."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from stoker.cli.view import ending, live, terminal
from stoker.cli.view.failure import INTERRUPTED
from stoker.cli.view.live import LiveView
from stoker.cli.view.printer import JsonPrinter, Printer, TextPrinter
from stoker.cli.view.terminal import paint, say, show
from stoker.cli.view.words import STYLES
from stoker.client.api.client import Client
from stoker.client.api.handle import Run
from stoker.errors import Conflict, StokerError
from stoker.model.run.run import Run as Facts
from stoker.model.workspace.store import is_twin

SECOND_THOUGHT_S = 3.0


def attend(client: Client, run: Run, *header: str, detach: bool, as_json: bool) -> int:
    """The exit code. With `detach` the run's name, or its facts, is all there is to print."""
    printer: Printer = JsonPrinter() if as_json else TextPrinter(live=True, exact=True)
    printer.event("submitted", run.facts)
    for line in header:
        printer.note(line)
    if is_twin(run.facts.job.on):
        printer.note("on the twin: nothing of this costs money, and prices are what they would be")
    if run.facts.alone:
        printer.note(run.facts.alone)
    if detach:
        if not as_json:
            show(run.name)
        printer.note(f"next: stoker logs -f {run.name}")
        return 0
    watch = LiveView(run, printer, partial(live.why, client))
    try:
        facts = _with_outputs(run, watch.until_end())
    except KeyboardInterrupt:
        return _step_back(run, watch)
    return conclude(client, run, printer, facts)


def conclude(client: Client, run: Run, printer: Printer, facts: Facts) -> int:
    """Says how the run ended, and gives its exit code."""
    printer.event("ended", facts)
    first, *more = ending.lines(facts, Path.cwd())
    for line in (paint(first, STYLES[facts.state]), *more):
        printer.note(line)
    if facts.attempt and facts.attempt.offer and not facts.kept_until:
        from stoker.cli.commands.act import cleanup  # only a machine that costs something has to be seen off

        printer.note(cleanup.left(client, facts))
        printer.note(cleanup.cost(run))
    return ending.exit_code(facts)


def _with_outputs(run: Run, facts: Facts) -> Facts:
    """A server on this computer has brought the outputs to their folder; from one elsewhere they are fetched now."""
    if facts.land_in or not (facts.output_files or facts.brings_checkpoint):
        return facts
    try:
        return replace(facts, landed=str(run.fetch()))
    except StokerError as error:
        return replace(facts, land_problem=error.message)


def _step_back(run: Run, watch: LiveView) -> int:
    """Ctrl-C ends the watching, not the run. A second one, at any moment from here on, asks whether to end the run."""
    printer, name = watch.printer, run.name
    try:
        printer.event("detached", watch.facts)
        if watch.facts.state.ended:
            printer.note(f"{name} has ended; its outputs are still being brought back")
            return INTERRUPTED
        printer.note(f"detached: {name} goes on")
        printer.note(f"  stoker logs -f {name}    come back to it")
        printer.note(f"  stoker cancel {name}     end it")
        if terminal.interactive():
            say(f"cancel it? a second Ctrl-C within {SECOND_THOUGHT_S:.0f} s asks")
            time.sleep(SECOND_THOUGHT_S)
    except KeyboardInterrupt:
        if terminal.interactive():
            say()
            _offer_to_cancel(run)
    return INTERRUPTED


def _offer_to_cancel(run: Run) -> None:
    if not terminal.ask(f"cancel {run.name}?"):
        return
    try:
        run.cancel()
        say(f"{run.name} is being cancelled")
    except Conflict as error:
        say(error.message)
