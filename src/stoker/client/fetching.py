"""Brings a run's outputs from the server to a folder, each file verified before it takes its place."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stoker.client.connection import Connection
from stoker.client.progress import Progress
from stoker.errors import Corrupt, Missing, ServerUnavailable
from stoker.model import wire
from stoker.model.run import Run, RunState
from stoker.model.snapshot import EntryKind, Snapshot
from stoker.stores.blobstream import read_blobs
from stoker.stores.landing import Landing, choose_folder

_TRIES = 3


def fetch(run: Run, connection: Connection, parent: Path, progress: Progress | None = None) -> Path:
    """Returns the folder. After a lost connection only what has not arrived is written."""
    name = run.name if run.state is RunState.SUCCEEDED else f"{run.name}-{run.state}"
    folder = choose_folder(parent.absolute(), name, run.id)
    for _ in range(_TRIES):
        try:
            _land(f"/v1/runs/{quote(run.name, safe='')}/outputs", connection, (folder, run.id), progress or Progress())
            return folder
        except (ServerUnavailable, Corrupt, Missing) as error:
            failed = error  # a restart, or outputs that changed between the list and the contents
    raise failed


def _land(path: str, connection: Connection, where: tuple[Path, str], progress: Progress) -> None:
    """`where` is the folder, and whose it is."""
    entries = wire.from_plain(Snapshot, connection.get(path)).entries
    landing = Landing(entries, *where)
    if landing.wanted():
        sizes = {entry.sha256: entry.size_bytes for entry in entries if entry.kind is EntryKind.FILE}
        progress.begin("bringing", len(sizes), sum(sizes.values()))
        _, pieces = connection.stream(f"{path}.tar")
        for sha256, content in read_blobs(io.BufferedReader(_Incoming(pieces, progress), 1 << 18)):
            landing.take(sha256, content)
            progress.moved(0, 1)
    landing.finish()


class _Incoming(io.RawIOBase):
    """The pieces of an answer as a file to read from."""

    def __init__(self, pieces: Iterator[bytes], progress: Progress) -> None:
        super().__init__()
        self._pieces = pieces
        self._progress = progress
        self._held = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._held:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._held = piece
            self._progress.moved(len(piece), 0)
        size = min(len(buffer), len(self._held))
        buffer[:size] = self._held[:size]
        self._held = self._held[size:]
        return size
