"""Another user of this computer, who listens where a server has been and notes everything that is sent there."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

NOBODY = 65534
_FORK = multiprocessing.get_context("fork")  # an interpreter below /root could not be started by anybody else


class Heard:
    """What reached a stranger, requested while they still listen."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def so_far(self) -> bytes:
        self._pipe.send("tell")
        told: bytes = self._pipe.recv()
        return told


@contextmanager
def listening(make: Callable[[], socket.socket]) -> Iterator[Heard]:
    """`make` is called as that user."""
    ours, theirs = _FORK.Pipe()
    process = _FORK.Process(target=_listen, args=(make, theirs), daemon=True)
    process.start()
    try:
        assert ours.poll(20), "the stranger did not begin"
        begun = ours.recv()
        assert begun == "listening", begun
        yield Heard(ours)
    finally:
        process.kill()
        process.join()


def as_nobody(act: Callable[[], Any]) -> Any:
    """What comes of it, or the name of the error."""
    ours, theirs = _FORK.Pipe()

    def child() -> None:
        _become_nobody()
        try:
            theirs.send(act())
        except OSError as error:
            theirs.send(type(error).__name__)

    process = _FORK.Process(target=child, daemon=True)
    process.start()
    try:
        assert ours.poll(20)
        return ours.recv()
    finally:
        process.kill()
        process.join()


def _become_nobody() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def _listen(make: Callable[[], socket.socket], pipe: Connection) -> None:
    import selectors

    _become_nobody()
    try:
        listener = make()
    except OSError as error:
        pipe.send(repr(error))
        return
    heard, watch = b"", selectors.DefaultSelector()
    watch.register(listener, selectors.EVENT_READ)
    watch.register(pipe, selectors.EVENT_READ)
    pipe.send("listening")
    while True:
        for key, _ in watch.select():
            if key.fileobj is listener:
                watch.register(listener.accept()[0], selectors.EVENT_READ)
            elif key.fileobj is pipe:
                pipe.recv()
                pipe.send(heard)
            else:
                line: Any = key.fileobj
                piece = line.recv(65536)
                heard += piece
                if piece:  # a response that a careless client would accept
                    line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                else:
                    watch.unregister(line)
                    line.close()
