"""Files that a script left in its working directory outside its outputs and checkpoints: uploaded at its end."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stoker.agent.checkpoints.contents import Changing, Contents
from stoker.agent.checkpoints.tree import walk
from stoker.model.job.checkpointpaths import CheckpointPaths
from stoker.model.node.orders import Orders
from stoker.model.run.report import Outcome
from stoker.model.snapshot import Entry, Snapshot
from stoker.model.wire import dump
from stoker.model.workspace import layout
from stoker.stores import Store
from stoker.stores.transfer.still import Mark, mark_of

MOST_BYTES = 1_000_000_000
MOST_FILES = 1000
MOST_NAMES = 5  # in the event
# Skipped if another attempt follows, or the machine is about to be evicted.
ENDS = (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED, Outcome.TIMED_OUT, Outcome.TARGET_REACHED)
_NOISE = re.compile(r"(^|/)(__pycache__|\.[^/]+)(/|$)|\.py[co]$")
_MODEL = re.compile(
    r"(?i)\.(pt|pth|tar|ckpt|h5|hdf5|keras|safetensors|bin|pkl|pickle|joblib|onnx|npz|npy|json|ubj|model|msgpack)$"
)
_DATA = re.compile(r"(?i)^(data|datasets?|inputs?|cache|downloads?)/")


@dataclass(frozen=True, slots=True)
class StrayFile:
    path: str
    place: str
    mark: Mark

    @property
    def rank(self) -> tuple[bool, bool, int, str]:
        """The most useful first: models, then anything else but data, small files before large ones."""
        return bool(_DATA.match(self.path)), not _MODEL.search(self.path), self.mark[0], self.path


@dataclass(frozen=True, slots=True)
class StrayFiles:
    """The fields of a report."""

    names: tuple[str, ...] = ()
    files: int = 0
    size_bytes: int = 0


def find(work: Path, orders: Orders, code: Collection[str], since_ns: int) -> list[StrayFile]:
    """New files, and files of the code that changed, except for what is uploaded anyway. The most useful first."""
    paths, outputs = CheckpointPaths(orders.job.checkpoints), f"{orders.job.outputs}/"
    found = []
    for path, entry in walk(str(work), lambda _path, _error: None):
        if entry is None or _NOISE.search(path) or path.startswith(outputs) or paths.root(path) is not None:
            continue
        try:
            path.encode()
            status = entry.stat(follow_symlinks=False)
        except (OSError, UnicodeEncodeError):
            continue
        if stat.S_ISREG(status.st_mode) and (path not in code or status.st_mtime_ns >= since_ns):
            found.append(StrayFile(path, entry.path, mark_of(status)))
    return sorted(found, key=lambda one: one.rank)


def ship(store: Store, orders: Orders, found: list[StrayFile]) -> StrayFiles:
    """Uploads as much as the limits allow. Raises StoreFailed, and may then be called again."""
    contents = Contents(store, partial(layout.output, orders.run_id), alone=False, first=False)
    entries, room = list[Entry](), MOST_BYTES
    for one in found[:MOST_FILES]:
        if one.mark[0] > room:
            continue
        try:
            sha256 = contents.ship(one.place, one.mark)
        except (OSError, Changing):
            continue
        executable = bool(os.stat(one.place).st_mode & stat.S_IXUSR)  # noqa: PTH116  # text
        entries.append(Entry(one.path, sha256=sha256, size_bytes=one.mark[0], executable=executable))
        room -= one.mark[0]
    entries.sort(key=lambda entry: entry.path)
    if entries:
        store.put(layout.stray(orders.run_id, orders.attempt, orders.node), dump(Snapshot(tuple(entries))))
    names = tuple(_names(found))[:MOST_NAMES]
    return StrayFiles(names, len(entries), sum(entry.size_bytes for entry in entries))


def _names(found: list[StrayFile]) -> Iterator[str]:
    """Files by their paths; a folder of several by its own."""
    inside: dict[str, int] = {}
    for one in found:
        folder, slash, _ = one.path.partition("/")
        name = folder + slash
        inside[name if slash else one.path] = inside.get(name if slash else one.path, 0) + 1
    for name, count in inside.items():
        single = next((one.path for one in found if one.path.startswith(name)), name) if name.endswith("/") else name
        yield single if count == 1 else f"{name} ({count} files)"
