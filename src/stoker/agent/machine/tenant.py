"""What runs on a machine that costs money: an agent, and beside it the lease that says how long both may stay."""

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

from stoker.agent.attempt.beginning import RESTARTS
from stoker.agent.machine.cloud import SelfRemoval, load_cloud
from stoker.agent.machine.fuse import TenantFuse, age_by_date
from stoker.agent.machine.incarnation import LEAVES, Standing, standing, unreported
from stoker.agent.machine.machine import NodeFolder
from stoker.agent.notice.stopping import GOING_DOWN, LEASE_OVER, hear
from stoker.errors import Missing, StokerError
from stoker.model.node.node import LAST_WORDS_S, Lease
from stoker.model.node.orders import Orders
from stoker.model.wire import load
from stoker.model.workspace import layout
from stoker.stores import Store
from stoker.stores.sealed import unseal

LOOK_EVERY_S = 15.0
LOOKS_PER_LEASE = 8
CHILD_EVERY_S = 0.25
FIRST_EVERY_S = 1.0  # how often a machine that has just started looks for what it is to do
VACANT_EVERY_S = 2.0  # how often a machine without an agent looks for orders
IDLE_S = 600.0  # for a server to want something of a machine on which nobody works
RESTART_S = 300.0  # for a machine to restart, which may not happen after all


@dataclass(frozen=True, slots=True)
class Tenancy:
    """Read from the file that the machine was given at its start."""

    store: str
    orders: str
    lease_s: float
    release: SelfRemoval
    arguments: Mapping[str, str] = field(default_factory=dict)  # for the agent
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    spend: Mapping[str, Any] = field(default_factory=dict)  # `seconds` that it may cost, and `as_of`; empty: no limit
    idle_s: float = IDLE_S  # the machine stays so long without its server when nobody works on it
    sealed: bool = False  # what the agent needs waits in the store, sealed for this machine: these variables open it

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
        """How long it may cost, from now on, as far as was known when the machine was asked for."""
        if not self.spend:
            return math.inf
        return float(self.spend["seconds"]) - age_by_date(datetime.fromisoformat(self.spend["as_of"]), _now())

    @property
    def options(self) -> dict[str, str]:
        """What the agent is started with."""
        return {"--store": self.store, "--orders": self.orders, **self.arguments}

    def newest(self, store: Store) -> Tenancy:
        """This one with what the machine was given last: orders, and the secrets and the access of its run, which are
        nowhere on its disk. What was written at the machine's start stays what it opens them with. The same object
        where there is nothing, or nothing that can be read now."""
        key = layout.again(*layout.node_with(self.orders))
        try:
            found = json.loads(unseal(self.variables["STOKER_SEAL"], store.get(key), key))
            given = {"orders": found["orders"], "variables": found["variables"], "spend": found.get("spend") or {}}
            return replace(self, **given, sealed=False)
        except (StokerError, ValueError, KeyError, TypeError):
            return self


Start = Callable[[Tenancy], subprocess.Popen[bytes]]
Open = Callable[[Tenancy], Store]


class Tenant:
    """`first` is what the machine was made with; what it has been given since is asked for at every boot, and whenever
    nobody works here."""

    def __init__(self, first: Tenancy, open_store: Open, start: Start) -> None:
        self._first = first
        self._open = open_store
        self._start = start
        self._every_s = min(LOOK_EVERY_S, first.idle_s / LOOKS_PER_LEASE)
        self._vacant_since: float | None = None
        file = NodeFolder(Path(first.options["--folder"])).fuse
        self._fuse = TenantFuse(file)

    def live(self) -> int:
        """Stays until somebody removes the machine or its lease is over, and no longer than a short while once nobody
        works here: the server may want to look at it, or resume here. A machine that is shut down is left to whoever
        does it."""
        signal.signal(signal.SIGTERM, _shut_down)
        try:
            newest = self._first_words()
        except ShutDown:
            return 0
        if newest.sealed:
            print("nothing for this machine in the store: removing it", file=sys.stderr, flush=True)  # noqa: T201
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
        why = "nobody works here" if self._lease.left_s > 0 else "the lease of this machine is over: saving"
        print(f"{why}, then removing it", file=sys.stderr, flush=True)  # noqa: T201
        end(self._agent, LEASE_OVER)
        self._first.release.carry_out()
        return 0

    def _why_not(self, tenancy: Tenancy) -> str:
        """Moves in, unless this machine was made again after an eviction and may not continue: why, in words."""
        until = time.monotonic() + self._first.idle_s
        while True:
            try:
                found = self._standing(tenancy)
                break
            except (StokerError, ValueError, KeyError, TypeError) as error:
                if time.monotonic() >= until:
                    return f"its store cannot be read ({error})"
                time.sleep(FIRST_EVERY_S)
        if found is None:
            self._move_in(tenancy)
        elif not found.why_not:
            self._move_in(tenancy, found)
        return found.why_not if found else ""

    def _standing(self, tenancy: Tenancy) -> Standing | None:
        """None where this is the first machine. Orders that are not there yet have been begun by nobody."""
        store = self._open(tenancy)
        try:
            orders = load(Orders, hear(store, tenancy.orders))
        except Missing:
            return None
        folder = NodeFolder(Path(tenancy.options["--folder"]))
        return standing(store, orders, folder) or unreported(store, orders, folder, tenancy.lease_s)

    def _first_words(self) -> Tenancy:
        """Still sealed where they could not be read for as long as the machine may stay without a word."""
        store, until = self._open(self._first), time.monotonic() + min(self._first.idle_s, self._first.spend_s)
        while True:
            newest = self._first.newest(store)
            if not newest.sealed or time.monotonic() >= until:
                return newest
            time.sleep(FIRST_EVERY_S)

    def _guard(self) -> None:
        """In a thread of its own: no store that does not answer may hold it up. The agent knew of the limit in time, so
        whatever it still does when the moment has come would cost more than it may."""
        while self._fuse.look() > 0 and not (self._fuse.over and self._agent.poll() is not None):
            time.sleep(min(max(self._fuse.look(), 0.0), CHILD_EVERY_S))
        print("the money of this run is spent: removing the machine", file=sys.stderr, flush=True)  # noqa: T201
        self._agent.kill()
        self._first.release.carry_out()
        os._exit(0)

    def _move_in(self, tenancy: Tenancy, left: Standing | None = None) -> None:
        """`left` is what earlier machines of this attempt have left of its money and its lease."""
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
        self._restart_by: float | None = None  # when a restart that was announced is no longer waited for

    def _wait(self, seconds: float) -> None:
        """No zombie is left, and the time goes by either way."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            if self._is_vacant() and time.monotonic() >= self._look_at:
                self._look_at = time.monotonic() + VACANT_EVERY_S
                newest = self._first.newest(self._store)
                if newest.orders != self._now.orders:
                    return self._move_in(newest)
            time.sleep(min(left_s, CHILD_EVERY_S))
        return None

    def _is_vacant(self) -> bool:
        """Nobody works here, nor will be interrupted in a moment."""
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
        """How long a machine on which nobody works may wait for its server; every lease that it hears of begins this
        anew."""
        if not self._is_vacant() or self._vacant_since is None:
            return math.inf
        return max(self._vacant_since, self._lease.heard_at) + self._first.idle_s - time.monotonic()


class ShutDown(Exception):
    """The machine is going down."""


def _shut_down(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # as signal handlers are
    raise ShutDown


def end(agent: subprocess.Popen[bytes], why: signal.Signals) -> None:
    """In good order if it can: the agent commits, uploads and reports when it is told to end."""
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


# How long a node may still stay, by its own steady clock.


class LeaseWatch:
    """A lease that cannot be read runs on: the store being away is no renewal, and no reason to hurry either."""

    def __init__(self, store: Store, key: str, first_s: float, steady: Callable[[], float], number: int = -1) -> None:
        """`number` is that of a lease of which `first_s` are left: it is not begun again."""
        self._store = store
        self._key = key
        self._steady = steady
        self._number = number
        self._until = steady() + first_s  # what the node was started with
        self.heard_at = steady()  # when a new one was last seen

    def look(self) -> float:
        """Reads the lease again, and returns the seconds that are left of it: none, or fewer, when it is over."""
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
