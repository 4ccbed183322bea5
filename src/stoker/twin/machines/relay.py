"""A wire between two networks: what connects here is connected to a port of the host. Linux only."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress

_AT_ONCE = 1 << 20


def relay_to(port: int, connection: socket.socket) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10.0) as host:
        host.settimeout(None)
        join(connection, host)


def join(one: socket.socket, other: socket.socket) -> None:
    """Until both sides have said all they had to say. Bytes stay in the kernel."""
    back = threading.Thread(target=_pump, args=(other, one), daemon=True, name="relay")
    back.start()
    _pump(one, other)
    back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    read, write = os.pipe2(os.O_CLOEXEC)
    try:
        while count := os.splice(source.fileno(), write, _AT_ONCE):
            while count:
                count -= os.splice(read, target.fileno(), count)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # one side is gone: then the other has nobody to talk to
        for side in (source, target):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
    finally:
        os.close(read)
        os.close(write)
