"""`stoker ssh`: a shell on the node of a run, and its ports on this computer."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Sequence

import click

from stoker.cli.command import Command, json_option, run_names
from stoker.cli.failure import INTERRUPTED
from stoker.cli.terminal import is_terminal, say, show_json
from stoker.client.client import Client
from stoker.client.handle import Run
from stoker.client.reach import Call, read_forward, ssh_words
from stoker.errors import BadInput, Conflict
from stoker.model.entrance import Entrance


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
    from stoker.client.forwarding import Forwarding  # only ports need it

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
