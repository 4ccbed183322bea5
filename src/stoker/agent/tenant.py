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

from stoker.agent.attempt import RESTARTS
from stoker.agent.fuse import TenantFuse, age_by_date
from stoker.agent.lease import LeaseWatch
from stoker.agent.nodefolder import NodeFolder
from stoker.agent.release import Release
from stoker.agent.stopping import GOING_DOWN, LEASE_OVER
from stoker.errors import StokerError
from stoker.model import layout
from stoker.model.lease import LAST_WORDS_S
from stoker.stores import Store
from stoker.stores.sealed import unseal

LOOK_EVERY_S = 15.0
LOOKS_PER_LEASE = 8
CHILD_EVERY_S = 0.25
VACANT_EVERY_S = 2.0  # how often a machine without an agent looks for orders
RESTART_S = 300.0  # for a machine to restart, which may not happen after all


@dataclass(frozen=True, slots=True)
class Tenancy:
    """Read from the file that the machine was given at its start."""

    store: str
    orders: str
    lease_s: float
    release: Release
    arguments: Mapping[str, str] = field(default_factory=dict)  # for the agent
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    spend: Mapping[str, Any] = field(default_factory=dict)  # `seconds` that it may cost, and `as_of`; empty: no limit

    @classmethod
    def read(cls, path: Path) -> Tenancy:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        names = ("store", "orders", "lease_s", "arguments", "variables")
        given = {name: found[name] for name in names}
        return cls(release=Release(**found["release"]), **given, spend=found.get("spend") or {})

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
        """This one with the orders that the machine was given last: a run that goes on here has another attempt, access
        and seal. What was written at the machine's start stays what it opens them with."""
        key = layout.again(*layout.node_with(self.orders))
        try:
            found = json.loads(unseal(self.variables["STOKER_SEAL"], store.get(key), key))
            given = {"orders": found["orders"], "variables": found["variables"], "spend": found.get("spend") or {}}
            return replace(self, **given)
        except (StokerError, ValueError, KeyError, TypeError):  # nothing, or nothing that can be read now
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
        self._every_s = min(LOOK_EVERY_S, first.lease_s / LOOKS_PER_LEASE)
        file = NodeFolder(Path(first.options["--folder"])).fuse
        self._fuse = TenantFuse(file)

    def live(self) -> int:
        """Stays until somebody removes the machine or its lease is over: the server may still want to look at it, or
        go on here. A machine that is shut down is left to whoever does it."""
        signal.signal(signal.SIGTERM, _shut_down)
        self._move_in(self._first.newest(self._open(self._first)))
        threading.Thread(target=self._guard, name="money", daemon=True).start()
        try:
            while self._lease.look() > 0:
                self._wait(min(self._every_s, max(self._lease.left_s, 0.0)))
        except ShutDown:
            end(self._agent, GOING_DOWN)
            return 0
        print("the lease of this machine is over: saving, then removing it", file=sys.stderr, flush=True)  # noqa: T201
        end(self._agent, LEASE_OVER)
        self._first.release.carry_out()
        return 0

    def _guard(self) -> None:
        """In a thread of its own: no store that does not answer may hold it up. The agent knew of the limit in time, so
        whatever it still does when the moment has come would cost more than it may."""
        while self._fuse.look() > 0 and not (self._fuse.over and self._agent.poll() is not None):
            time.sleep(min(max(self._fuse.look(), 0.0), CHILD_EVERY_S))
        print("the money of this run is spent: removing the machine", file=sys.stderr, flush=True)  # noqa: T201
        self._agent.kill()
        self._first.release.carry_out()
        os._exit(0)

    def _move_in(self, tenancy: Tenancy) -> None:
        self._fuse.begin(time.monotonic() + tenancy.spend_s)
        self._now = tenancy
        self._store = self._open(tenancy)
        lease_s = tenancy.lease_s
        self._lease = LeaseWatch(self._store, layout.lease_beside(tenancy.orders), lease_s, time.monotonic)
        self._agent = self._start(tenancy)
        self._look_at = 0.0
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
        return code is not None and not waits


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
