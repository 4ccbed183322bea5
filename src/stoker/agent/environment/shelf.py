"""Environments that the nodes of one owner share through their store: one node builds, the others wait and restore.

A node that builds has a lease in the store, which it renews. Whoever finds a lease that is not renewed takes over with
the next number: two nodes never hold the same one. What is shared is visible once all of it is there, and compared with
its hashes by whoever restores it; where that fails, a node builds for itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from stoker.agent.environment.packing import NotRelocatable, files_of, keep, read_list
from stoker.agent.environment.unpacking import bring, note_files
from stoker.agent.notice.stopping import Stopping
from stoker.errors import AlreadyThere, FileChanged, Malformed, Missing, StoreFailed
from stoker.model import untrusted
from stoker.model.cause import Cause
from stoker.model.environment import HEAD_BYTES, BuiltEnvironment
from stoker.model.workspace import layout
from stoker.stores import Store, pacing

Tell = Callable[[str, str], None]

BEAT_S = 8.0
LAPSED_S = 30.0  # a lease that has not been renewed for so long, by the clock of whoever waits
WAIT_S = 900.0  # for another node; then a node builds for itself
FOREGROUND_S = 60.0  # for an upload; after that the script starts, and the upload continues
_OVER = b"over"


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where the nodes of one owner keep their environments."""

    store: Store
    prefix: str
    node: str  # the key of this one
    stopping: Stopping
    tell: Tell

    def share(self, id: str, goods: Goods) -> SharedEnvironment:
        return SharedEnvironment(self, id, goods)


class Goods(Protocol):
    """How one kind of environment gets to this node and to the store. Both return what it took, for people."""

    def bring(self, head: BuiltEnvironment) -> str:
        """Raises StoreFailed and Malformed where what is stored cannot be used."""
        ...

    def keep(self, head: BuiltEnvironment, *, anew: bool) -> str:
        """It is visible in the store once all of it is there. `anew`: nothing that is there is used. Raises what the
        store raises, FileChanged, OSError, and NotKept where it stays on this node."""
        ...


class NotKept(Exception):
    """Why other nodes cannot use an environment."""


class SharedEnvironment:
    """One environment, as seen by one node that needs it. For one thread."""

    def __init__(self, shelf: Shelf, id: str, goods: Goods) -> None:
        self._shelf = shelf
        self._store = shelf.store
        self._id = id
        self._goods = goods
        self._pause_s = min(max(pacing(shelf.store).eager_s, 0.1), 1.0)
        self._lease: BuildLease | None = None
        self._offers = False  # what is built here is to be kept in the store
        self._anew = False  # with all of its packs: some of them are damaged

    def restore(self) -> BuiltEnvironment | None:
        """Restores it where a node has built it, or is building it. None: it is to be built here. Raises Stopped, and
        StoreFailed where the disk is full."""
        try:
            head = self._await()
            return self._bring(head) if head else None
        except StoreFailed as error:
            if error.cause == Cause.DISK_FULL:
                raise
            self._shelf.tell("environment", f"it is built here, because the store cannot be used: {error.message}")
            self.release()
            return None

    def offer(self, head: BuiltEnvironment) -> None:
        """Keeps what was built here for the others. Where that takes long, it continues while the script runs. Raises
        Stopped."""
        if not self._offers:
            return
        keeping = threading.Thread(target=self._keep, args=(head,), name="stoker-environment", daemon=True)
        keeping.start()
        give_up = time.monotonic() + FOREGROUND_S
        while keeping.is_alive() and time.monotonic() < give_up:
            self._shelf.stopping.check()
            keeping.join(0.05)
        if keeping.is_alive():
            self._shelf.tell("environment", "its upload to the store takes long, and continues while the script runs")

    def release(self) -> None:
        """It is not built here after all, or kept by now: another node may."""
        if self._lease:
            self._lease.end()
        self._lease, self._offers = None, False

    def _await(self) -> BuiltEnvironment | None:
        """None: it is this node's turn to build."""
        give_up, told = time.monotonic() + WAIT_S, False
        watch = _LeaseWatch(self._store, self._shelf.prefix, self._id)
        while True:
            if head := self._head():
                return head
            if lease := watch.take(self._shelf.node):
                self._lease, self._offers = lease, True
                return None
            if time.monotonic() > give_up:
                self._shelf.tell("environment", "the other node takes too long: it is built here, too")
                return None
            if not told:
                self._shelf.tell("environment", "another node is building the same environment: waiting for it")
            told = True
            self._shelf.stopping.check()
            self._shelf.stopping.wait(self._pause_s)

    def _head(self) -> BuiltEnvironment | None:
        key = layout.environment_head(self._shelf.prefix, self._id)
        try:
            found = untrusted.fetch(BuiltEnvironment, self._store, key, HEAD_BYTES, datetime.now(UTC))
        except (Missing, Malformed):  # what is damaged is replaced
            return None
        return found if found.id == self._id and found.listed else None

    def _bring(self, head: BuiltEnvironment) -> BuiltEnvironment | None:
        start = time.monotonic()
        try:
            moved = self._goods.bring(head)
        except StoreFailed as error:
            if error.cause == Cause.DISK_FULL:
                raise
            self._offers = self._anew = True
            self._shelf.tell("environment", f"it is built here, because {error.message}")
            return None
        took_s = time.monotonic() - start
        self._shelf.tell("environment", f"{head.source} was restored from the store in {took_s:.1f} s ({moved})")
        return head

    def _keep(self, head: BuiltEnvironment) -> None:
        start = time.monotonic()
        try:
            sent = self._goods.keep(head, anew=self._anew)
            took_s = time.monotonic() - start
            self._shelf.tell(
                "environment", f"{head.source} is kept in the store for other nodes: {sent} uploaded in {took_s:.1f} s"
            )
        except NotKept as why:
            self._shelf.tell("environment", f"{head.source} is not kept in the store: {why}")
        except (StoreFailed, FileChanged, OSError) as error:
            self._shelf.tell("environment", f"{head.source} could not be kept in the store: {error}")
        finally:
            self.release()


class VenvGoods:
    """`make` makes the venv without packages."""

    def __init__(self, shelf: Shelf, venv: Path, make: Callable[[], None]) -> None:
        self._store, self._prefix = shelf.store, shelf.prefix
        self._venv, self._make = venv, make

    def bring(self, head: BuiltEnvironment) -> str:
        files = read_list(self._store, self._prefix, head)
        self._make()
        brought = bring(self._store, self._prefix, files, self._venv)
        note_files(self._venv, files.entries)
        return f"{brought.downloaded_bytes / 1e6:,.1f} MB downloaded, {brought.linked_files:,} files linked"

    def keep(self, head: BuiltEnvironment, *, anew: bool) -> str:
        try:
            files = files_of(self._venv)
        except NotRelocatable as why:
            raise NotKept(str(why)) from None
        note_files(self._venv, [one.entry for one in files])
        done, sent = keep(self._store, self._prefix, head, files, anew=anew)
        return f"{done.files:,} files, {sent / 1e6:,.1f} MB"


class BuildLease:
    """Renewed by a thread until it ends."""

    def __init__(self, store: Store, key: str, node: str) -> None:
        self._store = store
        self._key = key
        self._node = node
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="stoker-build-lease", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        with suppress(StoreFailed):
            self._store.put(self._key, _OVER)

    def _renew(self) -> None:
        beat = 1
        while not self._ended.wait(BEAT_S):
            beat += 1
            with suppress(StoreFailed):
                self._store.put(self._key, _words(self._node, beat))


def _words(node: str, beat: int) -> bytes:
    return f"{node} {beat}".encode()


@dataclass(frozen=True, slots=True)
class _SeenLease:
    number: int
    data: bytes
    since: float  # by the steady clock


class _LeaseWatch:
    """Sees whether somebody builds, without comparing clocks."""

    def __init__(self, store: Store, prefix: str, id: str) -> None:
        self._store = store
        self._prefix = prefix
        self._id = id
        self._seen = _SeenLease(0, _OVER, 0.0)

    def take(self, node: str) -> BuildLease | None:
        """None: another node has it."""
        found = self._newest()
        if found.data != _OVER and time.monotonic() - found.since < LAPSED_S:
            return None
        key = layout.environment_lease(self._prefix, self._id, found.number + 1)
        try:
            self._store.put(key, _words(node, 1), only_new=True)
        except AlreadyThere:
            return None
        if found.number:
            with suppress(StoreFailed):
                self._store.delete(layout.environment_lease(self._prefix, self._id, found.number))
        return BuildLease(self._store, key, node)

    def _newest(self) -> _SeenLease:
        leases = layout.environment_leases(self._prefix, self._id)
        keys = sorted(one.key for one in self._store.list(leases.rstrip("/")))
        number = max((_number(key) for key in keys), default=0)
        if number < self._seen.number:  # it was removed meanwhile
            self._seen = _SeenLease(0, _OVER, 0.0)
        if number:
            with suppress(Missing):
                data = self._store.get(layout.environment_lease(self._prefix, self._id, number), 0, 1000)
                if (number, data) != (self._seen.number, self._seen.data):
                    self._seen = _SeenLease(number, data, time.monotonic())
        return self._seen


def _number(key: str) -> int:
    name = key.rpartition("/")[2].removesuffix(".json")
    return int(name) if name.isdecimal() and len(name) < 10 else 0
