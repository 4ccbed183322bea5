"""Connects the terminal of this process to a script: keys, Ctrl-C and window size."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import sys
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from stoker.agent.machine.machine import NodeFolder
from stoker.agent.shipping.logs import Masking
from stoker.agent.visits.terminal import AT_ONCE, HEAD, KEYS, SIZE, SIZES
from stoker.model.node.visit import Inside
from stoker.model.wire import load

NOBODY = 3  # the exit code where no script has a terminal here, or it has ended


def attach(folder: NodeFolder) -> int:
    """Returns when the script has ended."""
    script = socket.socket(socket.AF_UNIX)
    try:
        os.chdir(folder.root)  # socket paths must be short
        script.connect(folder.terminal.name)
    except OSError:
        return NOBODY
    wakes, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGWINCH, lambda *_: None)
    keyboard = sys.stdin.fileno()
    with script, _raw(keyboard), suppress(BrokenPipeError, ConnectionResetError):
        return 0 if _pass_on(script, keyboard, wakes) else NOBODY
    return 0


def _pass_on(script: socket.socket, keyboard: int, wakes: int) -> bool:
    """Whether the script, or its relay, has sent anything."""
    _tell_size(script, keyboard)
    heard, reads = False, [script.fileno(), keyboard, wakes]
    while True:
        ready = select.select(reads, [], [])[0]
        if wakes in ready:
            os.read(wakes, AT_ONCE)
            _tell_size(script, keyboard)
        if keyboard in ready:
            typed = os.read(keyboard, AT_ONCE)
            if not typed:
                reads.remove(keyboard)
            _send(script, KEYS, typed)
        if script.fileno() in ready:
            piece = script.recv(AT_ONCE)
            if not piece:
                return heard
            heard = True
            _show(piece)


def _tell_size(script: socket.socket, terminal: int) -> None:
    with suppress(OSError):
        rows, columns = struct.unpack("HHHH", fcntl.ioctl(terminal, termios.TIOCGWINSZ, b"\0" * 8))[:2]
        if rows and columns:
            _send(script, SIZE, SIZES.pack(rows, columns))


def _send(script: socket.socket, kind: bytes, data: bytes) -> None:
    script.sendall(HEAD.pack(kind, len(data)) + data)


def _show(piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(1, rest) :]


@contextmanager
def _raw(terminal: int) -> Iterator[None]:
    """Every key goes to the script, Ctrl-C too. Restores the terminal afterwards."""
    if not os.isatty(terminal):
        yield
        return
    before = termios.tcgetattr(terminal)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        tty.setraw(terminal)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


# Runs a command, or a shell, in the folder and with the variables of the run on this machine.

NOT_RUN = 125  # clear of the command's own exit codes
_SHELLS = ("/bin/bash", "/bin/sh")
_OWN = ("TERM", "COLORTERM", "LANG", "LC_ALL", "SSH_CONNECTION", "SSH_TTY")  # from the visitor's terminal


def enter(folder: NodeFolder, words: Sequence[str], variables: Mapping[str, str], secrets: Sequence[str] = ()) -> int:
    """Returns only where it failed, or with `secrets`: then the output of the command is held back to its end, with
    these masked."""
    try:
        inside = load(Inside, folder.inside.read_bytes())
        os.chdir(inside.folder)
    except OSError:
        return refuse("there is no run on this machine now")
    env = {**inside.env, **{name: variables[name] for name in _OWN if name in variables}}
    if secrets:
        return _masked(words, env, Masking(secrets))
    words = words or (next(shell for shell in _SHELLS if Path(shell).exists()), "-i")
    try:
        os.execvpe(words[0], list(words), env)
    except OSError as error:
        return refuse(f"{words[0]}: {error.strerror}", 127 if isinstance(error, FileNotFoundError) else 126)


def _masked(words: Sequence[str], env: Mapping[str, str], masking: Masking) -> int:
    import subprocess  # here, because only this way in needs it

    try:
        done = subprocess.run(words, env=env, stdin=subprocess.DEVNULL, capture_output=True)
    except OSError as error:
        return refuse(f"{words[0]}: {error.strerror}", 127 if isinstance(error, FileNotFoundError) else 126)
    for stream, said in ((sys.stdout, done.stdout), (sys.stderr, done.stderr)):
        stream.buffer.write(masking.whole(said))
        stream.flush()
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def refuse(why: str, code: int = NOT_RUN) -> int:
    print(f"stoker: {why}", file=sys.stderr)  # noqa: T201  # to whoever came in
    return code
