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
from stoker.cli.view.logview import view_for
from stoker.cli.view.terminal import INTERRUPTED, is_terminal, say, show, show_json, write
from stoker.client.api.client import Client
from stoker.client.api.handle import RunHandle
from stoker.client.api.reach import Call, VisitHandle, read_forward, ssh_words
from stoker.client.report.explain import stack_lines
from stoker.errors import BadInput, Conflict, StokerError
from stoker.model.cause import Cause
from stoker.model.node import Entrance, Frame, FrameKind


@click.command(
    cls=Command,
    examples=[
        ("stoker ssh ants-7", "open a shell in the script's folder"),
        ("stoker ssh ants-7 -L 6006:localhost:6006", "also forward its TensorBoard to http://localhost:6006"),
        ("stoker ssh ants-7 -N -L 6006", "only forward the port, until Ctrl-C"),
    ],
)
@click.argument("name", metavar="RUN", shell_complete=run_names)
@click.option(
    "-L",
    "forwards",
    multiple=True,
    metavar="PORT:HOST:PORT",
    help="Forward a port of the node to this computer; repeatable.",
)
@click.option("-N", "only_forward", is_flag=True, help="Open no shell; only forward the ports of -L.")
@click.option("-i", "identity", default="", metavar="FILE", help="Log in with this private key.")
@json_option()
@click.argument("words", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
def command(
    name: str, forwards: tuple[str, ...], only_forward: bool, identity: str, as_json: bool, words: tuple[str, ...]
) -> int:
    """Open a shell on the node of a run.

    The shell starts in the script's folder with its variables, except the run's secrets. It uses OpenSSH's client with
    your keys and agent; a node on this computer requires no login. Machines of a cloud accept ssh only if your
    workspace opens a port for it; `stoker exec` works without. With --json the connection details are printed, for
    other programs, and no connection is made.
    """
    if only_forward and (words or not forwards):
        raise BadInput(
            "-N requires -L", hint=f"stoker ssh {name} -N -L 6006:localhost:6006", cause=Cause.OPTIONS_CONFLICT
        )
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


def into(client: Client, run: RunHandle, call: Call) -> int:
    """The exit code of the shell or command."""
    entrance, words = _way(client, run, call)
    return _here(words, run, call) if entrance.here else _become(words)


def _way(client: Client, run: RunHandle, call: Call) -> tuple[Entrance, list[str]]:
    """The command that connects. Raises an error with the reason if there is no connection."""
    entrance, key = run.entrance()
    if entrance.here and not client.settings.local:
        raise Conflict(
            f"the node of {run.name} is on its server's computer",
            hint="log in there, and run the command there",
            cause=Cause.ELSEWHERE,
        )
    if entrance.here:
        return entrance, [*entrance.words, *call.words]
    if not shutil.which("ssh"):
        raise BadInput(
            "`ssh` is not installed on this computer", hint="install OpenSSH's client, such as openssh-client"
        )
    folder = client.settings.home.root / "ssh"
    folder.mkdir(mode=0o700, exist_ok=True)
    return entrance, ssh_words(entrance, key, call, folder / "known_hosts")


def _here(words: Sequence[str], run: RunHandle, call: Call) -> int:
    from stoker.client.api.reach import Forwarding  # needed only to forward ports

    itself = [one for one in call.forwards if one.is_itself]
    for one in itself:
        say(f"{run.name} runs on this computer: its port {one.port} is already local")
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
    """A child process, since ports may be open here. It receives Ctrl-C itself, from the same terminal."""
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
        ("stoker exec ants-7 -- nvidia-smi", "show its GPU"),
        ("stoker exec ants-7 -- sh -c 'ls -l checkpoints'", "run a shell command"),
        ("stoker exec -it ants-7 -- python", "with a terminal, if `stoker ssh` works"),
    ],
)
@click.option(
    "-i", "--interactive", is_flag=True, help="Forward your input; requires ssh access, as `stoker ssh` does."
)
@click.option("-t", "--tty", is_flag=True, help="Give the command a terminal; requires ssh access, too.")
@click.option("--node", default=0, type=click.IntRange(0), metavar="N", help="The node of a gang [default: 0].")
@json_option()
@click.argument("name", metavar="RUN", shell_complete=run_names)
@click.argument("words", metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED)
def execute(interactive: bool, tty: bool, node: int, as_json: bool, name: str, words: tuple[str, ...]) -> int:
    """Run a command on the node of a run.

    The command runs beside the script, in its folder and with its variables. It also works on a node without an open
    port: its output comes through the store. Its exit code is returned (125 if it could not run). Ctrl-C ends it; a
    second Ctrl-C returns at once. Values of the run's secrets are masked. With --json, before RUN, each line is an
    object: a chunk of a stream, or the exit code at the end.
    """
    words = words[1:] if words[:1] == ("--",) else words
    if not words:
        raise BadInput("no command given", hint=f"stoker exec {name} -- nvidia-smi", cause=Cause.NO_COMMAND)
    client = Client.connect()
    run = client.run(name)
    if interactive or tty:
        # not needed for a plain command
        from stoker.client.api.reach import Call

        return into(client, run, Call(words, terminal=tty))
    visit, streams = run.exec(*words, node=node), _Streams()
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


@click.command(
    cls=Command,
    examples=[
        ("stoker stacks ants-7", "where each rank is now, on all nodes"),
        ("stoker stacks ants-7 --json", "for a program"),
    ],
)
@click.argument("name", metavar="RUN", shell_complete=run_names)
@json_option()
def stacks(name: str, as_json: bool) -> None:
    """Show the Python stack of every rank of a run, on all nodes.

    The ranks continue: they write their stacks when asked, with Python's faulthandler, and py-spy is used where that is
    not possible. Nothing has to hang; a run that does is reported by itself, in `stoker explain`.
    """
    found = Client.connect().run(name).stacks()
    if as_json:
        show_json({"ranks": found})
        return
    for line in stack_lines([one for one in found if one.rank >= 0]):
        show(line.removeprefix("  "))
    for one in found:
        if one.rank < 0:
            say(one.note)


class _Streams:
    """Prints the command's output, stream by stream: every byte for a file or a pipe; on a terminal, without control
    sequences."""

    def __init__(self) -> None:
        self._views = {
            kind: view_for(raw=True, terminal=is_terminal(stream), live=True)
            for kind, stream in ((FrameKind.OUT, sys.stdout), (FrameKind.ERR, sys.stderr))
        }

    def pass_on(self, frame: Frame) -> None:
        if view := self._views.get(frame.kind):
            write(view.feed(frame.data), err=frame.kind is FrameKind.ERR)
        elif frame.data:
            say(frame.data.decode(errors="replace"))

    def finish(self) -> None:
        for kind, view in self._views.items():
            write(view.finish(), err=kind is FrameKind.ERR)


def _pass_on_as_json(frame: Frame) -> None:
    if frame.data:
        show_json({"stream": _STREAMS[frame.kind], "text": frame.data.decode(errors="replace")})


_STREAMS = {FrameKind.OUT: "stdout", FrameKind.ERR: "stderr", FrameKind.NOTE: "note"}


class _Interrupts:
    """The first Ctrl-C is for the remote command, whose last output is still wanted. The next is for this program."""

    def __init__(self, visit: VisitHandle) -> None:
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
