"""A listening socket with a thread per connection, which can be closed together with all its connections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

Handle = Callable[[socket.socket], None]


class Listener:
    """`handle` may block; shutting down its socket wakes it, and it need not close it."""

    def __init__(self, listening: socket.socket, handle: Handle) -> None:
        self._listening = listening
        self._handle = handle
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True, name="listener").start()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for connection in self._open:
                _shut(connection)
        _shut(self._listening)
        self._listening.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with self._lock:
                if self._closed:
                    connection.close()
                    return
                self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True, name="connection").start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with suppress(OSError):
                self._handle(connection)
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()


def _shut(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
