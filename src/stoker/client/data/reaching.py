"""Opens stores for a client: with an access of its own from the server, limited to what it needs."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.client.connection import Connection
from stoker.client.settings import Settings
from stoker.stores import Store
from stoker.stores.folder import FolderStore


class Reaching:
    def __init__(self, connection: Connection, settings: Settings) -> None:
        self._connection = connection
        self._settings = settings

    def store(self, name: str, *, reads: Sequence[str], writes: Sequence[str] = ()) -> Store:  # noqa: ARG002  # the folder is all there is yet
        return FolderStore(self._settings.home.store)
