"""What runs on a machine that is billed: an agent, and next to it the lease that limits how long both may stay."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from stoker.agent.attempt.attempt import RESTARTS
from stoker.agent.machine.cloud import SelfRemoval, load_cloud
from stoker.agent.machine.fuse import TenantFuse, age_by_date
from stoker.agent.machine.incarnation import LEAVES, Inheritance, standing, unreported
from stoker.agent.machine.machine import NodeFolder
from stoker.agent.notice.stopping import GOING_DOWN, LEASE_OVER, hear
from stoker.errors import Missing, NoCipher, StokerError
from stoker.model.node import LAST_WORDS_S, Lease
from stoker.model.orders import Orders
from stoker.model.wire import load
from stoker.model.workspace import layout
from stoker.stores import Store
from stoker.stores.unsealing import unseal

LOOK_EVERY_S = 15.0
LOOKS_PER_LEASE = 8
CHILD_EVERY_S = 0.25
FIRST_EVERY_S = 1.0  # how often a machine that has just started looks for orders
VACANT_EVERY_S = 0.5  # how often a machine without an agent looks for orders
IDLE_S = 600.0  # how long a machine without a run waits for its server
RESTART_S = 300.0  # for a machine to restart, which may not happen after all


@dataclass(frozen=True, slots=True)
class Tenancy:
    """Read from the file that the machine got at its start."""

    store: str
    orders: str
    lease_s: float
    release: SelfRemoval
    arguments: Mapping[str, str] = field(default_factory=dict)  # for the agent
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    spend: Mapping[str, Any] = field(
        default_factory=dict
    )  # `seconds` that it may be billed, and `as_of`; empty: no limit
    idle_s: float = IDLE_S  # how long the machine stays without its server while it has no run
    sealed: bool = False  # the agent's settings are encrypted in the store: these variables decrypt them

    @classmethod
    def read(cls, path: Path) -> Tenancy:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        names = ("store", "orders", "lease_s", "arguments", "variables")
        given = {name: found[name] for name in names}
        spend, sealed = found.get("spend") or {}, bool(found.get("sealed"))
        idle_s = min(float(found.get("idle_s", IDLE_S)), found["lease_s"])
        release = load_cloud(found["arguments"]["--cloud"]).removal(found["release"])
        return cls(release=release, **given, spend=spend, idle_s=idle_s, sealed=sealed)

    @property
    def spend_s(self) -> float:
        """How long it may be billed, from now on, as known when the machine was requested."""
        if not self.spend:
            return math.inf
        return float(self.spend["seconds"]) - age_by_date(datetime.fromisoformat(self.spend["as_of"]), _now())

    @property
    def options(self) -> dict[str, str]:
        """The arguments of the agent."""
        return {"--store": self.store, "--orders": self.orders, **self.arguments}

    @property
    def run(self) -> str:
        """The id of its run."""
        return layout.node_with(self.orders)[0]

    @property
    def number(self) -> int:
        """Of its attempt. A machine never returns to an earlier one: someone with write access to the store cannot
        decrypt a message, but can restore an old one."""
        return layout.node_with(self.orders)[1]

    def newest(self, store: Store) -> Tenancy:
        """With the newest orders, secrets and store token of the machine, which are never on its disk. The variables
        from the machine's start still decrypt them. Returns the same object where there is nothing new, or nothing
        readable. Raises NoCipher."""
        key = layout.again(*layout.node_with(self.orders))
        try:
            found = json.loads(unseal(self.variables["STOKER_SEAL"], store.get(key), key))
            given = {"orders": found["orders"], "variables": found["variables"], "spend": found.get("spend") or {}}
            return replace(self, **given, sealed=False)
        except NoCipher:
            raise
        except (StokerError, ValueError, KeyError, TypeError):
            return self


Start = Callable[[Tenancy], subprocess.Popen[bytes]]
Open = Callable[[Tenancy], Store]


class Tenant:
    """`first` is what the machine was created with; newer orders are fetched at every boot and whenever no agent is
    running."""

    def __init__(self, first: Tenancy, open_store: Open, start: Start) -> None:
        self._first = first
        self._open = open_store
        self._start = start
        self._every_s = min(LOOK_EVERY_S, first.idle_s / LOOKS_PER_LEASE)
        self._vacant_since: float | None = None
        file = NodeFolder(Path(first.options["--folder"])).fuse
        self._fuse = TenantFuse(file)

    def live(self) -> int:
        """Stays until the machine is removed or its lease expires, and only a short while without a run: the server may
        inspect it, or resume here. A machine that is being shut down is left alone."""
        signal.signal(signal.SIGTERM, _shut_down)
        try:
            newest = self._first_words()
        except ShutDown:
            return 0
        except NoCipher as error:
            print(f"{error.message}. {error.hint}. Removing this machine", file=sys.stderr, flush=True)  # noqa: T201
            self._first.release.carry_out()
            return 0
        if newest.sealed:
            print("no orders for this machine in the store: removing it", file=sys.stderr, flush=True)  # noqa: T201
            self._first.release.carry_out()
            return 0
        if why := self._why_not(newest):
            print(f"{why}: removing this machine", file=sys.stderr, flush=True)  # noqa: T201
            self._first.release.carry_out()
            return 0
        threading.Thread(target=self._guard, name="money", daemon=True).start()
        try:
            while min(self._lease.look(), self._idle_left_s) > 0 and self._agent.poll() != LEAVES:
                self._wait(min(self._every_s, max(min(self._lease.left_s, self._idle_left_s), 0.0)))
        except ShutDown:
            end(self._agent, GOING_DOWN)
            return 0
        why = "no run on this machine" if self._lease.left_s > 0 else "the lease of this machine has expired: saving"
        print(f"{why}, then removing it", file=sys.stderr, flush=True)  # noqa: T201
        end(self._agent, LEASE_OVER)
        self._first.release.carry_out()
        return 0

    def _why_not(self, tenancy: Tenancy) -> str:
        """Starts an agent, unless this VM was restored after an eviction and may not continue: returns why."""
        until = time.monotonic() + self._first.idle_s
        while True:
            try:
                found = self._standing(tenancy)
                break
            except (StokerError, ValueError, KeyError, TypeError) as error:
                if time.monotonic() >= until:
                    return f"could not read its store ({error})"
                time.sleep(FIRST_EVERY_S)
        if found is None:
            self._move_in(tenancy)
        elif not found.why_not:
            self._move_in(tenancy, found)
        return found.why_not if found else ""

    def _standing(self, tenancy: Tenancy) -> Inheritance | None:
        """None where this is the first VM. Nobody has started orders that do not exist yet."""
        store = self._open(tenancy)
        try:
            orders = load(Orders, hear(store, tenancy.orders))
        except Missing:
            return None
        folder = NodeFolder(Path(tenancy.options["--folder"]))
        return standing(store, orders, folder) or unreported(store, orders, folder, tenancy.lease_s)

    def _first_words(self) -> Tenancy:
        """Still encrypted where they were unreadable for as long as the machine may stay without contact."""
        store, until = self._open(self._first), time.monotonic() + min(self._first.idle_s, self._first.spend_s)
        while True:
            newest = self._first.newest(store)
            if not newest.sealed or time.monotonic() >= until:
                return newest
            time.sleep(FIRST_EVERY_S)

    def _guard(self) -> None:
        """In a thread of its own: a store that does not answer must not delay it. The agent knew the limit in time, so
        whatever it still does now would exceed the budget."""
        while self._fuse.look() > 0 and not (self._fuse.over and self._agent.poll() is not None):
            time.sleep(min(max(self._fuse.look(), 0.0), CHILD_EVERY_S))
        print("the budget of this run is spent: removing the machine", file=sys.stderr, flush=True)  # noqa: T201
        self._agent.kill()
        self._first.release.carry_out()
        os._exit(0)

    def _move_in(self, tenancy: Tenancy, left: Inheritance | None = None) -> None:
        """`left` is what earlier VMs of this attempt have left of its budget and its lease."""
        again = left is not None and left.begun
        self._fuse.begin(time.monotonic() + (left.spend_left_s if left and again else tenancy.spend_s))
        self._now = tenancy
        self._store = self._open(tenancy)
        lease_s = left.lease_left_s if left else tenancy.lease_s
        number = left.lease_number if left else -1
        self._lease = LeaseWatch(self._store, layout.lease_beside(tenancy.orders), lease_s, time.monotonic, number)
        self._agent = self._start(
            replace(tenancy, arguments={**tenancy.arguments, "--restored": "1"}) if again else tenancy
        )
        self._look_at = 0.0
        self._vacant_since = None
        self._restart_by: float | None = None  # until when to wait for an announced restart

    def _wait(self, seconds: float) -> None:
        """Reaps zombies, and always takes this long."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            if self._is_vacant() and time.monotonic() >= self._look_at:
                self._look_at = time.monotonic() + VACANT_EVERY_S
                if newest := self._next():
                    return self._move_in(newest)
            time.sleep(min(left_s, CHILD_EVERY_S))
        return None

    def _next(self) -> Tenancy | None:
        """What this machine was told since. For the next run of its cluster, that is where its last run was told; for
        the next attempt of the same run, where it was first told."""
        told = self._now.newest(self._store)
        if told.run != self._now.run:
            return told
        newest = self._first.newest(self._store) if self._first.run == self._now.run else told
        return newest if newest.number > self._now.number and newest.run == self._now.run else None

    def _is_vacant(self) -> bool:
        """No agent is running, nor about to be restarted."""
        code = self._agent.poll()
        if code == RESTARTS and self._restart_by is None:
            self._restart_by = time.monotonic() + RESTART_S
        waits = code == RESTARTS and time.monotonic() < (self._restart_by or 0.0)
        vacant = code is not None and not waits
        if vacant and self._vacant_since is None:
            self._vacant_since = time.monotonic()
        return vacant

    @property
    def _idle_left_s(self) -> float:
        """How long a machine without a run may wait for its server; every new lease restarts this."""
        if not self._is_vacant() or self._vacant_since is None:
            return math.inf
        return max(self._vacant_since, self._lease.heard_at) + self._first.idle_s - time.monotonic()


class ShutDown(Exception):
    """The machine is shutting down."""


def _shut_down(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # as signal handlers are
    raise ShutDown


def end(agent: subprocess.Popen[bytes], why: signal.Signals) -> None:
    """Cleanly if possible: the agent commits, uploads and reports on SIGTERM."""
    if agent.poll() is not None:
        return
    agent.send_signal(why)
    try:
        agent.wait(LAST_WORDS_S)
    except subprocess.TimeoutExpired:
        agent.kill()
        agent.wait()


def _now() -> datetime:
    return datetime.now(UTC)


# How long a node may still run, by its own monotonic clock.


class LeaseWatch:
    """An unreadable lease keeps running: an unavailable store neither renews nor shortens it."""

    def __init__(self, store: Store, key: str, first_s: float, steady: Callable[[], float], number: int = -1) -> None:
        """`number` is that of a lease with `first_s` left: it does not start again."""
        self._store = store
        self._key = key
        self._steady = steady
        self._number = number
        self._until = steady() + first_s  # from the node's start
        self.heard_at = steady()  # when a new one was last seen

    def look(self) -> float:
        """Reads the lease again and returns the remaining seconds: 0 or less when it has expired."""
        try:
            lease = load(Lease, hear(self._store, self._key))
        except (StokerError, ValueError, KeyError, TypeError):
            return self.left_s
        if lease.number > self._number:
            self._number = lease.number
            self.heard_at = self._steady()
            self._until = self.heard_at + lease.seconds
        return self.left_s

    @property
    def left_s(self) -> float:
        return self._until - self._steady()
