"""`stoker exec`: a command on the node of a run."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from types import FrameType

import click

from stoker.cli.command import Command, json_option, run_names
from stoker.cli.logview import view_for
from stoker.cli.terminal import is_terminal, say, show_json, write
from stoker.client.client import Client
from stoker.client.visit import Visit
from stoker.errors import BadInput, StokerError
from stoker.model.frame import Frame, Kind


@click.command(
    cls=Command,
    context_settings={"allow_interspersed_args": False},
    examples=[
        ("stoker exec ants-7 -- nvidia-smi", "what its GPU does"),
        ("stoker exec ants-7 -- sh -c 'ls -l checkpoints'", "a line for a shell"),
        ("stoker exec -it ants-7 -- python", "with a terminal, where `stoker ssh` works"),
    ],
)
@click.option("-i", "--interactive", is_flag=True, help="Pass on what you type; needs a way in as `stoker ssh` does.")
@click.option("-t", "--tty", is_flag=True, help="Give the command a terminal; needs the same.")
@json_option()
@click.argument("name", metavar="RUN", shell_complete=run_names)
@click.argument("words", metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED)
def command(interactive: bool, tty: bool, as_json: bool, name: str, words: tuple[str, ...]) -> int:
    """Run a command on the node of a run.

    It runs beside the script, in its folder and with its variables, on a node with no open port too: the store carries
    what it prints. Its exit code is passed on (125 where it could not be run). Ctrl-C ends it there; a second one
    leaves at once. The values of the run's secrets are starred out. With --json, before RUN, each line is an object: a
    piece of a stream, or at last the exit code.
    """
    words = words[1:] if words[:1] == ("--",) else words
    if not words:
        raise BadInput("there is no command to run", hint=f"stoker exec {name} -- nvidia-smi")
    client = Client.connect()
    run = client.run(name)
    if interactive or tty:
        from stoker.cli.ssh import into  # a plain command has no use for it
        from stoker.client.reach import Call

        return into(client, run, Call(words, terminal=tty))
    visit, streams = run.exec(*words), _Streams()
    with _Interrupts(visit):
        for frame in visit.frames():
            (_pass_on_as_json if as_json else streams.pass_on)(frame)
    streams.finish()
    assert visit.ended
    if as_json:
        show_json(visit.ended)
    elif visit.ended.message:
        say(f"stoker: {visit.ended.message}")
    return visit.ended.exit_code


class _Streams:
    """What the command printed, stream by stream: every byte for a file or a pipe, and nothing that acts for a
    terminal."""

    def __init__(self) -> None:
        self._views = {
            kind: view_for(raw=True, terminal=is_terminal(stream), live=True)
            for kind, stream in ((Kind.OUT, sys.stdout), (Kind.ERR, sys.stderr))
        }

    def pass_on(self, frame: Frame) -> None:
        if view := self._views.get(frame.kind):
            write(view.feed(frame.data), err=frame.kind is Kind.ERR)
        elif frame.data:
            say(frame.data.decode(errors="replace"))

    def finish(self) -> None:
        for kind, view in self._views.items():
            write(view.finish(), err=kind is Kind.ERR)


def _pass_on_as_json(frame: Frame) -> None:
    if frame.data:
        show_json({"stream": _STREAMS[frame.kind], "text": frame.data.decode(errors="replace")})


_STREAMS = {Kind.OUT: "stdout", Kind.ERR: "stderr", Kind.NOTE: "note"}


class _Interrupts:
    """The first Ctrl-C is for the command there, whose last words are still wanted. The next is for this program."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit

    def __enter__(self) -> None:
        import signal  # here, with the handler

        self._signal = signal
        self._before = signal.signal(signal.SIGINT, self._pass_on)

    def __exit__(self, *_: object) -> None:
        self._signal.signal(self._signal.SIGINT, self._before)

    def _pass_on(self, _number: int, _frame: FrameType | None) -> None:
        self._signal.signal(self._signal.SIGINT, self._before)
        threading.Thread(target=self._end, daemon=True).start()

    def _end(self) -> None:
        with suppress(StokerError):
            self._visit.end()
