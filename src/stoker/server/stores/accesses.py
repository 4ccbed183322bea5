"""What nodes have for a limited time: access to parts of stores, and their leases; both are renewed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

from stoker.engine.nodes import lease as reckoning
from stoker.engine.nodes.lease import node_of
from stoker.errors import StokerError, StoreDenied
from stoker.model import wire
from stoker.model.job.sections import OWN_IMAGES
from stoker.model.node import Lease, NodeRequest
from stoker.model.run.money import Fuse
from stoker.model.run.run import Member, Run
from stoker.model.workspace import layout
from stoker.providers import Carrying, Provider, leased
from stoker.server.rounds.outside import Clock
from stoker.server.stores.stores import Keychain, StoreDirectory
from stoker.stores import signing
from stoker.stores.access import NONE, Access, Route
from stoker.stores.kinds import grant, kind_of, locate
from stoker.stores.sealing import seal

FOR_S = 86_400.0  # a server may be down for a day, such as a closed laptop, without a run losing its store
_LONGER = 6  # for this many times longer a node may read its next access, and nothing else, and change nothing
_LEAST_PAUSE_S = 0.5
_SAME_PAUSE_S = 60.0
SEAL = "seal of accesses"


class Accesses:
    """Called from several threads."""

    def __init__(
        self,
        stores: StoreDirectory,
        keychain: Keychain,
        clock: Clock,
        for_s: float = FOR_S,
        *,
        here: Callable[[str], bool] = lambda _provider: True,
        one_engine: Callable[[str], bool] = lambda _provider: True,
        carrying: Callable[[str], Carrying | None] = lambda _provider: None,
    ) -> None:
        """`here` says whether the nodes of a provider are on this computer, and run as the user of the server;
        `one_engine` whether one container engine has the images of all of them;
        `carrying` is the provider where its nodes reach folders of this computer through it."""
        self._stores = stores
        self._here = here
        self._one_engine = one_engine
        self._carrying = carrying
        self._keychain = keychain
        self._clock = clock
        self._for_s = for_s
        self._lock = threading.Lock()
        self._due: dict[str, float] = {}  # by node key, unix seconds; unknown: now, as after a restart
        self._ends: dict[str, float] = {}  # by node key: when its last access expires
        self.trouble: dict[str, str] = {}  # by node key: why its access could not be renewed

    def first(self, run: Run, attempt: Member, lease_s: float = 0.0) -> tuple[str, str]:
        """The access as text and the key of its renewal; empty where the node finds everything in the run's folder. It
        outlasts a lease of this length."""
        if not self._is_needed(run):
            return "", ""
        access = self._grant(run, attempt, lease_s)
        self._note(attempt, access, lease_s)
        return access.to_text(), self._seal(attempt.key)

    def hand_over(self, run: Run, machine: str, request: NodeRequest) -> None:
        """Gives the machine with this key its next orders and access. Only that machine can decrypt them: it got the
        key when it was created."""
        key = layout.again(*node_of(machine))
        words = json.dumps({"orders": request.orders, "variables": request.variables, "spend": request.spend})
        self._stores.of(run).put(key, seal(self._seal(machine), words, key))

    def shelf(self, run: Run) -> str:
        """Where nodes share environments that they build: those of runs of the same person of this server, and no
        others. Empty where the run builds none, or its nodes share a disk, or the engine of their images."""
        wanted, software = run.job.environment, run.software
        if wanted.contained:
            own = (wanted.dockerfile and not wanted.registry) or (wanted.image or "").startswith(f"{OWN_IMAGES}@")
            return self.shelf_of(run.person) if own and not self._one_engine(run.job.on) else ""
        builds = wanted.requirements or (software and software.packages and wanted.is_taken_along)
        if not builds or self._here(run.job.on):
            return ""
        return self.shelf_of(run.person)

    def shelf_of(self, person: str) -> str:
        """Of one person's runs. Servers that use the same store share none: anybody can give any name to their own."""
        return layout.environments(self._seal(f"environments of {person}")[:20])

    def signed(self, run: Run, attempt: Member, key: str, data: bytes) -> bytes:
        """A message to a node, signed for this key. Over a network, nodes trust nothing else: others may write to the
        same store."""
        return signing.signed(self._seal(attempt.key), data, key) if self._is_needed(run) else data

    def opened(self, run: Run, attempt: Member, key: str, data: bytes) -> bytes:
        """The message. Raises Corrupt where another writer forged it."""
        return signing.opened(self._seal(attempt.key), data, key) if self._is_needed(run) else data

    def is_due(self, run: Run, attempt: Member) -> bool:
        """Cheap: called in every round."""
        return self._clock.now().timestamp() >= self._due.get(attempt.key, 0.0) and self._is_needed(run)

    def lasts_s(self, node_key: str) -> float:
        """How long the last access of a node is valid; infinite where that is unknown."""
        ends = self._ends.get(node_key)
        return max(ends - self._clock.now().timestamp(), 0.0) if ends else float("inf")

    def renew(self, run: Run, attempt: Member, lease_s: float = 0.0) -> None:
        """Writes the next access to where only this node can read it."""
        try:
            access = self._grant(run, attempt, lease_s)
            key = layout.access(run.id, attempt.number, attempt.node)
            self._stores.of(run).put(key, seal(self._seal(attempt.key), access.to_text(), key))
        except StokerError as error:
            self.trouble[attempt.key] = error.message
            self._due[attempt.key] = self._clock.now().timestamp() + min(self._for_s / 10, 60.0)
            raise
        self.trouble.pop(attempt.key, None)
        self._note(attempt, access, lease_s)

    def renew_soon(self) -> None:
        """The credential of a store was replaced: accesses from the old one may be revoked at any moment."""
        self._due.clear()
        self._ends.clear()

    def forget(self, node_key: str) -> None:
        self._due.pop(node_key, None)
        self._ends.pop(node_key, None)
        self.trouble.pop(node_key, None)

    def check(self, run: Run) -> None:
        """Raises StoreDenied where the nodes of the run would get more than their part of a store."""
        for name, reads in needs(run, far=self._is_far(run.store)).items():
            known = self._stores.named(name)
            if "" in reads and kind_of(known.url).grants_prefixes:
                raise StoreDenied(
                    f"`{run.job.name}` reads files at the top of the store `{name}`: a node could read all of it",
                    hint="move the files into a folder of the store",
                )
            if not self._here(run.job.on) and not known.shared:
                self._check_splits(known.name, known.url, run.job.on)

    def _check_splits(self, name: str, url: str, provider: str) -> None:
        held = self._stores.credential(name)
        advice = kind_of(url).unsplit(locate(url), held) if held.kind != NONE else ""
        if advice:
            raise StoreDenied(
                f"the store `{name}` uses `{held.kind}`, which cannot be restricted: a node of `{provider}` would "
                "get that credential itself, and could change every run in the store",
                hint=f"{advice}: `stoker store add {name} {url}`; or allow it with `--shared-with-nodes`",
            )

    def for_client(self, store: str, reads: list[str], writes: list[str]) -> Access:
        """A part of one store for a client of this server."""
        known, opened = self._stores.named(store), self._stores.open(store)
        for prefix in writes:
            opened.prepare(prefix)
        return grant(known.url, self._stores.credential(store), reads=reads, writes=writes, for_s=self._for_s)

    def _is_needed(self, run: Run) -> bool:
        far = self._is_far(run.store)
        return far or self._carrying(run.job.on) is not None or any(name != run.store for name in needs(run, far=far))

    def _is_far(self, store: str) -> bool:
        return not locate(self._stores.named(store).url).local

    def _grant(self, run: Run, attempt: Member, lease_s: float) -> Access:
        """Long enough that a node without contact to the server can always write until its lease ends."""
        self.check(run)
        for_s = lease_s + self._for_s
        routes: list[Route] = []
        ends: list[float] = []
        for name, reads in needs(run, far=self._is_far(run.store)).items():
            writes = self._writes(run) if name == run.store else []
            part = self._part(name, reads, writes, for_s)
            routes += part.routes if name == run.store else [_elsewhere(name, route) for route in part.routes]
            ends += [part.expires_at] if part.expires_at else []
        expires_at = min(ends, default=0.0)
        access = Access(
            (*routes, *self._ticket(run, attempt, expires_at, max(for_s + _LEAST_PAUSE_S, _LONGER * self._for_s))),
            expires_at,
        )
        provider = self._carrying(run.job.on)
        return provider.carried(attempt.key, access) if provider else access

    def _writes(self, run: Run) -> list[str]:
        shelf = self.shelf(run)
        if shelf:
            self._stores.of(run).prepare(shelf)
        return [layout.run(run.id), shelf] if shelf else [layout.run(run.id)]

    def _ticket(self, run: Run, attempt: Member, expires_at: float, for_s: float) -> tuple[Route, ...]:
        """Lets a node find its next access after this one has expired, for example because the server was down for
        long, and lets a machine start again: these three objects, and nothing else. Not every store supports it."""
        if not self._is_far(run.store):
            return ()
        objects = [one(run.id, attempt.number, attempt.node) for one in (layout.access, layout.again, layout.agent)]
        try:
            later = self._part(run.store, objects, [], for_s)
        except StokerError:
            return ()
        return later.routes if later.expires_at > expires_at else ()

    def _part(self, store: str, reads: list[str], writes: list[str], for_s: float) -> Access:
        known = self._stores.named(store)
        return grant(known.url, self._stores.credential(store), reads=reads, writes=writes, for_s=for_s)

    def _note(self, attempt: Member, access: Access, lease_s: float) -> None:
        """Half of the time beyond its lease is reserved for failing renewals. What cannot be renewed, such as a user's
        SAS, is retried rarely."""
        same = self._ends.get(attempt.key) == access.expires_at
        self._ends[attempt.key] = access.expires_at
        left_s = access.expires_at - self._clock.now().timestamp() if access.expires_at else float("inf")
        if left_s <= 0:
            self.trouble[attempt.key] = "its credential has expired"
            same = True
        beyond_s = left_s - lease_s if left_s > lease_s else left_s
        self._due[attempt.key] = self._clock.now().timestamp() + max(
            beyond_s / 2, _SAME_PAUSE_S if same else _LEAST_PAUSE_S
        )

    def _seal(self, node_key: str) -> str:
        with self._lock:
            key = self._keychain.get(SEAL)
            if key is None:
                key = signing.new_key()
                self._keychain.keep(SEAL, key)
        return signing.derived_key(key, node_key)


def needs(run: Run, *, far: bool) -> dict[str, list[str]]:
    """By store: what the nodes of a run read besides its own folder, each a prefix or the key of one object. If the
    run's store is `far`, its code is one object."""
    found = {run.store: [layout.code(run.snapshot)] if far else ["blobs/", "snapshots/"]}
    for order in run.inputs.values():
        if order.store:
            found.setdefault(order.store, []).extend(order.reads)
    return found


def _elsewhere(store: str, route: Route) -> Route:
    return replace(route, prefix=layout.elsewhere(store, route.prefix))


RENEWALS = 4  # in the time of one lease: three of them may get lost
OFTEN_S = 150.0  # a server that goes away has renewed a long lease not longer ago than this


class Leases:
    """Called from several threads."""

    def __init__(
        self, providers: Mapping[str, Provider], stores: StoreDirectory, accesses: Accesses, clock: Clock
    ) -> None:
        self._providers = providers
        self._stores = stores
        self.accesses = accesses
        self._clock = clock
        # By node key: when it is renewed next, in unix seconds, and how long the last one was. Unknown: now, as after a
        # restart. A computer that slept is late, and its steady clock does not know.
        self._given: dict[str, tuple[float, float]] = {}
        self.renewed_at: dict[str, datetime] = {}  # by node key: how long a node may stay that is not seen

    def lasting_s(self, run: Run, attempt: Member, fuse: Fuse | None = None) -> float:
        """The current duration of this node's lease; 0: it has none."""
        features = self._providers[run.job.on].features
        lease_s = reckoning.lease_s(run, attempt, fuse, features, self._clock.now()) if features.lease_s else 0.0
        # A node that cannot write to its store any more is of no use.
        return min(lease_s, max(self.accesses.lasts_s(attempt.key), self.idle_s(run)))

    def idle_s(self, run: Run) -> float:
        """The same for a node without work."""
        return reckoning.idle(self._providers[run.job.on].features)

    def is_due(self, attempt: Member, lease_s: float) -> bool:
        """Cheap: asked in every round. One that becomes much shorter or longer is given at once: after a raised budget
        the server may go away."""
        due, before_s = self._given.get(attempt.key, (0.0, 0.0))
        changed = not before_s / 2 <= lease_s <= before_s * 2
        return bool(lease_s) and (changed or self._clock.now().timestamp() >= due)

    def renew(self, run: Run, attempt: Member, lease_s: float) -> None:
        if not lease_s:
            return
        now = self._clock.now()
        # The number only has to grow, also after a restart of the server.
        lease = Lease(int(now.timestamp() * 1000), lease_s, now)
        key = layout.lease(run.id, attempt.number, attempt.node)
        self._stores.of(run).put(key, self.accesses.signed(run, attempt, key, wire.dump(lease)))
        self.renewed_at[attempt.key] = self._clock.now()
        _, before_s = self._given.get(attempt.key, (0.0, 0.0))
        # A node that was requested ahead exists when it gets its orders, and its mark still tells of the short lease.
        grown = 0 < before_s < lease_s / 2
        pause_s = 0.0 if grown else min(lease_s / RENEWALS, OFTEN_S)
        self._given[attempt.key] = self._clock.now().timestamp() + pause_s, lease_s

    def mark(self, run: Run, attempt: Member, lease_s: float) -> None:
        """Writes on the node how long it may stay. Only for `stoker cleanup`: the node does not read it."""
        if provider := leased(self._providers[run.job.on]):
            provider.renew(attempt.key, lease_s)

    def forget(self, node_key: str) -> None:
        self._given.pop(node_key, None)
        self.renewed_at.pop(node_key, None)
