"""A process that has loaded everything an agent needs, and forks one for each requested node.

Loading takes five times as long as everything else an agent does before the script starts.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
from collections.abc import Callable, Mapping
from types import FrameType

_HEAD_BYTES = 8

Begin = Callable[[Mapping[str, str], Mapping[str, str]], int]  # options and variables of an agent


def ask(channel: socket.socket, options: Mapping[str, str], variables: Mapping[str, str], lock: int) -> None:
    """Requests an agent. It gets the lock with the request, so that the lock always has a holder."""
    words = json.dumps({"options": dict(options), "variables": dict(variables)}).encode()
    socket.send_fds(channel, [len(words).to_bytes(_HEAD_BYTES, "big")], [lock])
    channel.sendall(words)


def stand_by(channel: socket.socket, begin: Begin) -> int:
    """Waits for requests until the requester is gone. Returns in the forked agents too, with their exit code."""
    signal.signal(signal.SIGCHLD, _reap)
    gc.collect()
    gc.freeze()  # loaded objects stay shared with the agents until one writes to them
    while True:
        head, fds, _, _ = socket.recv_fds(channel, _HEAD_BYTES, 1)
        words = _exactly(channel, int.from_bytes(head, "big")) if len(head) == _HEAD_BYTES and fds else b""
        if not words:
            return 0
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            channel.close()
            asked = json.loads(words)
            return begin({**asked["options"], "--lock-fd": str(fds[0])}, asked["variables"])
        os.close(fds[0])


def _exactly(channel: socket.socket, size: int) -> bytes:
    pieces: list[bytes] = []
    while size and (piece := channel.recv(min(size, 1 << 20))):
        pieces.append(piece)
        size -= len(piece)
    return b"" if size else b"".join(pieces)


def _reap(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # as signal handlers are
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
