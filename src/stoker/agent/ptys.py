"""Starting a rank on a pseudo-terminal, with the relay that serves it."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
import termios
from pathlib import Path

from stoker.agent.launch import RankCommand
from stoker.agent.spawning import spawn, spawn_with


def start_on_terminal(command: RankCommand, log: Path, door: Path, library: Path) -> tuple[int, int]:
    """Returns the pid of the rank, and that of the process between it, its log, and whoever comes in by `door`. Leaves
    the current directory as it was, which is where the rank starts."""
    assert command.terminal
    master, slave = os.openpty()
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    words = (sys.executable, "-I", "-S", str(library), "relay")
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            size = struct.pack("HHHH", command.terminal.rows, command.terminal.columns, 0, 0)
            fcntl.ioctl(master, termios.TIOCSWINSZ, size)
            _listen(listener, door)
            relay = spawn(words, {}, (master, file, nothing, listener.fileno()))
            # Whoever leads a session, has no terminal yet and opens one, has it from then on.
            opened = (os.POSIX_SPAWN_OPEN, 0, os.ttyname(slave), os.O_RDWR, 0)
            copies = [(os.POSIX_SPAWN_DUP2, 0, place) for place in (1, 2)]
            return spawn_with(command.argv, command.env, [opened, *copies]), relay
        finally:
            for fd in (master, slave, file, nothing):
                os.close(fd)


def _listen(listener: socket.socket, door: Path) -> None:
    """By a short path: that of a socket may not be long."""
    door.unlink(missing_ok=True)
    here = Path.cwd()
    os.chdir(door.parent)
    try:
        listener.bind(door.name)
        listener.listen(1)
    finally:
        os.chdir(here)
