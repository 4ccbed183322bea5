"""The way in for people: runs the visits that the server wishes for, and tells a shell of this machine where it is."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from stoker.agent.machine.machine import NodeFolder
from stoker.agent.notice.stopping import Stopping, WishWatch
from stoker.agent.processes import family
from stoker.agent.processes.family import MARK
from stoker.agent.shipping.logs import Masking
from stoker.agent.visits.visit import RunningVisit, Surroundings
from stoker.model.node.orders import Orders, Visit
from stoker.model.node.visit import Inside
from stoker.model.wire import dump
from stoker.model.workspace import layout
from stoker.stores import Store

END_S = 6.0  # visits that do not end when they are asked to are killed before that


class Door:
    """Visits are begun once each, while the door is open, and ended when nobody wishes for them any more."""

    def __init__(self, store: Store, orders: Orders, folder: NodeFolder, masking: Masking) -> None:
        self._store = store
        self._orders = orders
        self._folder = folder
        self._masking = masking
        self._lock = threading.Lock()
        self._env: Mapping[str, str] | None = None
        self._place: Surroundings | None = None  # None: it is shut
        self._wished: dict[str, Visit] = {}
        self._running: dict[str, RunningVisit] = {}
        self._begun: set[str] = set()

    def open(self, env: Mapping[str, str]) -> None:
        """From here on commands run with these variables. Opened again, later ones have the new ones."""
        self._env = env
        self.reopen()
        hidden = {*self._orders.job.secrets, MARK}
        inside = Inside(str(self._folder.work), {name: env[name] for name in env if name not in hidden})
        _write_private(self._folder.inside, dump(inside))

    def reopen(self) -> None:
        """After it was shut: with the same variables. One that was never opened stays shut."""
        with self._lock:
            self._place = Surroundings(str(self._folder.work), self._env) if self._env is not None else None
            self._begin()

    def see(self, visits: Collection[Visit]) -> None:
        """What is wished for now. Called by the thread that reads wishes."""
        with self._lock:
            self._wished = {one.id: one for one in visits}
            for id, running in list(self._running.items()):
                if running.wait(0):
                    del self._running[id]
                elif id not in self._wished:
                    running.end("it was ended")
            self._begin()

    def shut(self, why: str) -> None:
        """Ends those that run, and returns when they have. What is wished for meanwhile waits until it is opened."""
        with self._lock:
            self._place = None
            running, self._running = self._running, {}
        for one in running.values():
            one.end(why, hurry=True)
        for one in running.values():
            one.wait(END_S)

    def _begin(self) -> None:
        if self._place is None:
            return
        for id in self._wished.keys() - self._begun:
            self._begun.add(id)
            prefix = layout.visit(self._orders.run_id, self._orders.attempt, id)
            self._running[id] = RunningVisit(self._wished[id], self._store, prefix, self._masking)
            self._running[id].start(self._place)


def _write_private(file: Path, data: bytes) -> None:
    part = file.with_suffix(".part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:
        opened.write(data)
    part.replace(file)


# The node of a run that failed, kept for a while: the script is over, and people may still come in.

LOOK_EVERY_S = 0.2


def keep(store: Store, orders: Orders, door: Door, seconds: float) -> None:
    """Returns when the time is up, by this machine's steady clock, or when the agent is told to end. The server may
    take the node away earlier."""
    released = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: released.set())
    watch = WishWatch(store, orders, Stopping(), lambda _: None, door.see)
    until = time.monotonic() + seconds
    door.reopen()
    watch.start()
    while not released.wait(LOOK_EVERY_S) and time.monotonic() < until:
        family.reap()  # the shells of visits
    watch.finish()
    door.shut("the node is no longer kept")
