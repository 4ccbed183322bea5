"""A port of this computer that leads to another one, for nodes that are this computer too."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from stoker.client.reach import Forward
from stoker.errors import BadInput

_AT_ONCE = 1 << 16


class Forwarding:
    """Listens when it is made. Connections are served by threads, and end with this program."""

    def __init__(self, forward: Forward) -> None:
        self._target = (forward.host, forward.there)
        try:
            self._listening = socket.create_server((forward.bind or "127.0.0.1", forward.port))
        except OSError as error:
            raise BadInput(
                f"-L {forward}: port {forward.port} cannot be used: {error.strerror}", hint="choose another port"
            ) from error
        threading.Thread(target=self._accept, daemon=True, name=f"forward {forward}").start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listening.accept()
                threading.Thread(target=self._join, args=(here,), daemon=True).start()

    def _join(self, here: socket.socket) -> None:
        with here, suppress(OSError), socket.create_connection(self._target, timeout=10.0) as there:
            there.settimeout(None)
            back = threading.Thread(target=_pass_on, args=(there, here), daemon=True)
            back.start()
            _pass_on(here, there)
            back.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(_AT_ONCE):
            target.sendall(piece)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
