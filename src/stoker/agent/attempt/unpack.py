"""The first phase: unpacks code, the newest good checkpoint and its outputs into the node's folder."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from stoker.agent.attempt.effort import EffortMeter
from stoker.agent.checkpoints.commits import Checkpoints
from stoker.agent.checkpoints.restoring import Wanted, put_back
from stoker.agent.checkpoints.resuming import carry_over
from stoker.agent.machine.machine import NodeFolder, remove_tree
from stoker.agent.notice.stopping import Stopping
from stoker.agent.shipping.shipping import Shipping
from stoker.agent.shipping.worker import persist
from stoker.model.checkpoint import CheckpointSet
from stoker.model.job.checkpointpaths import CheckpointPaths
from stoker.model.node.orders import Orders
from stoker.model.workspace import layout
from stoker.stores import Store
from stoker.stores.trees.manifest import verified
from stoker.stores.trees.unpack import unpack


@dataclass(frozen=True, slots=True)
class Unpacked:
    code: frozenset[str]  # paths of the code snapshot
    newest: str = ""  # of the restored checkpoints, in the working directory; empty: the script gets no path


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpack:
    store: Store
    folder: NodeFolder
    checkpoints: Checkpoints
    shipping: Shipping
    effort: EffortMeter
    stopping: Stopping
    tell: Callable[[str, str], None]

    def __call__(self, orders: Orders) -> Unpacked:
        """Raises Stopped, and errors of the store and the disk. Waits while the store is unavailable."""
        code = persist(lambda: self._code(orders), self.stopping.check)
        job = orders.job
        for name in (job.outputs, *CheckpointPaths(job.checkpoints).folders):
            (self.folder.work / name).mkdir(parents=True, exist_ok=True)
        found = self._restore(orders)
        newest = self._newest(found, orders) if found and job.resume else ""
        self.stopping.check()
        return Unpacked(code, newest)

    def _code(self, orders: Orders) -> frozenset[str]:
        """Into an empty folder: files of an earlier try are removed."""
        remove_tree(self.folder.work)
        id = orders.snapshot
        route = self.store.route(layout.code(id))
        if route and route.one:  # over a network it is one object, with its own token
            from stoker.stores.trees.bundle import Bundle  # here, because most stores are local

            bundle = Bundle(self.store, id)
            unpack(bundle, bundle.snapshot, self.folder.work)
            snapshot = bundle.snapshot
        else:
            snapshot = verified(self.store.get(layout.snapshot(id)), id)
            unpack(self.store, snapshot, self.folder.work)
        return frozenset(entry.path for entry in snapshot.entries)

    def again(self, orders: Orders, wanted: Wanted | None) -> str:
        """Restores this checkpoint, or one without a later label than this, in place of the one that was restored;
        None: none at all. Returns what the script is told to resume from."""
        found = self._restore(orders, -math.inf if wanted is None else wanted)
        return self._newest(found, orders) if found and orders.job.resume else ""

    def _restore(self, orders: Orders, until: Wanted = math.inf) -> CheckpointSet | None:
        begun = time.monotonic()
        found = put_back(self.store, orders, self.folder, self.tell, until)
        self.checkpoints.begin_from(found)
        if found:
            carried = persist(lambda: carry_over(self.store, orders, self.folder, self.tell), self.stopping.check)
            self.shipping.begin_from(carried)
        self.effort.restored(found, time.monotonic() - begun)
        return found

    def _newest(self, found: CheckpointSet, orders: Orders) -> str:
        """The path that the script should resume from; empty: none."""
        from stoker.agent.checkpoints.resuming import newest  # here, because most scripts find it themselves

        path = newest(found, CheckpointPaths(orders.job.checkpoints), self.folder.work)
        if path:
            self.tell("resume", f"telling the script to resume from `{path}`")
        return path
