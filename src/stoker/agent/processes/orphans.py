"""Cleans up after a killed agent: orphaned processes, log lines that were not uploaded, files."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from stoker.agent.machine.machine import NodeFolder
from stoker.agent.processes.family import belonging_to, end_all
from stoker.agent.shipping.logs import Masking, RankLog
from stoker.errors import StokerError, StoreUnavailable
from stoker.files.lock import claim
from stoker.model.node.orders import Orders
from stoker.model.wire import load
from stoker.stores import Store
from stoker.stores.folder.store import FolderStore
from stoker.stores.sealed.signing import unverified

UNSHIPPED = 3  # the exit code
AGENT_S = 5.0  # for the kernel to end an agent after SIGKILL
SPOOLERS_S = 1.0  # for the last output to reach the spool


def end(folder: NodeFolder, key: str, variables: Mapping[str, str]) -> int:
    """Stops every process of the node, uploads their output, and clears the folder. 1 if some processes remain, and
    `UNSHIPPED` if the store is unreachable: then the output is kept, and the call must be repeated.

    Harmless when there is nothing left, and when the agent is alive after all: then only processes are touched.
    """
    _end_agent(folder)
    end_all(key)
    with _locked(folder) as alone:
        if alone:
            release_data(folder)
            try:
                ship_logs(folder, variables)
            except StoreUnavailable:
                return UNSHIPPED
            except (StokerError, OSError, ValueError, KeyError, TypeError):
                pass  # best effort
            folder.clear()
            folder.access.unlink(missing_ok=True)
    return 1 if belonging_to(key) else 0


def release_data(folder: NodeFolder) -> None:
    """Unmounts everything, and allows the cache to evict what the node used."""
    if folder.data.is_symlink():
        from stoker.agent.data.room import remove_hold  # here, because few runs have inputs

        remove_hold(folder.data.readlink())
        folder.data.unlink()


def _end_agent(folder: NodeFolder) -> None:
    """An agent that still holds the lock is the one that the errand names, or will name in a moment. A forked agent
    does not carry the mark itself."""
    until = time.monotonic() + AGENT_S
    while time.monotonic() < until:
        with _locked(folder) as alone:
            if alone:
                return
        with suppress(OSError, ValueError, KeyError):
            os.kill(int(json.loads(folder.errand.read_bytes())["agent"]), signal.SIGKILL)
        time.sleep(0.005)


def ship_logs(folder: NodeFolder, variables: Mapping[str, str]) -> None:
    """From the beginning: appending skips what is already there. Not without the secrets to mask."""
    errand = json.loads(folder.errand.read_bytes())
    store = _store(folder, errand["store"])
    orders = load(Orders, unverified(store.get(errand["orders"])))
    if any(name not in variables for name in errand["secrets"]):
        return
    masking = Masking(variables[name] for name in errand["secrets"])
    _wait_until_quiet(folder)
    for spool in folder.spool.glob("*.log"):
        log = RankLog(store, orders, folder, int(spool.stem))
        while log.ship(masking, final=True):
            pass


def _store(folder: NodeFolder, url: str) -> Store:
    if not folder.access.exists():
        return FolderStore.from_url(url)
    from stoker.stores.access import Access  # a folder needs no HTTP
    from stoker.stores.opening import open_access

    return open_access(Access.from_text(folder.access.read_text()))


def _wait_until_quiet(folder: NodeFolder) -> None:
    """`cat` exits by itself when the last process that could print is gone; it has no mark, so it is not seen."""
    until, before = time.monotonic() + SPOOLERS_S, -1
    while time.monotonic() < until:
        size = sum(spool.stat().st_size for spool in folder.spool.glob("*.log"))
        if size == before:
            return
        before = size
        time.sleep(0.05)


@contextmanager
def _locked(folder: NodeFolder) -> Iterator[bool]:
    if not folder.lock.exists():
        yield True
        return
    lock = claim(folder.lock)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)
