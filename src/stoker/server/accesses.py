"""What nodes are given of the stores they need: a part of each, for a while, and again before that ends."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

from stoker.errors import StokerError
from stoker.model import layout
from stoker.model.node import NodeRequest
from stoker.model.run import Attempt, Run
from stoker.server.clock import Clock
from stoker.server.keychain import Keychain
from stoker.server.stores import Stores
from stoker.stores import sealed
from stoker.stores.access import Access, Route
from stoker.stores.granting import grant
from stoker.stores.location import StoreKind, locate

FOR_S = 86_400.0  # a server that is away for a day, such as a shut laptop, costs no run its store
_LONGER = 6  # so many times as long a node may still read its next access, and nothing else, and change nothing
_LEAST_PAUSE_S = 0.5
_SAME_PAUSE_S = 60.0
_SEAL = "seal of accesses"


class Accesses:
    """Called from several threads."""

    def __init__(self, stores: Stores, keychain: Keychain, clock: Clock, for_s: float = FOR_S) -> None:
        self._stores = stores
        self._keychain = keychain
        self._clock = clock
        self._for_s = for_s
        self._lock = threading.Lock()
        self._due: dict[str, float] = {}  # by node key, by the steady clock; unknown: now, as after a restart
        self._ends: dict[str, float] = {}  # by node key: when its last access ends
        self.trouble: dict[str, str] = {}  # by node key: why its access could not be renewed

    def first(self, run: Run, attempt: Attempt) -> tuple[str, str]:
        """The access as text and the key it is renewed with; empty where the node finds all in the run's folder."""
        if not self._is_needed(run):
            return "", ""
        access = self._grant(run, attempt)
        self._note(attempt, access)
        return access.to_text(), self._seal(attempt.key)

    def hand_over(self, run: Run, machine: str, request: NodeRequest) -> None:
        """Tells the machine that was had under this key what it is to do next, and with which access. Only that machine
        can open it: it was given the seal when it was made."""
        key = layout.again(run.id, int(machine.rpartition("-")[2]))
        words = json.dumps({"orders": request.orders, "variables": request.variables, "spend": request.spend})
        self._stores.of(run).put(key, sealed.seal(self._seal(machine), words, key))

    def is_due(self, run: Run, attempt: Attempt) -> bool:
        """Cheap: asked in every round."""
        return self._clock.steady() >= self._due.get(attempt.key, 0.0) and self._is_needed(run)

    def renew(self, run: Run, attempt: Attempt) -> None:
        """The next access goes where only this node can read it."""
        try:
            access = self._grant(run, attempt)
            key = layout.access(run.id, attempt.number)
            self._stores.of(run).put(key, sealed.seal(self._seal(attempt.key), access.to_text(), key))
        except StokerError as error:
            self.trouble[attempt.key] = error.message
            self._due[attempt.key] = self._clock.steady() + min(self._for_s / 10, 60.0)
            raise
        self.trouble.pop(attempt.key, None)
        self._note(attempt, access)

    def renew_soon(self) -> None:
        """The credential of a store was replaced: what was made of the old one may end at any moment."""
        self._due.clear()
        self._ends.clear()

    def forget(self, node_key: str) -> None:
        self._due.pop(node_key, None)
        self._ends.pop(node_key, None)
        self.trouble.pop(node_key, None)

    def for_client(self, store: str, reads: list[str], writes: list[str]) -> Access:
        """A part of one store for whoever may use this server."""
        known = self._stores.named(store)
        return grant(known.url, self._stores.credential(store), reads=reads, writes=writes, for_s=self._for_s)

    def _is_needed(self, run: Run) -> bool:
        return any(name != run.store for name in needs(run)) or self._is_far(run.store)

    def _is_far(self, store: str) -> bool:
        return locate(self._stores.named(store).url).kind is not StoreKind.FOLDER

    def _grant(self, run: Run, attempt: Attempt) -> Access:
        routes: list[Route] = []
        ends: list[float] = []
        for name, reads in needs(run).items():
            writes = [layout.run(run.id)] if name == run.store else []
            part = self._part(name, reads, writes, self._for_s)
            routes += part.routes if name == run.store else [_elsewhere(name, route) for route in part.routes]
            ends += [part.expires_at] if part.expires_at else []
        expires_at = min(ends, default=0.0)
        return Access((*routes, *self._ticket(run, attempt, expires_at)), expires_at)

    def _ticket(self, run: Run, attempt: Attempt, expires_at: float) -> tuple[Route, ...]:
        """Lets a node find its next access after this one has ended, as when the server was away for long. Not every
        store can give it."""
        if not self._is_far(run.store):
            return ()
        try:
            later = self._part(run.store, [layout.accesses(run.id, attempt.number)], [], _LONGER * self._for_s)
        except StokerError:
            return ()
        return later.routes if later.expires_at > expires_at else ()

    def _part(self, store: str, reads: list[str], writes: list[str], for_s: float) -> Access:
        known = self._stores.named(store)
        return grant(known.url, self._stores.credential(store), reads=reads, writes=writes, for_s=for_s)

    def _note(self, attempt: Attempt, access: Access) -> None:
        """Half of the time is left for whatever may keep a renewal from arriving. What cannot be renewed, such as a SAS
        that somebody made, is tried rarely."""
        same = self._ends.get(attempt.key) == access.expires_at
        self._ends[attempt.key] = access.expires_at
        left_s = access.expires_at - self._clock.now().timestamp() if access.expires_at else float("inf")
        if left_s <= 0:
            self.trouble[attempt.key] = "what its credential allows has ended"
            same = True
        self._due[attempt.key] = self._clock.steady() + max(left_s / 2, _SAME_PAUSE_S if same else _LEAST_PAUSE_S)

    def _seal(self, node_key: str) -> str:
        with self._lock:
            key = self._keychain.get(_SEAL)
            if key is None:
                key = sealed.new_key()
                self._keychain.keep(_SEAL, key)
        return sealed.derived_key(key, node_key)


def needs(run: Run) -> dict[str, list[str]]:
    """By store: the prefixes that the nodes of a run read besides its own folder."""
    found = {run.store: ["blobs/", "snapshots/"]}
    for order in run.inputs.values():
        if order.store:
            found.setdefault(order.store, []).extend(order.reads)
    return found


def _elsewhere(store: str, route: Route) -> Route:
    return replace(route, prefix=layout.elsewhere(store, route.prefix))
