"""What `run` and `rerun` do with a new run: follow it, in this terminal or as its own, and report its end."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from stoker.cli.view import live, summary, terminal
from stoker.cli.view.live import LiveView
from stoker.cli.view.printer import JsonPrinter, Printer, TextPrinter
from stoker.cli.view.terminal import INTERRUPTED, one_line, paint, say, show, write
from stoker.cli.view.words import STYLES
from stoker.client.api.client import Client
from stoker.client.api.handle import RunHandle
from stoker.client.settings import from_environment
from stoker.errors import BadInput, Conflict, StokerError
from stoker.model.cause import Cause
from stoker.model.orders import Terminal
from stoker.model.run.run import Run, RunState
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
    first, *more = summary.lines(facts, Path.cwd())
    for line in (paint(first, STYLES[facts.state]), *more):
        printer.note(line)
    if facts.attempt and facts.attempt.offer and not facts.kept_until:
        from stoker.cli.commands.act import cleanup  # needed only for machines that cost money

        printer.note(cleanup.left(client, facts))
        printer.note(cleanup.cost(run))
    return summary.exit_code(facts)


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


_PATIENCE_S = 2.0  # until the reason for waiting is printed
_NOBODY = 3  # the exit code of attaching when the script has already ended


def own_terminal(*, detach: bool, as_json: bool, twin: bool) -> Terminal:
    """The terminal's size. Raises BadInput if there is no terminal for the script."""
    if detach or as_json or twin:
        other = "--detach" if detach else "--json" if as_json else "--twin"
        raise BadInput(
            f"--interactive and {other} cannot be combined", hint="use one of them", cause=Cause.OPTIONS_CONFLICT
        )
    if not (terminal.interactive() and terminal.is_terminal(sys.stdout)):
        hint = "give the script its input in the command: `--set 'run=python train.py < answers.txt'`"
        raise BadInput(
            "--interactive requires a terminal, but stdin, stdout or stderr is not one",
            hint=hint,
            cause=Cause.NO_TERMINAL,
        )
    settings = from_environment()
    if not settings.local:
        raise BadInput(
            "--interactive requires this computer's own server", hint="unset STOKER_SERVER", cause=Cause.ELSEWHERE
        )
    size = os.get_terminal_size(sys.stdout.fileno())  # of the window, whatever COLUMNS says
    return Terminal(settings.variable("TERM") or "dumb", size.lines, size.columns)


def attend_in_foreground(client: Client, run: RunHandle, *header: str) -> int:
    """The exit code. Every attempt gets the terminal in turn."""
    for line in header:
        say(line)
    say("the script uses this terminal: it receives Ctrl-C, and closing the terminal ends it")
    try:
        _stand_by(client, run)
    except KeyboardInterrupt:  # between two scripts: the next one would have no terminal
        with suppress(StokerError):
            run.cancel()
        say(f"cancelling {run.name}")
        return INTERRUPTED
    return conclude(client, run, TextPrinter(live=True), run.facts)


def _stand_by(client: Client, run: RunHandle) -> None:
    shown, told = 0, ""
    while run.facts.open:
        for facts in run.changes(_PATIENCE_S):
            attempt = facts.attempt
            if attempt and attempt.number > shown and (attempt.started_at or attempt.state.over):
                shown = attempt.number
                _give(run, facts, shown)
        reason = live.why(client, run.facts) if run.state is RunState.QUEUED else ""
        if reason and reason != told:
            told = reason
            say(f"waiting: {one_line(reason)}")


def _give(run: RunHandle, facts: Run, attempt: int) -> None:
    """Attaches to the script of this attempt until it ends. If it has ended before, its output is in the log."""
    words: tuple[str, ...] = ()
    if not facts.state.ended:
        try:
            words = run.entrance()[0].terminal
        except Conflict:  # its node is gone
            words = ()
    if not words or _become(words) == _NOBODY:
        for piece in run.logs(attempt=attempt, follow=True):
            write(piece)


def _become(words: tuple[str, ...]) -> int:
    import signal  # here, with the process
    import subprocess

    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return subprocess.call(words)
    finally:
        signal.signal(signal.SIGINT, before)
