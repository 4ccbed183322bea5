"""The node of a run that failed, kept for a while: the script is over, and people may still come in."""

from __future__ import annotations

import signal
import threading
import time

from stoker.agent import processes
from stoker.agent.door import Door
from stoker.agent.stopping import Stopping, WishWatch
from stoker.model.orders import Orders
from stoker.stores import Store

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
        processes.reap()  # the shells of visits
    watch.finish()
    door.shut("the node is no longer kept")
