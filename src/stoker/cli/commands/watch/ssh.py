"""`stoker ssh` and `stoker exec`: a shell, ports or a command on the node of a run."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

import click

from stoker.cli.command import Command, json_option, run_names
from stoker.cli.view.failure import INTERRUPTED
from stoker.cli.view.logview import view_for
from stoker.cli.view.terminal import is_terminal, say, show_json, write
from stoker.client.api.client import Client
from stoker.client.api.handle import Run
from stoker.client.api.reach import Call, Visit, read_forward, ssh_words
from stoker.errors import BadInput, Conflict, StokerError
from stoker.model.node.visit import Entrance, Frame, Kind


@click.command(
    cls=Command,
    examples=[
        ("stoker ssh ants-7", "a shell in the script's folder"),
        ("stoker ssh ants-7 -L 6006:localhost:6006", "and its TensorBoard at http://localhost:6006"),
        ("stoker ssh ants-7 -N -L 6006", "the port alone, until Ctrl-C"),
    ],
)
@click.argument("name", metavar="RUN", shell_complete=run_names)
@click.option(
    "-L", "forwards", multiple=True, metavar="PORT:HOST:PORT", help="Bring a port of the node here; may be repeated."
)
@click.option("-N", "only_forward", is_flag=True, help="No shell: only the ports of -L.")
@click.option("-i", "identity", default="", metavar="FILE", help="Log in with this private key.")
@json_option()
@click.argument("words", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
def command(
    name: str, forwards: tuple[str, ...], only_forward: bool, identity: str, as_json: bool, words: tuple[str, ...]
) -> int:
    """Open a shell on the node of a run.

    It is in the script's folder and has its variables, but for the run's secrets. OpenSSH's own client is used, with
    your keys and agent; on a node of this computer there is nothing to log in to. Machines of a cloud let you in only
    where your workspace opens a port for it; `stoker exec` works without one. With --json the way in is printed, for
    other programs to take, and not taken.
    """
    if only_forward and (words or not forwards):
        raise BadInput("-N is for ports alone", hint=f"stoker ssh {name} -N -L 6006:localhost:6006")
    call = Call(
        words,
        tuple(read_forward(one) for one in forwards),
        only_forward,
        identity=identity,
        terminal=is_terminal(sys.stdin),
    )
    client = Client.connect()
    if as_json:
        entrance, started = _way(client, client.run(name), call)
        show_json({"entrance": entrance, "words": started})
        return 0
    return into(client, client.run(name), call)


def into(client: Client, run: Run, call: Call) -> int:
    """The exit code of the shell or command."""
    entrance, words = _way(client, run, call)
    return _here(words, run, call) if entrance.here else _become(words)


def _way(client: Client, run: Run, call: Call) -> tuple[Entrance, list[str]]:
    """How to get there, and the words to start. Raises, in words, where there is no way."""
    entrance, key = run.entrance()
    if entrance.here and not client.settings.local:
        raise Conflict(f"the node of {run.name} is on its server's computer", hint="log in there, and try it there")
    if entrance.here:
        return entrance, [*entrance.words, *call.words]
    if not shutil.which("ssh"):
        raise BadInput("there is no `ssh` on this computer", hint="install OpenSSH's client, such as openssh-client")
    folder = client.settings.home.root / "ssh"
    folder.mkdir(mode=0o700, exist_ok=True)
    return entrance, ssh_words(entrance, key, call, folder / "known_hosts")


def _here(words: Sequence[str], run: Run, call: Call) -> int:
    from stoker.client.api.reach import Forwarding  # only ports need it

    itself = [one for one in call.forwards if one.is_itself]
    for one in itself:
        say(f"{run.name} runs on this computer: its port {one.port} is this computer's")
    opened = [Forwarding(one) for one in call.forwards if one not in itself]
    if not call.only_forward:
        return _become(words)
    try:
        if opened:
            say("Ctrl-C closes the ports")
            threading.Event().wait()
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _become(words: Sequence[str]) -> int:
    """A child, since ports may be open here. Ctrl-C is the command's to heed: it gets it from the same terminal."""
    import signal  # here, with the process
    import subprocess

    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        code = subprocess.call(words)
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code


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
def execute(interactive: bool, tty: bool, as_json: bool, name: str, words: tuple[str, ...]) -> int:
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
        # a plain command has no use for it
        from stoker.client.api.reach import Call

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
