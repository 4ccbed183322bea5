"""Where a server listens: a Unix socket in its home, and a port of loopback where one was asked for."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

from stoker.errors import ServerUnavailable
from stoker.model.workspace.home import Home

_BACKLOG = 512


def own_socket(home: Home) -> socket.socket:
    """Called by the holder of the home's lock only: whatever an earlier server has left there is replaced."""
    home.socket.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The kernel takes about a hundred bytes of name, and homes may lie deeper than that.
        with tempfile.TemporaryDirectory(prefix="stoker-", dir="/tmp") as short:
            link = Path(short, "home")
            link.symlink_to(home.root)
            listener.bind(str(link / home.socket.name))
        home.socket.chmod(0o600)
    except OSError as error:
        listener.close()
        raise ServerUnavailable(
            f"the Unix socket {home.socket} cannot be made: {error.strerror or error}",
            hint="set STOKER_HOME to a folder on a local disk",
        ) from error
    return _listening(listener)


def port_socket(port: int) -> socket.socket:
    # Named as TCP, or asyncio would not switch Nagle's delay off: 40 ms for every answer.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        listener.close()
        why = getattr(error, "strerror", None) or "ports are below 65536"
        hint = "choose another port, or 0 for any free one"
        raise ServerUnavailable(f"port {port} cannot be used: {why}", hint=hint) from error
    return _listening(listener)


def _listening(listener: socket.socket) -> socket.socket:
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener
