"""What `run` and `rerun` do with a new run: print its name, follow it, detach on Ctrl-C, and exit as the script did."""

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
from stoker.client.api.handle import RunHandle
from stoker.errors import Conflict, StokerError
from stoker.model.run.run import Run
from stoker.model.workspace.store import is_twin

SECOND_THOUGHT_S = 3.0


def attend(client: Client, run: RunHandle, *header: str, detach: bool, as_json: bool) -> int:
    """The exit code. With `detach`, only the run's name, or its facts, are printed."""
    printer: Printer = JsonPrinter() if as_json else TextPrinter(live=True, exact=True)
    printer.event("submitted", run.facts)
    for line in header:
        printer.note(line)
    if is_twin(run.facts.job.on):
        printer.note("running on the twin: nothing is billed; prices shown are Azure's")
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


def conclude(client: Client, run: RunHandle, printer: Printer, facts: Run) -> int:
    """Prints how the run ended, and returns its exit code."""
    printer.event("ended", facts)
    first, *more = ending.lines(facts, Path.cwd())
    for line in (paint(first, STYLES[facts.state]), *more):
        printer.note(line)
    if facts.attempt and facts.attempt.offer and not facts.kept_until:
        from stoker.cli.commands.act import cleanup  # needed only for machines that cost money

        printer.note(cleanup.left(client, facts))
        printer.note(cleanup.cost(run))
    return ending.exit_code(facts)


def _with_outputs(run: RunHandle, facts: Run) -> Run:
    """A server on this computer has already written the outputs to their folder; from a remote one they are fetched
    now."""
    if facts.land_in or not (facts.output_files or facts.brings_checkpoint):
        return facts
    try:
        return replace(facts, landed=str(run.fetch()))
    except StokerError as error:
        return replace(facts, land_problem=error.message)


def _step_back(run: RunHandle, watch: LiveView) -> int:
    """Ctrl-C ends the watching, not the run. A second one, at any moment from here on, asks whether to cancel the
    run."""
    printer, name = watch.printer, run.name
    try:
        printer.event("detached", watch.facts)
        if watch.facts.state.ended:
            printer.note(f"{name} has ended; its outputs are still being downloaded")
            return INTERRUPTED
        printer.note(f"detached: {name} continues")
        printer.note(f"  stoker logs -f {name}    follow it again")
        printer.note(f"  stoker cancel {name}     cancel it")
        if terminal.interactive():
            say(f"press Ctrl-C again within {SECOND_THOUGHT_S:.0f} s to cancel the run")
            time.sleep(SECOND_THOUGHT_S)
    except KeyboardInterrupt:
        if terminal.interactive():
            say()
            _offer_to_cancel(run)
    return INTERRUPTED


def _offer_to_cancel(run: RunHandle) -> None:
    if not terminal.ask(f"cancel {run.name}?"):
        return
    try:
        run.cancel()
        say(f"cancelling {run.name}")
    except Conflict as error:
        say(error.message)
