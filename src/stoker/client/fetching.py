"""Brings a run's outputs from the server to a folder, each file verified before it takes its place."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stoker.client.connection import Connection
from stoker.errors import Corrupt, ServerUnavailable, StokerError
from stoker.model import wire
from stoker.model.run import Run, RunState
from stoker.model.snapshot import Snapshot
from stoker.stores.blobstream import read_blobs
from stoker.stores.landing import Landing, choose_folder

_TRIES = 3


def fetch(run: Run, connection: Connection, parent: Path) -> Path:
    """Returns the folder. A lost connection costs another request for what has not arrived."""
    path = f"/v1/runs/{quote(run.name, safe='')}/outputs"
    manifest = wire.from_plain(Snapshot, connection.get(path))
    name = run.name if run.state is RunState.SUCCEEDED else f"{run.name}-{run.state}"
    folder = choose_folder(parent.absolute(), name, run.id)
    landing = Landing(manifest.entries, folder, run.id)
    failed: StokerError | None = None
    for _ in range(_TRIES):
        wanted = set(landing.wanted())
        if not wanted:
            break
        try:
            _, pieces = connection.stream(f"{path}.tar")
            for sha256, content in read_blobs(io.BufferedReader(_Incoming(pieces), 1 << 18)):
                if sha256 in wanted:
                    landing.take(sha256, content)
        except (ServerUnavailable, Corrupt) as error:
            failed = error
    else:
        if failed:
            raise failed
    landing.finish()
    return folder


class _Incoming(io.RawIOBase):
    """The pieces of an answer as a file to read from."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        super().__init__()
        self._pieces = pieces
        self._held = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._held:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._held = piece
        size = min(len(buffer), len(self._held))
        buffer[:size] = self._held[:size]
        self._held = self._held[size:]
        return size
