"""Messages between the nodes of a gang, through the store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TypeVar

from stoker.errors import Malformed, Missing, StokerError
from stoker.model import untrusted
from stoker.model.node.gang import PeerEnd, PeerNotice
from stoker.model.node.orders import Notice, Orders
from stoker.model.run.report import Outcome
from stoker.model.wire import dump
from stoker.model.workspace import layout
from stoker.stores import Store
from stoker.stores.pacing import pacing

T = TypeVar("T")

GOOD = (Outcome.SUCCEEDED, Outcome.TARGET_REACHED)
_FAR_S = 1.0  # between polls of a remote store


class Channel:
    """One object for each node and kind of message."""

    def __init__(self, store: Store, orders: Orders) -> None:
        self._store = store
        self._prefix = layout.gang(orders.run_id, orders.attempt)
        self.node, self.nodes = orders.node, orders.nodes
        self.pause_s = 0.02 if store.near else _FAR_S

    def tell(self, kind: str, message: object) -> None:
        """Raises what the store raises."""
        self._store.put(f"{self._prefix}{kind}-{self.node}.json", dump(message))

    def read(self, of: type[T], kind: str, node: int) -> T | None:
        """None: the node sent no such message, or it is malformed."""
        try:
            key = f"{self._prefix}{kind}-{node}.json"
            return untrusted.fetch(of, self._store, key, untrusted.SMALL_BYTES, datetime.now(UTC))
        except (Missing, Malformed):
            return None

    def names(self) -> set[str]:
        """The messages in the store, as `kind-node`."""
        known = len(self._prefix)
        return {one.key[known:].removesuffix(".json") for one in self._store.list(self._prefix.rstrip("/"))}


class PeerWatch:
    """A thread that polls for messages of peers while the ranks run."""

    def __init__(
        self,
        channel: Channel,
        store: Store,
        heed: Callable[[str, Notice | None], None],
        stop: Callable[[str], None],
    ) -> None:
        """`heed` is told of the notices of peers, by who they are; `stop`, why this node cannot continue."""
        self._channel = channel
        self._heed = heed
        self._stop = stop
        self._every_s = min(pacing(store).wishes_s, _FAR_S)
        self._done = threading.Event()
        self._rung = False
        self._thread = threading.Thread(target=self._run, name="peers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._done.set()

    def end(self, outcome: Outcome, message: str) -> None:
        """Tells the peers that this node has ended. They need not be told of a good end, nor twice."""
        if outcome in (*GOOD, Outcome.PEER_ENDED) or self._rung:
            return
        with suppress(StokerError):  # then they hear of it from the server
            self._channel.tell("end", PeerEnd(self._channel.node, outcome, message[:2000]))
            self._rung = True

    def warned(self, notice: Notice | None) -> None:
        """Tells the peers what this machine was told."""
        with suppress(StokerError):
            self._channel.tell("notice", PeerNotice(self._channel.node, notice))

    def _run(self) -> None:
        while not self._done.wait(self._every_s):
            with suppress(StokerError, ValueError, KeyError, TypeError):  # absent or out of reach: look again
                self._look()

    def _look(self) -> None:
        for name in self._channel.names():
            kind, _, number = name.rpartition("-")
            if not number.isdecimal() or int(number) == self._channel.node:
                continue
            if kind == "end" and (end := self._channel.read(PeerEnd, kind, int(number))):
                if end.outcome not in GOOD:
                    said = f": {end.message}" if end.message else ""
                    self._stop(f"node {number} ended ({end.outcome}){said}")
            elif kind == "notice" and (told := self._channel.read(PeerNotice, kind, int(number))):
                self._heed(f"node {number}", told.notice)
