"""The outputs folder, mirrored into the store while it grows: contents by hash, then a manifest of all. Files that a
script left in its working directory outside its outputs and checkpoints: uploaded at its end."""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stoker.agent.checkpoints.contents import Changing, Contents
from stoker.agent.checkpoints.folders.files import walk
from stoker.agent.shipping.worker import Patience, ShippingThread, StoreTrouble
from stoker.errors import StokerError
from stoker.model.job.sections import CheckpointPaths
from stoker.model.orders import Orders
from stoker.model.run.report import Outcome
from stoker.model.snapshot import Entry, EntryKind, Snapshot
from stoker.model.wire import dump
from stoker.model.workspace import layout
from stoker.stores import Store
from stoker.stores.transfer.verified import Mark, mark_of

EVERY_S = 2.0
QUIET_S = 1.0  # a file that changed within this time waits for a later look
LEFT_OVER_S = 60.0  # how long unused contents are kept, for readers of an older manifest
TOLD_MOST = 20  # events about unreadable files


Tell = Callable[[str, str], None]


@dataclass(slots=True)
class _File:
    """What is known about one file. `entry` describes the content with the mark `shipped`, perhaps an older one."""

    mark: Mark
    since: float
    shipped: Mark | None = None
    entry: Entry | None = None


class Mirror:
    """Uploads the changes of the folder, once per call of `sync`."""

    def __init__(self, store: Store, orders: Orders, folder: Path, tell: Tell = lambda _kind, _text: None) -> None:
        self._store = store
        self._orders = orders
        self._folder = folder
        self._tell = tell
        self._files: dict[str, _File] = {}
        alone = orders.nodes == 1  # otherwise another node may have uploaded the same content, and rely on it
        key = partial(layout.output, orders.run_id)
        self._contents = Contents(store, key, alone=alone, first=alone and orders.begins)
        self._told: set[str] = set()
        self._manifest: list[Entry] | None = None
        self._one_at_a_time = threading.Lock()
        self.totals = (0, 0)  # files, bytes

    def begin_from(self, carried: Snapshot) -> None:
        """Restored files are in the store: they are not uploaded again until they change."""
        for entry in carried.entries:
            if entry.kind is EntryKind.FILE:
                mark = mark_of((self._folder / entry.path).lstat())
                self._files[entry.path] = _File(mark, time.monotonic(), mark, entry)
        self._contents.adopt(entry.sha256 for entry in carried.entries if entry.kind is EntryKind.FILE)

    def sync(self, *, hasty: bool = False, final: bool = False) -> None:
        """Raises StoreFailed, and may then be called again: nothing is uploaded twice. With `hasty`, files that are
        just changing are uploaded as they are; at the end there are no others."""
        with self._one_at_a_time:
            self._sync(hasty=hasty, final=final)

    def _sync(self, *, hasty: bool, final: bool) -> None:
        files, self._files = self._files, {}  # removed files are forgotten
        entries = []
        try:
            for path, found in walk(str(self._folder), self._unreadable):
                entry = self._entry(path, found, files.get(path), hasty=hasty, final=final)
                if entry:
                    entries.append(entry)
        except StokerError:
            self._files = {**files, **self._files}
            raise
        self._write(entries)
        self._contents.forget({entry.sha256 for entry in entries}, 0 if final else LEFT_OVER_S)

    def _entry(
        self, path: str, found: os.DirEntry[str] | None, known: _File | None, *, hasty: bool, final: bool
    ) -> Entry | None:
        try:
            path.encode()
            if found is None:
                return Entry(path, EntryKind.FOLDER)
            status = found.stat(follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                target = os.readlink(found.path)  # noqa: PTH115  # text, not a Path
                target.encode()
                return Entry(path, EntryKind.LINK, target=target)
            if stat.S_ISREG(status.st_mode):
                return self._file(path, found.path, status, known, hasty=hasty or final, tries=10 if final else 1)
        except FileNotFoundError:
            pass
        except (OSError, UnicodeEncodeError) as error:
            self._unreadable(path, error)
        return None

    def _file(
        self, path: str, place: str, status: os.stat_result, known: _File | None, *, hasty: bool, tries: int
    ) -> Entry | None:
        """Its entry, after uploading it where it is new and unchanged for a while; until then its last entry."""
        mark = mark_of(status)
        if known is None or known.mark != mark:
            quiet_s = min(max(time.time() - status.st_mtime, 0), QUIET_S)
            known = _File(mark, time.monotonic() - quiet_s, *((known.shipped, known.entry) if known else ()))
        self._files[path] = known
        for _ in range(tries):
            if known.shipped == known.mark or not (hasty or time.monotonic() - known.since >= QUIET_S):
                break
            try:
                sha256 = self._contents.ship(place, known.mark)
            except Changing:
                time.sleep(0.1 if tries > 1 else 0)
                known.mark, known.since = mark_of(os.stat(place)), time.monotonic()  # noqa: PTH116  # as above
                continue
            known.shipped = known.mark
            executable = bool(status.st_mode & stat.S_IXUSR)
            known.entry = Entry(path, sha256=sha256, size_bytes=known.mark[0], executable=executable)
        return known.entry

    def _write(self, entries: list[Entry]) -> None:
        entries.sort(key=lambda entry: entry.path)
        if entries == self._manifest:
            return
        orders = self._orders
        key = layout.outputs(orders.run_id, orders.attempt, orders.node)
        self._store.put(key, dump(Snapshot(tuple(entries))))
        self._manifest = entries
        files = [entry.size_bytes for entry in entries if entry.kind is EntryKind.FILE]
        self.totals = (len(files), sum(files))

    def _unreadable(self, path: str, error: OSError | UnicodeEncodeError) -> None:
        if path in self._told or len(self._told) > TOLD_MOST:
            return
        self._told.add(path)
        if len(self._told) > TOLD_MOST:
            self._tell("output-unreadable", "more output files cannot be uploaded")
            return
        reason = "its name is not UTF-8" if isinstance(error, UnicodeEncodeError) else error.strerror
        shown = path.encode(errors="replace").decode()
        self._tell("output-unreadable", f"could not upload the output `{shown}`: {reason}")


class OutputsShipper(ShippingThread):
    """Keeps the mirror up to date. Finish it after the last write."""

    def __init__(self, mirror: Mirror, trouble: StoreTrouble) -> None:
        super().__init__("outputs")
        self._mirror = mirror
        self._patience = Patience("outputs", trouble)

    def work(self) -> None:
        took_s = 0.0
        while not self.ending.wait(max(EVERY_S, 10 * took_s)):  # a large tree is scanned less often
            start = time.monotonic()
            self._sync(final=False)
            took_s = time.monotonic() - start
        while not self._sync(final=True):
            time.sleep(0.05)

    def _sync(self, *, final: bool) -> bool:
        if not self._patience.due:
            return False
        try:
            self._mirror.sync(final=final)
        except StokerError as error:
            self._patience.failed(error)
            return False
        self._patience.worked()
        return True


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
