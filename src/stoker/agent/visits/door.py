"""Access for people: runs the visits that the server requests, and shows shells on this machine where the script is."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Collection, Mapping

from stoker.agent.machine.machine import NodeFolder
from stoker.agent.notice.stopping import Stopping, WishWatch
from stoker.agent.processes import family
from stoker.agent.processes.family import MARK
from stoker.agent.shipping.logs import Masking
from stoker.agent.visits.visit import RunningVisit, VisitSurroundings
from stoker.files.whole import write_whole
from stoker.model.node.orders import Orders, Visit
from stoker.model.node.visit import Inside
from stoker.model.wire import dump
from stoker.model.workspace import layout
from stoker.stores import Store

END_S = 6.0  # visits that ignore SIGTERM are killed before that


class VisitDoor:
    """Each visit starts once, while the door is open, and is stopped when the server no longer requests it."""

    def __init__(self, store: Store, orders: Orders, folder: NodeFolder, masking: Masking) -> None:
        self._store = store
        self._orders = orders
        self._folder = folder
        self._masking = masking
        self._lock = threading.Lock()
        self._env: Mapping[str, str] | None = None
        self._place: VisitSurroundings | None = None  # None: closed
        self._wished: dict[str, Visit] = {}
        self._running: dict[str, RunningVisit] = {}
        self._begun: set[str] = set()

    def open(self, env: Mapping[str, str]) -> None:
        """From here on commands run with these variables. Opened again, later commands get the new ones."""
        self._env = env
        self.reopen()
        hidden = {*self._orders.job.secrets, MARK}
        inside = Inside(str(self._folder.work), {name: env[name] for name in env if name not in hidden})
        write_whole(self._folder.inside, dump(inside), mode=0o600)

    def reopen(self) -> None:
        """After `shut`: with the same variables. One that was never opened stays closed."""
        with self._lock:
            self._place = VisitSurroundings(str(self._folder.work), self._env) if self._env is not None else None
            self._begin()

    def see(self, visits: Collection[Visit]) -> None:
        """The current requests. Called by the thread that reads wishes."""
        with self._lock:
            self._wished = {one.id: one for one in visits}
            for id, running in list(self._running.items()):
                if running.wait(0):
                    del self._running[id]
                elif id not in self._wished:
                    running.end("the visit was ended")
            self._begin()

    def shut(self, why: str) -> None:
        """Stops running visits, and returns when they have ended. New requests wait until it is opened."""
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


# The node of a run that failed, kept for a while: the script is over, and people may still come in.

LOOK_EVERY_S = 0.2


def keep(store: Store, orders: Orders, door: VisitDoor, seconds: float) -> None:
    """Returns after the time, by this machine's monotonic clock, or when the agent is stopped. The server may release
    the node earlier."""
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
