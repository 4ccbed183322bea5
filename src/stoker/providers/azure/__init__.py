"""Nodes in Azure: each is a resource group of its own with one machine in it, so that deleting it leaves nothing."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from functools import cached_property
from urllib.parse import quote

from stoker.agent.pack import pack
from stoker.errors import Locked, LoginFailed, NameTaken, NoCapacity, NotSetUp, ProviderFailed
from stoker.model.entrance import Entrance, Said
from stoker.model.node import Features, Need, NodeRequest, NodeSight, NodeState, Offer
from stoker.providers import Setup
from stoker.providers.azure import naming, reach, sizes
from stoker.providers.azure.account import Account, read_account
from stoker.providers.azure.cloud import Cloud, Group, Starting, Vm
from stoker.providers.azure.cloudinit import Boot, custom_data
from stoker.providers.azure.prices import PriceList
from stoker.providers.azure.refusals import TAKEN_HINT
from stoker.providers.azure.template import COMPUTE, VM, Machine, deployment
from stoker.stores.access import Access
from stoker.stores.nodeaccess import open_access

GROUPS_API = "2024-03-01"
EVENTS = "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01"
TOKENS = "http://169.254.169.254/metadata/identity/oauth2/token?api-version=2018-02-01"
_SIZES_KEPT_S = 3600.0
_INVENTORY_KEPT_S, _FOREIGN_KEPT_S = 60.0, 600.0  # Azure counts requests
UBUNTU = {"--reboot-mark": "/run/reboot-required", "--package-lock": "/var/lib/dpkg/lock-frontend"}
READY_S = 1800.0  # for drivers to be installed and to answer; a machine that takes longer is given back
SPARE = timedelta(seconds=300)  # for a machine whose lease is over to save and remove itself
_GOING = ("deallocating", "deallocated", "stopping", "stopped")


FEATURES = Features(
    most_nodes=1,
    notice_s=30.0,
    spot=True,
    scale_to_zero=True,
    market=True,
    look_every_s=2.0,
    patience_s=15.0,
    lease_s=600.0,
    reachable=True,
)


class AzureProvider:
    def __init__(self, setup: Setup) -> None:
        self._home = setup.home
        self._server = setup.server
        self._sizes: dict[str, tuple[float, list[sizes.Size]]] = {}
        self._inventory: dict[str, tuple[float, tuple[str, ...]]] = {}  # by group: when it was asked, what is in it
        self._places: dict[str, str] = {}  # by node key: the group it was last seen in
        self._starting: dict[str, Starting | None] = {}  # by node key: machines that are being switched on again

    @property
    def features(self) -> Features:
        """What an account says of its leases counts as soon as there is one."""
        known: Account | None = self.__dict__.get("_account")
        return replace(FEATURES, lease_s=known.lease_s) if known else FEATURES

    def offers(self, need: Need) -> list[Offer]:
        regions = [need.region] if need.region else self._account.regions
        return [
            offer
            for region in regions
            for size in self._sizes_in(region)
            if sizes.fits(size, need) and (not self._account.sizes or size.name in self._account.sizes)
            if (offer := self._offer(region, size.name, need)) is not None
        ]

    def start(self, request: NodeRequest) -> None:
        if request.offer is None:
            raise ProviderFailed(f"{request.key} was asked for without a size")
        if request.offer.again:
            return self._start_again(request, request.offer.again)
        account, offer = self._account, request.offer
        group = naming.group_name(account.workspace, request.key)
        made = self._cloud.deployed(group)
        if made and made.begun:
            return None  # what a machine was told at its start cannot be told again
        if made and not self._is_ours(group, request.key):
            raise NameTaken(f"the group {group} is there, and is not Stoker's", hint=TAKEN_HINT)
        group_id = naming.group_id(account.subscription, group)
        tags = naming.tags(account.workspace, self._server, request.key, request.labels)
        gpus = next((one.gpus for one in self._sizes_in(offer.place) if one.name == offer.size), 0)
        machine = Machine(offer.size, offer.place, offer.spot, self._most_for_machine(request), gpus=gpus)
        properties = deployment(account, group_id, machine, tags, account.ssh_key or nobodys_key())
        boot = base64.b64encode(self._boot(request, group_id).encode()).decode()
        self._cloud.make_group(group, offer.place, {**tags, **self._lease_tag()})
        return self._cloud.deploy(group, properties, boot)

    def look(self) -> list[NodeSight]:
        """Without an account there is nothing; with one that cannot log in now, nobody can say what there is."""
        try:
            cloud = self._cloud
        except NotSetUp:
            return []
        try:
            vms = {vm.group: vm for vm in cloud.vms()}
            groups = cloud.groups()
        except LoginFailed:
            cloud.log_in_again()
            raise
        names = {group.name for group in groups}
        self._inventory = {name: known for name, known in self._inventory.items() if name in names}
        ours = [(group, marks) for group in groups if (marks := self._marks(group))]
        self._places = {marks.key: group.name for group, marks in ours}
        return [self._seen(group, marks, vms.get(group.name.lower())) for group, marks in ours]

    def stop(self, key: str) -> None:
        """A group that is there under the node's name may have been given to a later one since."""
        groups = self._cloud.groups()
        mine = [group.name for group in groups if (marks := self._marks(group)) and marks.key == key]
        named = naming.group_name(self._account.workspace, key)
        listed = named in {group.name for group in groups}
        for name in mine or ([named] if not listed and self._is_ours(named, key) else []):
            self._delete(name)
        self._starting.pop(key, None)

    def _is_ours(self, group: str, key: str) -> bool:
        """A list may leave out what is there; a name alone does not make it ours."""
        found = self._cloud.group(group)
        marks = self._marks(found) if found else None
        return marks is not None and marks.key == key

    def _delete(self, group: str) -> None:
        """What somebody has locked cannot be deleted, but it need not cost what a machine costs."""
        try:
            self._cloud.delete_group(group)
        except Locked:
            self._cloud.switch_off(group)
            raise

    def price_now(self, offer: Offer) -> Decimal:
        price = self._per_hour(offer.place, offer.size, spot=offer.spot)
        return offer.usd_per_hour if price is None else price

    def renew(self, key: str) -> None:
        self._cloud.mark(self._place(key), self._lease_tag())

    def entrance(self, key: str) -> Entrance:
        return reach.entrance(self._cloud, self._account, self._place(key))

    def command(self, key: str, words: Sequence[str]) -> Said:
        return reach.run_command(self._cloud, self._place(key), words)

    def _place(self, key: str) -> str:
        return self._places.get(key) or naming.group_name(self._account.workspace, key)

    @cached_property
    def _account(self) -> Account:
        return read_account(self._home.root / "azure.json")

    @cached_property
    def _cloud(self) -> Cloud:
        return Cloud(self._account)

    @cached_property
    def _prices(self) -> PriceList:
        return PriceList(self._account.prices, self._account.ca_file, self._home.prices)

    def _marks(self, group: Group) -> naming.Marks | None:
        return naming.marks(group.tags, self._account.workspace)

    def _lease_tag(self) -> dict[str, str]:
        return naming.lease_tag(self._cloud.now() + timedelta(seconds=self._account.lease_s))

    def _sizes_in(self, region: str) -> list[sizes.Size]:
        read_at, known = self._sizes.get(region, (-_SIZES_KEPT_S, []))
        if time.monotonic() - read_at >= _SIZES_KEPT_S:
            known = sizes.read_sizes(self._cloud.skus(region), region)
            self._sizes[region] = (time.monotonic(), known)
        return known

    def _start_again(self, request: NodeRequest, machine: str) -> None:
        """The group gets the new node's mark before its machine is switched on: whatever happens in between, it is
        known whose it is."""
        found = [(group, marks) for group in self._cloud.groups() if (marks := self._marks(group))]
        there = [(group, marks) for group, marks in found if marks.machine == machine and not group.deleting]
        if not there:
            raise NoCapacity(f"starting {request.key}: the machine of {machine} is no longer there")
        (group, marks), *_ = there
        self._starting.setdefault(request.key, None)
        if marks.key != request.key:
            self._cloud.mark(group.name, {naming.KEY: request.key, **self._lease_tag()})
        self._starting[request.key] = self._cloud.switch_on(group.name)

    def _boot(self, request: NodeRequest, group_id: str) -> str:
        """The agent lies beside the orders, where the node's own token reaches it."""
        agent = pack(self._home.agents).read_bytes()
        digest = hashlib.sha256(agent).hexdigest()
        access = Access.from_text(request.access)
        key = f"{request.orders.rsplit('/', 1)[0]}/agent.pyz"
        open_access(access).put(key, agent)
        account, arm = self._account, f"{self._account.arm.rstrip('/')}{group_id}"
        release = {
            "url": f"{arm}?api-version={GROUPS_API}",
            "token_url": f"{TOKENS}&resource={quote(account.arm, safe='')}",
            "instead_url": f"{arm}/providers/Microsoft.Compute/virtualMachines/{VM}/deallocate?api-version={COMPUTE}",
        }
        return custom_data(
            Boot(
                agent_url=signed_url(access, key),
                agent_sha256=digest,
                store=request.store,
                orders=request.orders,
                lease_s=account.lease_s,
                release=release,
                arguments={"--events": EVENTS, "--ready-within": f"{READY_S:g}", **UBUNTU},
                variables=request.variables,
                spend=request.spend,
            )
        )

    def _seen(self, group: Group, marks: naming.Marks, vm: Vm | None) -> NodeSight:
        foreign = marks.server != self._server
        sight = self._sight(marks.key, group, vm)
        past = marks.lease_until is None or marks.lease_until + SPARE < self._cloud.now()
        return replace(
            sight,
            reason=sight.reason or (f"it is {marks.owner}'s" if foreign and marks.owner else ""),
            resources=self._resources(group, _FOREIGN_KEPT_S if foreign else _INVENTORY_KEPT_S),
            usd_per_hour=self._costs(vm),
            machine="" if marks.machine == marks.key else marks.machine,
            server=(marks.server or "unknown") if foreign else "",
            lease_until=marks.lease_until,
            expired=past,
        )

    def _sight(self, key: str, group: Group, vm: Vm | None) -> NodeSight:
        if group.deleting:
            return NodeSight(key, NodeState.GONE, "it is being deleted", still=True)
        if vm is None or not vm.power:  # a machine that could not be allocated is there, and has no power state
            return self._without_machine(key, group, there=vm is not None)
        if vm.power == "running":
            self._starting.pop(key, None)
            return NodeSight(key, NodeState.UP)
        if key in self._starting:
            return self._started_again(key, self._starting[key])
        if vm.power in _GOING:
            off = vm.power == "deallocated"
            return NodeSight(key, NodeState.GONE, "Azure took the machine away", taken=True, still=off, resumable=off)
        return NodeSight(key, NodeState.STARTING)

    def _started_again(self, key: str, starting: Starting | None) -> NodeSight:
        """Azure shows a machine that it has no room for as it was before it was asked."""
        failure = starting.failure() if starting else None
        if failure is None:
            return NodeSight(key, NodeState.STARTING)
        return NodeSight(key, NodeState.GONE, failure.message, failure.code, still=True, resumable=True)

    def _resources(self, group: Group, kept_s: float) -> tuple[str, ...]:
        read_at, resources = self._inventory.get(group.name, (-kept_s, ()))
        if time.monotonic() - read_at >= kept_s:
            resources = self._cloud.resources(group.name)
            self._inventory[group.name] = (time.monotonic(), resources)
        return resources

    def _costs(self, vm: Vm | None) -> Decimal:
        """A machine that is switched off costs nothing, and its disk goes on."""
        if vm is None or not vm.power:  # none yet, or one that could not be had
            return Decimal(0)
        if vm.power == "deallocated":
            return self._beside(vm.region)
        price = self._per_hour(vm.region, vm.size, spot=vm.spot)
        return Decimal(0) if price is None else price  # not on the list: whoever counts goes by what it was

    def _offer(self, region: str, size: str, need: Need) -> Offer | None:
        price = self._per_hour(region, size, spot=need.spot)
        if price is None:
            return None
        elsewhere = need.currency != "USD"
        return Offer(
            "azure",
            size,
            region,
            price,
            spot=need.spot,
            on_demand_usd_per_hour=self._per_hour(region, size, spot=False),
            priced_at=self._prices.as_of(region),
            quoted=self._prices.per_hour(region, size, spot=need.spot, currency=need.currency) if elsewhere else None,
            currency=need.currency,
            ready_s=self._account.ready_s,
            release_s=self._account.release_s,
        )

    def _per_hour(self, region: str, size: str, *, spot: bool) -> Decimal | None:
        """Of a whole node."""
        machine = self._prices.per_hour(region, size, spot=spot)
        return None if machine is None else machine + self._beside(region)

    def _beside(self, region: str) -> Decimal:
        return self._prices.beside_per_hour(region, self._account.disk_gb, address=self._account.open_ssh)

    def _most_for_machine(self, request: NodeRequest) -> Decimal | None:
        """What a job gives for an hour is for all of the node, and Azure wants to know it of the machine alone."""
        if request.max_price is None or request.offer is None:
            return None
        return max(request.max_price - self._beside(request.offer.place), Decimal("0.00001"))

    def _without_machine(self, key: str, group: Group, *, there: bool) -> NodeSight:
        made = self._cloud.deployed(group.name)
        if made is None or not made.begun:
            return NodeSight(key, NodeState.GONE, "its machine was never asked for", still=True, unfinished=True)
        if made.failure:
            return NodeSight(key, NodeState.GONE, made.failure.message, made.failure.code, still=True)
        if made.running or there:
            return NodeSight(key, NodeState.STARTING)
        return NodeSight(key, NodeState.GONE, "Azure took the machine away", taken=True, still=True)


def signed_url(access: Access, key: str) -> str:
    """Where the key can be read with nothing but this URL."""
    route = access.route(key)
    if route is None or not route.token or "?" in route.url or not route.url.startswith("http"):
        hint = "keep the runs in Azure Blob: stoker store add, then stoker store use"
        raise ProviderFailed("a machine in Azure cannot reach the store of this workspace", hint=hint)
    return f"{route.url.rstrip('/')}/{quote(key.removeprefix(route.prefix))}?{route.token}"


def nobodys_key() -> str:
    """Azure wants a key where there is no password. The private half of this one is gone when this returns."""
    from cryptography.hazmat.primitives import serialization  # comes with the SDKs
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    form = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return f"{Ed25519PrivateKey.generate().public_key().public_bytes(*form).decode()} nobody"
