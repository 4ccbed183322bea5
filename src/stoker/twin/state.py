"""All that the twin knows, as frozen data, and the private file that it is saved in as a whole, so that a killed twin
continues. A transition takes a `CloudState` and returns the next."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from stoker.errors import TwinFailed
from stoker.files import write_whole
from stoker.model import wire
from stoker.twin import ids
from stoker.twin.time.weather import OrderedFault, Weather

Body = Mapping[str, Any]
DEFAULT_BLOB = "http://127.0.0.1:10000"  # the default of Azurite


class MachinePower(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"  # by its own shutdown or a power-off: still billed
    DEALLOCATING = "deallocating"
    DEALLOCATED = "deallocated"


@dataclass(frozen=True, slots=True)
class Resource:
    id: str
    body: Body  # as ARM returns it, without id, name and type
    created_at: float
    secret: Body = field(default_factory=dict, repr=False)  # write-only for clients

    @property
    def target(self) -> ids.ResourceTarget:
        return ids.read(self.id)

    @property
    def kind(self) -> str:
        return self.target.kind

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def group(self) -> str:
        return self.target.group

    @property
    def region(self) -> str:
        return str(self.body.get("location", ""))

    @property
    def properties(self) -> Body:
        properties: Body = self.body.get("properties", {})
        return properties

    def having(self, **properties: Any) -> Resource:
        """The same with these properties changed."""
        return replace(self, body={**self.body, "properties": {**self.properties, **properties}})

    def answer(self) -> dict[str, Any]:
        return {"id": self.id, "name": self.name, "type": self.kind, **self.body}


@dataclass(frozen=True, slots=True)
class Instance:
    """The machine behind a VM. `name` is unique in the twin, unlike the VM's."""

    name: str
    vm: str  # its id
    address: str
    power: MachinePower
    since: float
    spot: bool = False
    evict_at: float | None = None  # when the weather evicts it
    boots: int = 0
    incarnation: int = 0  # of its Scheduled Events document


@dataclass(frozen=True, slots=True)
class Operation:
    """A long-running operation. It ends when it is due, its chores are done and the operations before it have ended."""

    id: str
    verb: str  # its effect at the end: a name in `passing.ENDS`
    about: str  # a resource's id
    started_at: float
    due_at: float
    chores: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    status: str = "InProgress"
    ended_at: float = 0.0
    error: Body = field(default_factory=dict)
    result: Any = None

    @property
    def open(self) -> bool:
        return self.status == "InProgress"


@dataclass(frozen=True, slots=True)
class Chore:
    """An action on a machine. Kept until it is done, and repeated if the twin dies before it is recorded."""

    id: str
    machine: str
    verb: str  # create, start, power_off, destroy, run, events
    vm: str = ""
    details: Body = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScheduledEvent:
    """A scheduled event of one machine. Without `withdraw_at` it happens at `not_before`."""

    id: str
    vm: str
    event: str  # Preempt, Freeze, Reboot, Redeploy, Terminate
    not_before: float
    withdraw_at: float | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """A service principal, which can log in."""

    client_id: str
    object_id: str
    secret: str = field(repr=False)
    name: str = ""


@dataclass(frozen=True, slots=True)
class Charge:
    """A period in which a resource was billed. `until` is None while it is."""

    resource: str
    meter: str  # on-demand, spot, disk, standard disk, address
    size: str
    region: str
    since: float
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Restore:
    """Instances that a scale set has lost to evictions, and that the cloud tries to restore."""

    set: str  # its id
    missing: int
    next_at: float  # the next try
    until: float  # no try after this


@dataclass(frozen=True, slots=True)
class PriceOrder:
    """From `at` on, a test sets the spot price of this size there."""

    size: str
    region: str
    at: float
    usd_per_hour: float | None  # None: the weather's again


@dataclass(frozen=True, slots=True)
class CloudState:
    tenant: str
    subscription: str
    key: str = field(repr=False)  # signs tokens
    control: str = field(default="", repr=False)  # the token of the twin's own API
    port: int = 0  # of the last start: clients know its address
    admin: str = ""  # the client id that owns the subscription
    weather: Weather = Weather()
    now: float = 0.0  # when it was last saved
    blob: str = DEFAULT_BLOB  # endpoint of the storage accounts, each below its name
    requests: int = 0
    resources: Mapping[str, Resource] = field(default_factory=dict)  # by id in lower case; groups too
    instances: Mapping[str, Instance] = field(default_factory=dict)  # by the VM's id in lower case
    operations: Mapping[str, Operation] = field(default_factory=dict)
    chores: Mapping[str, Chore] = field(default_factory=dict)  # in order
    notices: Mapping[str, ScheduledEvent] = field(default_factory=dict)
    principals: Mapping[str, Principal] = field(default_factory=dict)
    restores: Mapping[str, Restore] = field(default_factory=dict)  # by the set's id in lower case
    charges: tuple[Charge, ...] = ()
    prices: tuple[PriceOrder, ...] = ()
    quotas: Mapping[str, int] = field(default_factory=dict)  # `region/family`, set by a test
    faults: tuple[OrderedFault, ...] = ()
    restrictions: tuple[str, ...] = ()  # unavailable `region/size`, and `region/` where Azure refuses the region
    standing: str = "Enabled"  # of the subscription: Warned, PastDue, Disabled or Deleted
    unregistered: tuple[str, ...] = ()  # namespaces, in lower case, that the subscription is not registered for
    tokens_from: float = 0.0  # tokens issued before this moment (Unix time) are invalid

    def find(self, id: str) -> Resource | None:
        return self.resources.get(id.lower())

    def put(self, *resources: Resource) -> CloudState:
        return replace(self, resources={**self.resources, **{one.id.lower(): one for one in resources}})

    def drop(self, *ids_: str) -> CloudState:
        gone = {id.lower() for id in ids_}
        return replace(self, resources={key: one for key, one in self.resources.items() if key not in gone})

    def all(self, kind: str, group: str = "") -> list[Resource]:
        """Everything of a kind, in order of creation."""
        return [
            one
            for one in self.resources.values()
            if one.kind.lower() == kind.lower() and group.lower() in ("", one.group.lower())
        ]

    def visible(self, kind: str, group: str = "") -> list[Resource]:
        """The same without what Azure keeps in subscriptions of its own, such as the nodes of compute clusters."""
        return [one for one in self.all(kind, group) if self.is_visible(one)]

    def is_visible(self, resource: Resource) -> bool:
        return resource.target.subscription.lower() == self.subscription.lower()

    def below(self, id: str) -> Iterator[Resource]:
        """Everything whose id starts with this one: the contents of a group, or parts of a resource."""
        prefix = id.lower() + "/"
        return (one for key, one in self.resources.items() if key.startswith(prefix))

    def instance(self, vm: str) -> Instance | None:
        return self.instances.get(vm.lower())

    def put_instance(self, instance: Instance) -> CloudState:
        return replace(self, instances={**self.instances, instance.vm.lower(): instance})

    def drop_instance(self, vm: str) -> CloudState:
        return replace(self, instances={key: one for key, one in self.instances.items() if key != vm.lower()})

    def put_operation(self, operation: Operation) -> CloudState:
        return replace(self, operations={**self.operations, operation.id: operation})

    def order(self, *chores: Chore) -> CloudState:
        return replace(self, chores={**self.chores, **{chore.id: chore for chore in chores}})

    def put_restore(self, restore: Restore) -> CloudState:
        return replace(self, restores={**self.restores, restore.set.lower(): restore})

    def put_notice(self, notice: ScheduledEvent) -> CloudState:
        return replace(self, notices={**self.notices, notice.id: notice})

    def drop_notices(self, gone: Iterable[ScheduledEvent]) -> CloudState:
        names = {notice.id for notice in gone}
        return replace(self, notices={key: one for key, one in self.notices.items() if key not in names})


def name_uuid(*key: object) -> str:
    """A UUID that depends only on the key: the same requests with the same seed give the same ids."""
    return str(uuid.UUID(bytes=hashlib.sha256(repr(key).encode()).digest()[:16], version=4))


def load(path: Path) -> CloudState | None:
    """The last saved cloud; None where there is none yet."""
    try:
        return wire.load(CloudState, path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TwinFailed(
            f"could not read the twin's state {path}: {error}", hint="start a new twin with `stoker twin down --forget`"
        ) from error


def save(path: Path, cloud: CloudState) -> None:
    """Survives a kill of the twin at any moment, but not a power failure of this computer."""
    write_whole(path, wire.dump(cloud), mode=0o600)


def fresh(weather: Weather) -> CloudState:
    """An empty subscription with one owner. Names depend on the seed; secrets do not."""
    client = name_uuid("client", weather.seed)
    owner = Principal(client, name_uuid("object", weather.seed), secrets.token_urlsafe(24), "twin owner")
    return CloudState(
        tenant=name_uuid("tenant", weather.seed),
        subscription=name_uuid("subscription", weather.seed),
        key=secrets.token_urlsafe(32),
        control=secrets.token_urlsafe(24),
        admin=client,
        weather=weather,
        principals={client: owner},
    )
