"""Downloads files of a run from the server, each verified before it is moved to its place."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stoker.client.api.connection import Connection
from stoker.client.progress import TransferProgress
from stoker.errors import Corrupt, Missing, ServerUnavailable
from stoker.model import untrusted
from stoker.model.run.run import Run, RunState
from stoker.model.snapshot import Entry, EntryKind, Snapshot
from stoker.stores.trees.blobstream import read_blobs
from stoker.stores.trees.landing import Landing, choose_folder

_TRIES = 3


class What(StrEnum):
    """Which files of a run."""

    BROUGHT = "brought"  # what is downloaded automatically: the outputs, and a checkpoint that is not too large
    OUTPUTS = "outputs"
    CHECKPOINT = "checkpoint"  # the newest
    STRAY = "stray"  # files that its script wrote outside its outputs and checkpoints


@dataclass(frozen=True, slots=True)
class WantedResults:
    what: What = What.BROUGHT
    only: str = ""  # this file, the files of this folder, or those that match this pattern; empty: all


def fetch(
    run: Run,
    connection: Connection,
    parent: Path,
    progress: TransferProgress | None = None,
    wanted: WantedResults | None = None,
) -> tuple[Path, tuple[Entry, ...]]:
    """Returns the folder, and the files that are there now. After a lost connection only missing files are
    written."""
    wanted = wanted or WantedResults()
    name = run.name if run.state is RunState.SUCCEEDED else f"{run.name}-{run.state}"
    folder = choose_folder(parent.absolute(), name, run.id)
    for _ in range(_TRIES):
        try:
            return folder, _land(run, connection, (folder, wanted), progress or TransferProgress())
        except (ServerUnavailable, Corrupt, Missing) as error:
            failed = error  # a restart, or outputs that changed between the list and the contents
    raise failed


def _land(
    run: Run, connection: Connection, order: tuple[Path, WantedResults], progress: TransferProgress
) -> tuple[Entry, ...]:
    """`order` says which file is written where."""
    folder, wanted = order
    path = f"/v1/runs/{quote(run.name, safe='')}"
    path, tar = (f"{path}/outputs", ".tar") if wanted.what is What.BROUGHT else (f"{path}/files/{wanted.what}", "/tar")
    entries = untrusted.read(Snapshot, connection.get(path), datetime.now(UTC)).entries
    entries = tuple(entry for entry in entries if _is_meant(entry.path, wanted.only))
    landing = Landing(entries, folder, run.id)
    if landing.wanted():
        sizes = {entry.sha256: entry.size_bytes for entry in entries if entry.kind is EntryKind.FILE}
        progress.begin("bringing", len(sizes), sum(sizes.values()))
        _, pieces = connection.stream(f"{path}{tar}")
        for sha256, content in read_blobs(io.BufferedReader(_Incoming(pieces, progress), 1 << 18)):
            landing.take(sha256, content)
            progress.moved(0, 1)
    landing.finish()
    return tuple(entry for entry in entries if entry.kind is EntryKind.FILE)


def _is_meant(path: str, only: str) -> bool:
    only = only.rstrip("/")
    return not only or path == only or path.startswith(f"{only}/") or fnmatchcase(path, only)


class _Incoming(io.RawIOBase):
    """The chunks of a response as a file to read from."""

    def __init__(self, pieces: Iterator[bytes], progress: TransferProgress) -> None:
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
