"""The nodes of a gang: their messages through the store, and where and when their ranks meet."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeVar

from stoker.agent.attempt.endings import AttemptBroken
from stoker.agent.checkpoints.folders.files import (
    is_later,
    is_of_ranks,
    is_time,
    kind_of,
    label_of,
    own_steps,
    written_at,
)
from stoker.agent.checkpoints.restoring import Wanted
from stoker.agent.notice.stopping import Stopping
from stoker.agent.processes.launch import RemoteStart, Workplace
from stoker.agent.processes.remote import LOOPBACK, CommandDoor, Doorbell, free_ports, interface_to, mine, reaching
from stoker.agent.shipping.worker import persist
from stoker.errors import Malformed, Missing, StokerError
from stoker.model import untrusted
from stoker.model.cause import Cause
from stoker.model.job.job import Launcher
from stoker.model.job.sections import CheckpointPaths
from stoker.model.orders import Notice, Orders
from stoker.model.run.report import GOOD, Go, Outcome, PeerEnd, PeerNotice, Ready, SavedSet
from stoker.model.snapshot import CheckpointSet
from stoker.model.wire import dump
from stoker.model.workspace import layout
from stoker.stores import Store, pacing

Message = TypeVar("Message", Ready, Go)

Hosts = Mapping[int, tuple[str, int]]

REACH_S = 60.0  # for the first node to answer under one of its addresses
MOST_ROUNDS = 6  # of restoring an earlier checkpoint; before the last one all begin from nothing


@dataclass(frozen=True, slots=True)
class GangStart:
    go: Go
    hosts: Hosts = field(default_factory=dict)  # by node: where the first one reaches it


@dataclass(frozen=True, slots=True, kw_only=True)
class Meet:
    channel: Channel
    stopping: Stopping
    tell: Callable[[str, str], None]
    resumed: Callable[[], CheckpointSet | None]  # what this node has restored
    saved: Callable[[Orders], Sequence[CheckpointSet]]  # what it could restore, newest first
    restore: Callable[[Orders, Wanted | None], str]  # see `Unpack.again`; returns what the script resumes from

    def __call__(self, orders: Orders, place: Workplace) -> tuple[Orders, Workplace]:
        """Where the ranks meet, once every node is ready. Raises Stopped, and AttemptBroken where they cannot meet."""
        began = time.monotonic()
        mpi = orders.job.launcher is Launcher.MPI
        bell = CommandDoor(orders) if mpi and orders.node else Doorbell(orders)
        try:
            reached = self._reach(orders) if orders.node else mine()
            for number in range(1, MOST_ROUNDS + 1):
                self._say("ready", self._ready(number, orders, place, reached, bell.port))
                agreement = self._agree(number, orders)
                go = agreement.go
                if not go.restore:
                    break
                wanted = go.sets[orders.node].position if go.sets else go.label
                place = replace(place, newest=self.restore(orders, wanted))
            if go.trouble:
                raise AttemptBroken(go.trouble, go.hint, cause=Cause.NOT_TOGETHER)
            self.tell("gang-ready", f"{orders.nodes} nodes were ready after {time.monotonic() - began:.1f} s")
            remote = RemoteStart(agreement.hosts, go.secret)
            if isinstance(bell, CommandDoor):
                remote = RemoteStart({}, "", *bell.take(go.secret, self._pause))
        finally:
            bell.close()
        address = reached[0] if reached and orders.node else go.address
        interface = interface_to(go.address)
        place = replace(place, port=go.port, workers=go.workers, remote=remote, interface=interface)
        return replace(orders, master_address=address), place

    def _ready(self, number: int, orders: Orders, place: Workplace, reached: Sequence[str], port: int) -> Ready:
        found = self.resumed()
        return Ready(
            orders.node,
            number,
            place.processes,
            tuple(reached),
            port,
            found is not None,
            label_of(found) if found else None,
            tuple(mine()),
            tuple(free_ports(place.processes)),
            orders.snapshot,
            _offered(found, orders) if found else None,
            self._sets(orders) if found else (),
            written_at(found) if found and is_of_ranks(found, _ranks(orders.node, place.processes)) else None,
        )

    def _sets(self, orders: Orders) -> tuple[SavedSet, ...]:
        found = persist(lambda: self.saved(orders), self.stopping.check)
        offered = (_offered(one, orders) for one in found)
        return tuple(one for one in offered if one.saves or one.steps)

    def _agree(self, number: int, orders: Orders) -> GangStart:
        """By the first node, for all."""
        if orders.node:
            return GangStart(self._await(Go, "go", 0, number))
        readies = [self._await(Ready, "ready", node, number) for node in range(orders.nodes)]
        go = agreed(readies, free_ports(1)[0])
        hosts: Hosts = {}
        if go.restore and go.sets:
            self.tell("gang-restore", f"the newest checkpoints of the nodes differ: all resume from {_told(go.sets)}")
        elif go.restore:
            what = f"from {go.label:g} or before" if go.label is not None else "from nothing"
            labels = ", ".join(f"{one.label:g}" if one.label is not None else "none" for one in readies)
            self.tell("gang-restore", f"the checkpoints of the nodes differ ({labels}): all resume {what}")
        elif not go.trouble:
            go, hosts = self._reach_all(go, readies, orders)
        self._say("go", go)
        return GangStart(go, hosts)

    def _reach_all(self, go: Go, readies: Sequence[Ready], orders: Orders) -> tuple[Go, Hosts]:
        """With the addresses under which the first node reaches the others, for frameworks whose ranks all listen."""
        found = {one.node: reaching(one.own, one.port, orders, one=True) for one in readies[1:]}
        if not all(found.values()):
            deaf = [one for one in readies[1:] if not found[one.node]]
            return (unreached(go.round, deaf) if orders.job.launcher is Launcher.MPI else go), {}
        hosts = {one.node: (found[one.node][0], one.port) for one in readies[1:]}
        secret = os.urandom(32).hex() if orders.job.launcher is Launcher.MPI else ""
        return replace(go, workers=workers(readies, go.address, hosts), secret=secret), hosts

    def _reach(self, orders: Orders) -> list[str]:
        """The addresses under which the first node answers; none where it does not for long."""
        first = self._await(Ready, "ready", 0, 1)
        until = time.monotonic() + REACH_S
        while not (found := reaching(first.addresses, first.port, orders)) and time.monotonic() < until:
            self._pause()
        return found

    def _say(self, kind: str, message: Ready | Go) -> None:
        persist(lambda: self.channel.tell(kind, message), self.stopping.check)

    def _await(self, of: type[Message], kind: str, node: int, number: int) -> Message:
        """Waits without limit: the server notices a node that does not come, and so do nodes that have ended."""
        while True:
            found = persist(lambda: self.channel.read(of, kind, node), self.stopping.check)
            if found is not None and found.round == number:
                return found
            self._pause()

    def _pause(self) -> None:
        self.stopping.wait(self.channel.pause_s)
        self.stopping.check()


def workers(readies: Sequence[Ready], first: str, hosts: Hosts) -> tuple[str, ...]:
    """Where each rank of the run may listen, by addresses that all nodes can use."""
    found = []
    for one in readies:
        address = hosts[one.node][0] if one.node else first
        if address == LOOPBACK != first:  # on the machine of the first node, but not of all
            address = first
        found += [f"{address}:{port}" for port in one.free]
    return tuple(found)


def unreached(number: int, deaf: Sequence[Ready]) -> Go:
    names = "; ".join(f"node {one.node} at {', '.join(one.own)}" for one in deaf)
    return Go(number, trouble=f"the first node of the gang cannot reach {names}", hint=_OPEN)


_OPEN = "the nodes of a run need an open network between them: allow all TCP ports from one to another"


def _ranks(node: int, processes: int) -> range:
    return range(node * processes, (node + 1) * processes)


def _offered(found: CheckpointSet, orders: Orders) -> SavedSet:
    return SavedSet(*found.position, dict(found.saves), own_steps(found, CheckpointPaths(orders.job.checkpoints)))


def _told(sets: Sequence[SavedSet]) -> str:
    if steps := set.intersection(*(set(one.steps) for one in sets)):
        return f"step {max(steps)}"
    return f"save {max(max(one.saves.values()) for one in sets)}"


def common(readies: Sequence[Ready]) -> tuple[SavedSet, ...] | None:
    """The newest save that all nodes have, by node; empty: there is none. None: nothing tells."""
    if all(one.restored and one.restored.steps for one in readies):
        return _with_common_step(readies)
    return _counted_alike(readies)


def _with_common_step(readies: Sequence[Ready]) -> tuple[SavedSet, ...]:
    """Of each node, the newest set with the newest step that all have: their ranks then agree on that one."""
    both = set.intersection(*({step for each in one.sets for step in each.steps} for one in readies))
    return tuple(next(each for each in one.sets if max(both) in each.steps) for one in readies) if both else ()


def _counted_alike(readies: Sequence[Ready]) -> tuple[SavedSet, ...] | None:
    """None: they have not counted their saves.

    What counts are files that all of them have, except for the numbers in the names: others may be written more often.
    """
    if not all(any(each.saves for each in one.sets) and _is_unnamed(one) for one in readies):
        return None
    kinds = set.intersection(*({kind_of(path) for each in one.sets for path in each.saves} for one in readies))
    if not kinds:
        return None
    numbered = []
    for one in readies:
        mine: dict[int, SavedSet] = {}
        for each in one.sets:
            counts = {path: count for path, count in each.saves.items() if kind_of(path) in kinds}
            if one.written is None or _is_whole(counts):
                mine.setdefault(max(counts.values(), default=0), each)
        numbered.append(mine)
    both = set.intersection(*(set(mine) for mine in numbered)) - {0}
    return tuple(mine[max(both)] for mine in numbered) if both else ()


def _is_unnamed(one: Ready) -> bool:
    return one.label is None or is_time(one.label)


def _is_whole(counts: Mapping[str, int]) -> bool:
    """Every rank had saved when the set was committed: their files have been written equally often."""
    kinds = {kind_of(path) for path in counts}
    return len(kinds) == len({(kind_of(path), count) for path, count in counts.items()})


def _without_ranks(readies: Sequence[Ready]) -> Sequence[Ready]:
    """If the numbers in the names of every node's files may be those of its ranks, they are no steps."""
    if not all(_is_unnamed(one) or one.written is not None for one in readies):
        return readies
    return [one if one.written is None else replace(one, label=one.written) for one in readies]


def agreed(readies: Sequence[Ready], port: int) -> Go:
    """The decision of the first node, from the messages of all."""
    number, peers = readies[0].round, readies[1:]
    deaf = [one.node for one in peers if not one.addresses]
    if deaf:
        names = ", ".join(str(node) for node in deaf)
        tried = ", ".join(readies[0].addresses)
        return Go(
            number,
            trouble=f"node {names} cannot reach the first node of the gang at {tried}",
            hint=_OPEN,
        )
    if len({one.code for one in readies}) > 1:
        spelled = ", ".join(f"node {one.node}: {one.code[:12]}" for one in readies)
        return Go(number, trouble=f"the nodes of the gang have different code ({spelled})", hint="submit the run again")
    counts = {one.processes for one in readies}
    if len(counts) > 1:
        spelled = ", ".join(f"node {one.node}: {one.processes}" for one in readies)
        return Go(
            number,
            trouble=f"the nodes of the gang would start different numbers of processes ({spelled})",
            hint="set `processes` to a number",
        )
    if earlier := _earlier(readies):
        return (
            earlier
            if number < MOST_ROUNDS
            else Go(number, trouble="the nodes of the gang cannot agree on a checkpoint")
        )
    away = [one.addresses[0] for one in peers if one.addresses[0] != LOOPBACK]
    return Go(number, port, away[0] if away else LOOPBACK)


def _earlier(readies: Sequence[Ready]) -> Go | None:
    """What all nodes restore first; None: they have restored checkpoints that belong together."""
    readies = _without_ranks(readies)
    number, found = readies[0].round, common(readies)
    labels = {one.label for one in readies if one.resumes and one.label is not None and found is None}
    without = [one for one in readies if not one.resumes]
    if found is not None and [one.restored for one in readies] != list(found):
        earlier = Go(number, restore=True, sets=found)
    elif found is None and without and len(without) < len(readies):
        earlier = Go(number, restore=True)  # some node has none, or none that is early enough: only nothing is common
    elif labels and is_later(max(labels), min(labels)):
        earlier = Go(number, restore=True, label=min(labels))
    else:
        return None
    return earlier if number < MOST_ROUNDS - 1 else Go(number, restore=True)


T = TypeVar("T")

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
        """`heed` gets the notices of peers, by node; `stop` gets why this node cannot continue."""
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
