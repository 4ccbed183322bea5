"""Makes the terminal of this process that of a script: keys, Ctrl-C and the size of the window go there."""

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
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from stoker.agent.nodefolder import NodeFolder
from stoker.agent.relay import AT_ONCE, HEAD, KEYS, SIZE, SIZES

NOBODY = 3  # the exit code where no script has a terminal here, be it that it has ended


def attach(folder: NodeFolder) -> int:
    """Returns when the script has ended."""
    script = socket.socket(socket.AF_UNIX)
    try:
        os.chdir(folder.root)  # the path of a socket may not be long
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
    """Whether the script, or whoever stands in for it, has said anything."""
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
    """Every key is the script's, Ctrl-C too. The terminal is as before afterwards, whatever ends this."""
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
