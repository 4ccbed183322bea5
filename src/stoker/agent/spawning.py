"""Starting the processes of a rank: the rank itself, and the one that takes down what it prints."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stoker.agent.endings import Broken

_PIPE_BYTES = 1 << 20


def start_with_spooler(argv: Sequence[str], env: Mapping[str, str], log: Path) -> tuple[int, int]:
    """Starts a rank in the current directory; returns its pid and that of the `cat` between it and its log.

    A rank must neither wait for the agent nor die with it, so the agent cannot read what it prints; and it must not
    hold the log itself, which `echo > /dev/stderr` in a script would cut to nothing. `cat` ends when the last process
    that can still print has ended, and so everything that was printed is in the log by then.
    """
    out, into = os.pipe()
    if sys.platform == "linux":
        with suppress(PermissionError):  # the user has many pipes: the usual size will do
            fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        spooler = spawn(("cat",), {}, (out, file, nothing))
        return spawn(argv, env, (nothing, into, into)), spooler
    finally:
        for fd in (out, into, file, nothing):
            os.close(fd)


def spawn(argv: Sequence[str], env: Mapping[str, str], given: Sequence[int]) -> int:
    """In a session of its own, with these files from 0 on and no others. Not by `subprocess`: 5 ms of imports."""
    return spawn_with(argv, env, [(os.POSIX_SPAWN_DUP2, fd, place) for place, fd in enumerate(given)])


def spawn_with(argv: Sequence[str], env: Mapping[str, str], files: Sequence[tuple[Any, ...]]) -> int:
    default = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores these, and so would its children
    try:
        return os.posix_spawnp(argv[0], tuple(argv), env, file_actions=files, setsid=True, setsigdef=default)
    except FileNotFoundError:
        raise Broken(f"`{argv[0]}` was not found on this node", "install it, or change the launcher") from None
