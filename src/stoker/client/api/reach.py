"""How to connect to a node with OpenSSH's client: its command line. Pure."""

from __future__ import annotations

import re
import shlex
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from stoker.client.api.connection import Connection
from stoker.errors import BadInput, Malformed, ServerUnavailable
from stoker.model import untrusted, wire
from stoker.model.cause import Cause
from stoker.model.node import Entrance, Frame, FrameKind, frames
from stoker.model.orders import VisitEnd
from stoker.model.run.stacks import RankStacks, Standstill

_FORWARD = re.compile(r"(?:(?P<bind>[\w.-]+):)?(?P<port>\d+):(?P<host>[\w.-]+):(?P<there>\d+)")
_LOOPBACK = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True)
class Forward:
    """`port` of this computer is forwarded to `there` of `host`, as the node sees it."""

    port: int
    host: str
    there: int
    bind: str = ""

    def __str__(self) -> str:
        return f"{f'{self.bind}:' if self.bind else ''}{self.port}:{self.host}:{self.there}"

    @property
    def is_itself(self) -> bool:
        """On a node that is this computer: nothing has to be forwarded."""
        return self.port == self.there and self.host in _LOOPBACK


def read_forward(text: str) -> Forward:
    found = _FORWARD.fullmatch(f"{text}:localhost:{text}" if text.isdigit() else text)
    if not found or not all(0 < int(found[name]) < 65536 for name in ("port", "there")):
        raise BadInput(
            f"-L: found `{text}`, expected PORT:HOST:PORT",
            hint="for example -L 6006:localhost:6006",
            cause=Cause.VALUE_INVALID,
        )
    return Forward(int(found["port"]), found["host"], int(found["there"]), found["bind"] or "")


@dataclass(frozen=True, slots=True)
class Call:
    """What to run on the node: a command, a shell, or neither."""

    words: tuple[str, ...] = ()
    forwards: tuple[Forward, ...] = ()
    only_forward: bool = False
    terminal: bool = True
    identity: str = ""  # the file of a private key; empty: whatever ssh finds


def ssh_words(entrance: Entrance, key: str, call: Call, known_hosts: Path) -> list[str]:
    """Addresses are reused by one machine after another, so each is identified by its own key, trusted on first use."""
    options = [
        f"HostKeyAlias=stoker-{key}",
        f"UserKnownHostsFile={known_hosts}",
        "StrictHostKeyChecking=accept-new",
        "ServerAliveInterval=15",
        "ExitOnForwardFailure=yes",
    ]
    words = ["ssh", "-p", str(entrance.port), "-q"]
    words += [word for option in options for word in ("-o", option)]
    words += [word for one in call.forwards for word in ("-L", str(one))]
    words += ["-i", call.identity] if call.identity else []
    target = f"{entrance.user}@{entrance.address}"
    if call.only_forward:
        return [*words, "-N", target]
    return [*words, "-t" if call.terminal else "-T", target, shlex.join([*entrance.words, *call.words])]


# Forwards a port of this computer to another one, for nodes that are this computer.

_AT_ONCE = 1 << 16


class Forwarding:
    """Listens from construction on. Threads serve the connections, and end with this program."""

    def __init__(self, forward: Forward) -> None:
        self._target = (forward.host, forward.there)
        try:
            self._listening = socket.create_server((forward.bind or "127.0.0.1", forward.port))
        except OSError as error:
            raise BadInput(
                f"-L {forward}: port {forward.port} cannot be used: {error.strerror}", hint="choose another port"
            ) from error
        threading.Thread(target=self._accept, daemon=True, name=f"forward {forward}").start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listening.accept()
                threading.Thread(target=self._join, args=(here,), daemon=True).start()

    def _join(self, here: socket.socket) -> None:
        with here, suppress(OSError), socket.create_connection(self._target, timeout=10.0) as there:
            there.settimeout(None)
            back = threading.Thread(target=_pass_on, args=(there, here), daemon=True)
            back.start()
            _pass_on(here, there)
            back.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(_AT_ONCE):
            target.sendall(piece)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


# A command on the node of a run: its output as it comes, and how it ends.


class VisitHandle:
    """Starts on construction, and ends at the latest when its creator disconnects."""

    def __init__(
        self, connection: Connection, run: str, words: Sequence[str], *, node: int = 0, stacks: bool = False
    ) -> None:
        """On this node of a gang. With `stacks` no command runs: its output is a `Standstill`."""
        self._connection = connection
        self._path = f"/v1/runs/{quote(run, safe='')}/visits"
        self.ended: VisitEnd | None = None
        headers, self._pieces = connection.stream(
            self._path, asking={"words": list(words), "node": node, "stacks": stacks}
        )
        self._id = headers["stoker-visit"]

    def frames(self) -> Iterator[Frame]:
        """Its output, until it has ended: `ended` says how. Raises ServerUnavailable if the server ends first."""
        for frame in frames(self._pieces):
            if frame.kind is FrameKind.END:
                self.ended = wire.load(VisitEnd, frame.data)
                return
            yield frame
        raise ServerUnavailable("the server stopped during the command, which ended the command", hint="run it again")

    def end(self) -> None:
        """Like Ctrl-C there. May be called from another thread, and more than once."""
        self._connection.delete(f"{self._path}/{self._id}")


# The stacks of the ranks, of all nodes at once.

STACKS_S = 30.0  # for a node to answer


def taken_stacks(connection: Connection, run: str, nodes: int) -> tuple[RankStacks, ...]:
    """By rank. Raises Conflict where the run has no node."""
    from concurrent.futures import ThreadPoolExecutor  # needed only here

    with ThreadPoolExecutor(min(nodes, 32)) as pool:
        found = [one for some in pool.map(lambda node: _of_node(connection, run, node), range(nodes)) for one in some]
    return tuple(sorted(found, key=lambda one: one.rank))


def _of_node(connection: Connection, run: str, node: int) -> tuple[RankStacks, ...]:
    visit, said = VisitHandle(connection, run, (), node=node, stacks=True), b""
    until = time.monotonic() + STACKS_S
    for frame in visit.frames():
        said += frame.data if frame.kind is FrameKind.OUT else b""
        if time.monotonic() > until:
            visit.end()
            return (RankStacks(-1, note=f"node {node} did not answer within {STACKS_S:g} s"),)
    try:
        ranks = untrusted.load(Standstill, said, datetime.now(UTC)).ranks
    except Malformed:
        why = visit.ended.message if visit.ended and visit.ended.message else "its answer cannot be read"
        return (RankStacks(-1, note=f"node {node}: {why}"),)
    return ranks or (RankStacks(-1, note=f"node {node} has no rank at work"),)
