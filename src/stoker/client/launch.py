"""Finding this computer's server, starting it where none runs, and stopping it."""

from __future__ import annotations

from typing import Any

from stoker.client.connection import Connection
from stoker.client.settings import Settings


def connect(settings: Settings, *, start: bool = True) -> Connection:
    """A connection to the server named in the settings, or to this computer's own, started if need be.

    Makes no request where an address is known: the first real one finds out whether a server is there. With
    `start` off, a missing server is ServerUnavailable.
    """
    raise NotImplementedError


def stop(settings: Settings) -> bool:
    """Ends this computer's server and returns once it is gone; runs go on. False: none was running."""
    raise NotImplementedError


def status(settings: Settings) -> dict[str, Any] | None:
    """What the server says of itself (version, pid, home, started_at, url), or None where none answers."""
    raise NotImplementedError
