"""`stoker run --interactive`: the script has this terminal until it ends."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from stoker.cli.commands.start.attend import conclude
from stoker.cli.view import live, terminal
from stoker.cli.view.failure import INTERRUPTED
from stoker.cli.view.printer import TextPrinter
from stoker.cli.view.safetext import one_line
from stoker.cli.view.terminal import say, write
from stoker.client.api.client import Client
from stoker.client.api.handle import Run
from stoker.client.settings import from_environment
from stoker.errors import BadInput, Conflict, StokerError
from stoker.model.node.orders import Terminal
from stoker.model.run.run import Run as Facts
from stoker.model.run.run import RunState

_PATIENCE_S = 2.0  # before it is said what a run waits for
_NOBODY = 3  # what the way in exits with where the script has ended before


def own_terminal(*, detach: bool, as_json: bool, twin: bool) -> Terminal:
    """Raises BadInput where there is none to give to a script."""
    if detach or as_json or twin:
        other = "--detach" if detach else "--json" if as_json else "--twin"
        raise BadInput(f"--interactive and {other} do not go together", hint="use one of them")
    if not (terminal.interactive() and terminal.is_terminal(sys.stdout)):
        hint = "give the script its input in the command: `--set 'run=python train.py < answers.txt'`"
        raise BadInput("--interactive needs a terminal, and stdin, stdout or stderr is not one", hint=hint)
    settings = from_environment()
    if not settings.local:
        raise BadInput("--interactive needs this computer's own server", hint="unset STOKER_SERVER")
    size = os.get_terminal_size(sys.stdout.fileno())  # of the window, whatever COLUMNS says
    return Terminal(settings.variable("TERM") or "dumb", size.lines, size.columns)


def attend(client: Client, run: Run, *header: str) -> int:
    """The exit code. Every attempt gets the terminal in its turn."""
    for line in header:
        say(line)
    say("the script has this terminal: Ctrl-C goes to it, and closing the terminal ends it")
    try:
        _stand_by(client, run)
    except KeyboardInterrupt:  # between scripts: nobody would be there for the next one
        with suppress(StokerError):
            run.cancel()
        say(f"{run.name} is being cancelled")
        return INTERRUPTED
    return conclude(client, run, TextPrinter(live=True), run.facts)


def _stand_by(client: Client, run: Run) -> None:
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


def _give(run: Run, facts: Facts, attempt: int) -> None:
    """To the script of this attempt, until it ends. One that has ended before left its output in the log."""
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
