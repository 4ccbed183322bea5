"""Before the ranks start: every node says that it is ready, and the first one says when and where they meet."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from stoker.agent.attempt.endings import AttemptBroken
from stoker.agent.checkpoints.naming import is_later, is_time, kind_of, label_of
from stoker.agent.checkpoints.restoring import Wanted
from stoker.agent.gang.addresses import LOOPBACK, Doorbell, free_ports, mine, reaching
from stoker.agent.gang.channel import Channel
from stoker.agent.gang.remote import CommandDoor
from stoker.agent.notice.stopping import Stopping
from stoker.agent.processes.launch import RemoteStart, Workplace
from stoker.agent.shipping.worker import persist
from stoker.model.checkpoint import CheckpointSet
from stoker.model.job.job import Launcher
from stoker.model.node.gang import Go, Ready, SavedSet
from stoker.model.node.orders import Orders

T = TypeVar("T", Ready, Go)

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
                raise AttemptBroken(go.trouble, go.hint)
            self.tell("gang-ready", f"{orders.nodes} nodes were ready after {time.monotonic() - began:.1f} s")
            remote = RemoteStart(agreement.hosts, go.secret)
            if isinstance(bell, CommandDoor):
                remote = RemoteStart({}, "", *bell.take(go.secret, self._pause))
        finally:
            bell.close()
        address = reached[0] if reached and orders.node else go.address
        place = replace(place, port=go.port, workers=go.workers, remote=remote)
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
            _offered(found) if found else None,
            self._sets(orders) if found and found.saves else (),
        )

    def _sets(self, orders: Orders) -> tuple[SavedSet, ...]:
        found = persist(lambda: self.saved(orders), self.stopping.check)
        return tuple(_offered(one) for one in found if one.saves)

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

    def _await(self, of: type[T], kind: str, node: int, number: int) -> T:
        """Waits as long as it takes: whoever cannot come is missed by the server, and by whoever has ended."""
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


def _offered(found: CheckpointSet) -> SavedSet:
    return SavedSet(*found.position, dict(found.saves))


def _told(sets: Sequence[SavedSet]) -> str:
    return f"save {max(max(one.saves.values()) for one in sets)}"


def common(readies: Sequence[Ready]) -> tuple[SavedSet, ...] | None:
    """The newest save that all nodes have, by node; empty: there is none. None: they have not counted their saves.

    What counts are files that all of them have, except for the numbers in the names: others may be written more often.
    """
    if not all(one.sets and (one.label is None or is_time(one.label)) for one in readies):
        return None
    kinds = set.intersection(*({kind_of(path) for each in one.sets for path in each.saves} for one in readies))
    if not kinds:
        return None
    numbered = []
    for one in readies:
        mine: dict[int, SavedSet] = {}
        for each in one.sets:
            mine.setdefault(max((each.saves[path] for path in each.saves if kind_of(path) in kinds), default=0), each)
        numbered.append(mine)
    both = set.intersection(*(set(mine) for mine in numbered)) - {0}
    return tuple(mine[max(both)] for mine in numbered) if both else ()


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
    number, found = readies[0].round, common(readies)
    labels = {one.label for one in readies if one.resumes and one.label is not None and found is None}
    without = [one for one in readies if not one.resumes]
    if found is not None and [one.restored for one in readies] != list(found):
        earlier = Go(number, restore=True, sets=found)
    elif labels and number > 1 and without and len(without) < len(readies):
        earlier = Go(number, restore=True)  # some node has none that is early enough: only nothing is common to all
    elif labels and is_later(max(labels), min(labels)):
        earlier = Go(number, restore=True, label=min(labels))
    else:
        return None
    return earlier if number < MOST_ROUNDS - 1 else Go(number, restore=True)
