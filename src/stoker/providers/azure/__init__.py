"""Nodes in Azure: each is a resource group of its own with one machine in it, so that deleting it leaves nothing."""

from __future__ import annotations

import base64
import hashlib
import time
from dataclasses import replace
from decimal import Decimal
from functools import cached_property
from typing import ClassVar
from urllib.parse import quote

from stoker.agent.pack import pack
from stoker.errors import NotSetUp, ProviderFailed
from stoker.model.node import Features, Need, NodeRequest, NodeSight, NodeState, Offer
from stoker.providers import Setup
from stoker.providers.azure import naming, sizes
from stoker.providers.azure.account import Account, read_account
from stoker.providers.azure.cloud import Cloud, Group, Vm
from stoker.providers.azure.cloudinit import Boot, custom_data
from stoker.providers.azure.prices import PriceList
from stoker.providers.azure.template import Machine, deployment
from stoker.stores.access import Access
from stoker.stores.nodeaccess import open_access

GROUPS_API = "2024-03-01"
EVENTS = "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01"
TOKENS = "http://169.254.169.254/metadata/identity/oauth2/token?api-version=2018-02-01"
_SIZES_KEPT_S = 3600.0
_INVENTORY_KEPT_S = 10.0  # Azure counts requests
_GOING = ("deallocating", "deallocated", "stopping", "stopped")


class AzureProvider:
    features: ClassVar[Features] = Features(
        most_nodes=1,
        notice_s=30.0,
        spot=True,
        scale_to_zero=True,
        market=True,
        look_every_s=2.0,
        patience_s=15.0,
        lease_s=600.0,
    )

    def __init__(self, setup: Setup) -> None:
        self._home = setup.home
        self._sizes: dict[str, tuple[float, list[sizes.Size]]] = {}
        self._inventory: dict[str, tuple[float, tuple[str, ...]]] = {}  # by group: when it was asked, what is in it

    def offers(self, need: Need) -> list[Offer]:
        regions = [need.region] if need.region else self._account.regions
        return [
            Offer("azure", size.name, region, price, spot=need.spot)
            for region in regions
            for size in self._sizes_in(region)
            if sizes.fits(size, need) and (not self._account.sizes or size.name in self._account.sizes)
            if (price := self._prices.per_hour(region, size.name, spot=need.spot)) is not None
        ]

    def start(self, request: NodeRequest) -> None:
        if request.offer is None:
            raise ProviderFailed(f"{request.key} was asked for without a size")
        account, offer = self._account, request.offer
        group = naming.group_name(account.workspace, request.key)
        if self._cloud.deployed(group) is not None:
            return  # what a machine was told at its start cannot be told again
        group_id = naming.group_id(account.subscription, group)
        tags = naming.tags(account.workspace, request.key, None)
        machine = Machine(offer.size, offer.place, offer.spot, request.max_price)
        properties = deployment(account, group_id, machine, tags, account.ssh_key or nobodys_key())
        self._cloud.make_group(group, offer.place, tags)
        self._cloud.deploy(group, properties, base64.b64encode(self._boot(request, group_id).encode()).decode())

    def look(self) -> list[NodeSight]:
        try:
            vms = {vm.group: vm for vm in self._cloud.vms()}
            groups = self._cloud.groups()
        except NotSetUp:
            return []
        self._inventory = {name: known for name, known in self._inventory.items() if name in {g.name for g in groups}}
        return [
            self._with_costs(self._sight(key, group, vms.get(group.name.lower())), group, vms.get(group.name.lower()))
            for group in groups
            if (key := naming.key_of(group.tags, self._account.workspace))
        ]

    def stop(self, key: str) -> None:
        self._cloud.delete_group(naming.group_name(self._account.workspace, key))

    def price_now(self, offer: Offer) -> Decimal:
        price = self._prices.per_hour(offer.place, offer.size, spot=offer.spot)
        return offer.usd_per_hour if price is None else price

    @cached_property
    def _account(self) -> Account:
        return read_account(self._home.root / "azure.json")

    @cached_property
    def _cloud(self) -> Cloud:
        return Cloud(self._account)

    @cached_property
    def _prices(self) -> PriceList:
        return PriceList(self._account.prices, self._account.ca_file)

    def _sizes_in(self, region: str) -> list[sizes.Size]:
        read_at, known = self._sizes.get(region, (-_SIZES_KEPT_S, []))
        if time.monotonic() - read_at >= _SIZES_KEPT_S:
            known = sizes.read_sizes(self._cloud.skus(region), region)
            self._sizes[region] = (time.monotonic(), known)
        return known

    def _boot(self, request: NodeRequest, group_id: str) -> str:
        """The agent lies beside the orders, where the node's own token reaches it."""
        agent = pack(self._home.agents).read_bytes()
        digest = hashlib.sha256(agent).hexdigest()
        access = Access.from_text(request.access)
        key = f"{request.orders.rsplit('/', 1)[0]}/agent.pyz"
        open_access(access).put(key, agent)
        account = self._account
        release = {
            "url": f"{account.arm.rstrip('/')}{group_id}?api-version={GROUPS_API}",
            "token_url": f"{TOKENS}&resource={quote(account.arm, safe='')}",
        }
        return custom_data(
            Boot(
                agent_url=signed_url(access, key),
                agent_sha256=digest,
                store=request.store,
                orders=request.orders,
                lease_s=self.features.lease_s,
                release=release,
                arguments={"--events": EVENTS},
                variables=request.variables,
            )
        )

    def _sight(self, key: str, group: Group, vm: Vm | None) -> NodeSight:
        if group.deleting:
            return NodeSight(key, NodeState.GONE, "it is being deleted", still=True)
        if vm is None or not vm.power:  # a machine that could not be allocated is there, and has no power state
            return self._without_machine(key, group, there=vm is not None)
        if vm.power in _GOING:
            return NodeSight(key, NodeState.GONE, "Azure took the machine away", still=vm.power == "deallocated")
        return NodeSight(key, NodeState.UP if vm.power == "running" else NodeState.STARTING)

    def _with_costs(self, sight: NodeSight, group: Group, vm: Vm | None) -> NodeSight:
        read_at, resources = self._inventory.get(group.name, (-_INVENTORY_KEPT_S, ()))
        if time.monotonic() - read_at >= _INVENTORY_KEPT_S:
            resources = self._cloud.resources(group.name)
            self._inventory[group.name] = (time.monotonic(), resources)
        runs = vm is not None and vm.power not in ("deallocated", "deallocating")
        price = self._prices.per_hour(vm.region, vm.size, spot=vm.spot) if vm and runs else None
        return replace(sight, resources=resources, usd_per_hour=price or Decimal(0))

    def _without_machine(self, key: str, group: Group, *, there: bool) -> NodeSight:
        made = self._cloud.deployed(group.name)
        if made is None:
            return NodeSight(key, NodeState.GONE, "its machine was never asked for", still=True)
        if made.failure:
            return NodeSight(key, NodeState.GONE, made.failure.message, made.failure.code, still=True)
        if made.running or there:
            return NodeSight(key, NodeState.STARTING)
        return NodeSight(key, NodeState.GONE, "Azure took the machine away", still=True)


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
