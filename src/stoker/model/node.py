"""Nodes: what a provider offers, gets as requests and sees, how people get to one, and clusters of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, NamedTuple

from stoker.model.run.money import Fuse


@dataclass(frozen=True, slots=True)
class Features:
    """How providers differ. The rest of Stoker asks these fields, never which provider it is."""

    most_nodes: int | None = None  # nodes one run can have; None: no limit of the provider's own
    notice_s: float = 0.0  # the warning before an eviction; 0 where none is given
    overstay_s: float = 0.0  # a node may be seen so long behind its notice: its provider then says why it ended
    spot: bool = False
    containers: bool = False
    surveyed: bool = False  # which engines its nodes have is known before a run, see `providers.Surveyed`
    shares_files: bool = False  # a path on the submitting computer means the same on the node
    elsewhere: bool = False  # its nodes are other computers all the same, and continue while this one sleeps
    look_every_s: float = 5.0  # how often looking is worth its cost
    look_idle_s: float = 60.0  # the same, while nothing of ours is known to be there
    market: bool = False  # its offers differ in size, place and price
    own_queue: bool = False  # it takes any number of nodes and lets them wait itself: its room is not asked for
    patience_s: float = 120.0  # a node that is up but silent for longer is taken for lost
    peer_patience_s: float | None = None  # the same, while others of its gang are heard; None: no different
    lease_s: float = 0.0  # the longest lease of a node; 0: they cost nothing, and have none
    idle_s: float = 600.0  # a node that has a lease, and on which nobody works, stays so long without its server
    reachable: bool = False  # people get in to its nodes, see `providers.Reachable`
    terminal: bool = False  # a script there can have the terminal of whoever submits it
    carries_folders: bool = False  # its nodes reach folders of the server's computer, see `providers.Carrying`
    restores: bool = False  # the provider brings an evicted node back by itself while nobody stops it
    keeps: bool = False  # it has data and environments that a job can name, see `providers.Keeping`
    warm: bool = False  # a node without a run is worth keeping for the next one: a new one takes long to start


@dataclass(frozen=True, slots=True)
class Pool:
    """The cluster that nodes are for, as its provider knows it. One provider serves several clusters: it takes what it
    needs to know of each from here, and `offers` raises BadInput for settings that it cannot use."""

    name: str
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)  # the provider's own, such as a list of hosts
    most_nodes: int = 0  # at once, of all runs together; 0: unknown
    idle_s: float = 0.0  # how long a node without a run stays


@dataclass(frozen=True, slots=True)
class Need:
    """What a run needs of each of its nodes."""

    nodes: int = 1
    spot: bool = False
    cpus: int = 0
    memory_gb: float = 0.0
    gpus: int = 0
    gpu: str = ""  # a model, such as A100; empty: any
    size: str = ""  # the provider's own name for one; the four above then do not matter
    currency: str = "USD"  # in which prices are quoted besides
    region: str = ""  # empty: wherever the provider is set up for
    contained: bool = False  # its script runs in a container: each node requires an engine, or is one
    image: str = ""  # the name of its image; empty: it has none, or one that is built from a Dockerfile
    image_login: str = ""  # the name of the secret for its registry
    pool: Pool | None = None  # the cluster that the nodes are for; None: none
    environment: str = ""  # one that the provider keeps, by its name there; empty: none


@dataclass(frozen=True, slots=True)
class Offer:
    """A size at a price in a place."""

    provider: str
    size: str
    place: str
    usd_per_hour: Decimal  # of everything that makes up a node: its machine, its disk, its address
    slots: int | None = None  # how many nodes of it may be up at once; None: unknown
    spot: bool = False
    on_demand_usd_per_hour: Decimal | None = None  # the price on demand, without evictions; None: unknown
    priced_at: datetime | None = None  # when the price was requested; None: it needs no request
    quoted: Decimal | None = None  # the price in another currency, as the provider itself says it
    currency: str = "USD"  # of that
    ready_s: float = 0.0  # from asking for it to its agent's first word, as it usually goes
    limit_s: float = 0.0  # a node of it ends after so long, and the run continues on another; 0: it stays
    release_s: float = 0.0  # from asking for its release until it is seen gone, at the longest: all of that is paid for
    idle_s: float = 0.0  # without work or orders, from its server's last word until it asks for its release, at most
    unready: str = ""  # why nothing of it can be started yet, as before an account is set up; empty: it can
    renewed_by: str = ""  # the command that renews the prices of a dated list; empty: they are renewed automatically
    again: str = ""  # the machine of an earlier node that is taken once more, see `NodeSight.machine`; empty: a new one
    network: str = ""  # nodes of one gang reach each other only in the same; empty: from anywhere
    waits: str = ""  # the key of the idle node of a cluster that `again` is about; empty: the machine is the run's own
    gang: str = ""  # what its machine was requested with as `NodeRequest.gang`: it stays in that network; empty: alone


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """Asks for one node. The same `key` never gives two nodes.

    `secrets`, `access` and `seal` travel to the agent's environment and are written down nowhere else.
    """

    key: str
    orders: str  # the store key the agent reads
    store: str  # the store's URL
    offer: Offer | None = None
    max_price: Decimal | None = None  # of an hour, where the offer is spot; None: whatever it costs
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    access: str = field(default="", repr=False)  # an `Access` as text; empty: the store is a folder both can reach
    seal: str = field(default="", repr=False)  # opens what the access is renewed with
    fuse: Fuse | None = None  # how long it may cost, by what is known now; None: nothing limits it
    labels: Mapping[str, str] = field(default_factory=dict)  # what people should find written on it: run, owner
    lease_s: float | None = None  # the node works on so long without its server; None: as the provider's account says
    gang: str = ""  # the same for all nodes of a run that has several: they must reach each other; empty: it is alone
    pool: Pool | None = None  # the cluster that the node is for; None: none
    need: Need | None = None  # what its run needs of it, where no offer says so; None: unknown
    together: tuple[str, ...] = ()  # the keys of all nodes of its attempt, in their order: each is asked for by itself

    @property
    def spend(self) -> dict[str, Any]:
        """The same for the machine itself, as it is written down at its start; empty: no limit."""
        return {"seconds": self.fuse.seconds, "as_of": self.fuse.as_of.isoformat()} if self.fuse else {}

    @property
    def variables(self) -> dict[str, str]:
        """What the agent's environment needs besides whatever the node has."""
        given = {"STOKER_ACCESS": self.access, "STOKER_SEAL": self.seal}
        return {**self.secrets, **{name: value for name, value in given.items() if value}, "STOKER_NODE_KEY": self.key}


class NodeState(StrEnum):
    STARTING = "starting"
    UP = "up"
    GONE = "gone"  # was here and is no more: evicted, crashed, or ended


@dataclass(frozen=True, slots=True)
class NodeSight:
    """What the provider sees of one node now."""

    key: str
    state: NodeState
    reason: str = ""
    trouble: str = ""  # the code of the error that ended it, such as `no-capacity`; empty: none that is known
    still: bool = False  # gone for certain: nothing of it can run, though something may be left to release
    resources: tuple[str, ...] = ()  # what it is made of, each as `kind/name`; empty where that costs nothing
    usd_per_hour: Decimal = Decimal(0)  # what it costs now
    machine: str = ""  # the key it was first had under, where it has been given to a later node since; empty: its own
    waits: str = ""  # why it is still in the provider's own queue, for however long that takes; empty: it is not
    taken: bool = False  # gone because the provider took it away, as it does with spot machines
    unfinished: bool = False  # its creation was interrupted: another request continues it
    resumable: bool = False  # switched off, with its disk: once it is `still` it can be asked for, as `Offer.again`
    server: str = ""  # the id of another server, whose it is; empty: ours
    lease_until: datetime | None = None  # what is written on it; None: nothing is
    expired: bool = False  # that moment is past, by the provider's own clock


# The right of a node to stay. The server renews it; a node whose lease is over saves and removes itself.

LAST_WORDS_S = 120.0  # to save and upload, once the lease is over


@dataclass(frozen=True, slots=True)
class Lease:
    """Lasts `seconds` from the moment the node first sees this `number`: no two clocks have to agree."""

    number: int
    seconds: float
    given_at: datetime | None = None  # by the server's clock, for a machine that begins when it has long been given


NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
MOST_NODES = 10_000
IDLE_S = 600.0


@dataclass(frozen=True, slots=True)
class Cluster:
    name: str
    provider: str
    max_nodes: int
    min_nodes: int = 0  # the fewest that it has, busy and idle together: the missing ones are started ahead of any run
    idle_s: float = IDLE_S  # a node without a run is released after this
    size: str = ""  # the provider's name for one; empty: each job says what it needs
    region: str = ""  # empty: wherever the provider is set up for
    spot: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)  # the provider's own
    owner: str = ""  # who pays for idle nodes
    paused: bool = False  # it has no nodes, and nothing starts
    created_at: datetime | None = None

    @property
    def pool(self) -> Pool:
        return Pool(self.name, self.settings, self.max_nodes, self.idle_s)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A cluster and its use now. Idle time is paid by the owner, and is part of no run's cost."""

    cluster: Cluster
    busy_nodes: int = 0
    idle_nodes: int = 0
    running: tuple[str, ...] = ()  # names of runs that have nodes
    waiting: tuple[str, ...] = ()  # names of runs that wait for nodes, in starting order
    idle_hours: float = 0.0  # of all nodes together, so far
    idle_usd: Decimal = Decimal(0)
    runs_usd: Decimal = Decimal(0)  # what its runs have cost, without idle time


@dataclass(frozen=True, slots=True)
class ListedNode:
    """`claimed` says that a run still needs it. `run` is the id of the run it was started for. `server` is the id of
    another server, if the node belongs to that one; `expired` says that its lease is over."""

    provider: str
    key: str
    run: str
    state: str
    reason: str
    claimed: bool
    resources: tuple[str, ...] = ()
    usd_per_hour: Decimal = Decimal(0)
    server: str = ""
    lease_until: datetime | None = None
    expired: bool = False
    stuck: str = ""  # why it could not be released, with what to do
    run_name: str = ""  # of the run that needs it
    kept_until: datetime | None = None  # set if it is kept after that run's failure
    spent_usd: Decimal | None = None  # what it has cost so far; None: unknown


@dataclass(frozen=True, slots=True)
class Unseen:
    """A provider that did not answer: what is left there is unknown."""

    provider: str
    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Troubled:
    """A run whose state is unknown: its nodes are claimed, and may cost money without being of use."""

    run: str
    id: str
    reason: str
    keys: tuple[str, ...] = ()
    usd_per_hour: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class NodeListing:
    """`unseen` and `troubled` say what the list of nodes may lack."""

    nodes: tuple[ListedNode, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    troubled: tuple[Troubled, ...] = ()

    @property
    def whole(self) -> bool:
        return not self.unseen and not self.troubled


@dataclass(frozen=True, slots=True)
class Entrance:
    """`words` run a command there, in the folder and with the variables of the run; without one, a shell."""

    words: tuple[str, ...]
    terminal: tuple[str, ...] = ()  # words that make the terminal of who runs them that of the script; empty: none do
    here: bool = False  # the node is on the server's own computer
    address: str = ""  # where its sshd listens, if it is not here
    user: str = ""
    port: int = 22


@dataclass(frozen=True, slots=True)
class Inside:
    """Lies as `inside.json` in a node's folder. The secrets of the run are not among the variables."""

    folder: str  # the script's
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    through: tuple[str, ...] = ()  # what runs a command in the container of the script; empty: it is in none
    on_terminal: tuple[str, ...] = ()  # the same for somebody at a terminal
    outside: Mapping[str, str] = field(default_factory=dict, repr=False)  # variables of those two


@dataclass(frozen=True, slots=True)
class Said:
    """What a command has printed, all of it, and its exit code."""

    exit_code: int
    out: bytes = b""
    err: bytes = b""


# What a visit says on its way to whoever listens: pieces of two streams, notes, and its end, one after another.

_HEAD = 5  # a letter and four bytes of length


class FrameKind(StrEnum):
    OUT = "o"
    ERR = "e"
    NOTE = "n"  # words for a person; empty: a sign of life
    END = "x"  # a `VisitEnd`, and the last of all


class Frame(NamedTuple):
    kind: FrameKind
    data: bytes = b""

    def packed(self) -> bytes:
        return self.kind.encode() + len(self.data).to_bytes(4, "big") + self.data


def frames(pieces: Iterable[bytes]) -> Iterator[Frame]:
    """From bytes in pieces of any size. One that is cut off is not given out."""
    buffer = b""
    for piece in pieces:
        buffer += piece
        while len(buffer) >= _HEAD:
            size = _HEAD + int.from_bytes(buffer[1:_HEAD], "big")
            if len(buffer) < size:
                break
            yield Frame(FrameKind(buffer[:1].decode()), buffer[_HEAD:size])
            buffer = buffer[size:]
