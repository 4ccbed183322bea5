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
from stoker.client.api.handle import RunHandle
from stoker.client.settings import from_environment
from stoker.errors import BadInput, Conflict, StokerError
from stoker.model.node.orders import Terminal
from stoker.model.run.run import Run, RunState

_PATIENCE_S = 2.0  # until the reason for waiting is printed
_NOBODY = 3  # the exit code of attaching when the script has already ended


def own_terminal(*, detach: bool, as_json: bool, twin: bool) -> Terminal:
    """The terminal's size. Raises BadInput if there is no terminal for the script."""
    if detach or as_json or twin:
        other = "--detach" if detach else "--json" if as_json else "--twin"
        raise BadInput(f"--interactive and {other} cannot be combined", hint="use one of them")
    if not (terminal.interactive() and terminal.is_terminal(sys.stdout)):
        hint = "give the script its input in the command: `--set 'run=python train.py < answers.txt'`"
        raise BadInput("--interactive requires a terminal, but stdin, stdout or stderr is not one", hint=hint)
    settings = from_environment()
    if not settings.local:
        raise BadInput("--interactive requires this computer's own server", hint="unset STOKER_SERVER")
    size = os.get_terminal_size(sys.stdout.fileno())  # of the window, whatever COLUMNS says
    return Terminal(settings.variable("TERM") or "dumb", size.lines, size.columns)


def attend(client: Client, run: RunHandle, *header: str) -> int:
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
