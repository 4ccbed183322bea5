"""Nodes in Azure: each is a resource group of its own with one machine in it, so that deleting it leaves nothing."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from functools import cached_property

from stoker.errors import Locked, LoginFailed, NameTaken, NoCapacity, NotSetUp, ProviderFailed
from stoker.model.entrance import Entrance, Said
from stoker.model.node import Features, Need, NodeRequest, NodeSight, Offer
from stoker.providers import Setup
from stoker.providers.azure import naming, reach
from stoker.providers.azure.account import Account, read_account
from stoker.providers.azure.booting import boot_text
from stoker.providers.azure.catalogue import Catalogue
from stoker.providers.azure.cloud import Cloud
from stoker.providers.azure.prices import PriceList
from stoker.providers.azure.refusals import TAKEN_HINT
from stoker.providers.azure.template import Machine, deployment
from stoker.providers.azure.watch import Watch

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

    @property
    def features(self) -> Features:
        """What an account says of its leases counts as soon as there is one."""
        known: Account | None = self.__dict__.get("_account")
        return replace(FEATURES, lease_s=known.lease_s) if known else FEATURES

    def offers(self, need: Need) -> list[Offer]:
        return self._catalogue.offers(need)

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
        most = self._catalogue.most_for_machine(offer, request.max_price)
        machine = Machine(offer.size, offer.place, offer.spot, most, gpus=self._catalogue.gpus_of(offer))
        properties = deployment(account, group_id, machine, tags, account.ssh_key or nobodys_key())
        boot = boot_text(request, account, group_id, self._home)
        self._cloud.make_group(group, offer.place, {**tags, **self._lease_tag()})
        return self._cloud.deploy(group, properties, base64.b64encode(boot.encode()).decode())

    def look(self) -> list[NodeSight]:
        """Without an account there is nothing; with one that cannot log in now, nobody can say what there is."""
        try:
            watch = self._watch
        except NotSetUp:
            return []
        try:
            return watch.look()
        except LoginFailed:
            self._cloud.log_in_again()
            raise

    def stop(self, key: str) -> None:
        """A group that is there under the node's name may have been given to a later one since."""
        groups = self._cloud.groups()
        mine = [group.name for group in groups if (marks := self._cloud.marks(group)) and marks.key == key]
        named = naming.group_name(self._account.workspace, key)
        listed = named in {group.name for group in groups}
        for name in mine or ([named] if not listed and self._is_ours(named, key) else []):
            self._delete(name)
        self._watch.forget(key)

    def price_now(self, offer: Offer) -> Decimal:
        price = self._catalogue.per_hour(offer.place, offer.size, spot=offer.spot)
        return offer.usd_per_hour if price is None else price

    def renew(self, key: str) -> None:
        self._cloud.mark(self._place(key), self._lease_tag())

    def entrance(self, key: str) -> Entrance:
        return reach.entrance(self._cloud, self._account, self._place(key))

    def command(self, key: str, words: Sequence[str]) -> Said:
        return reach.run_command(self._cloud, self._place(key), words)

    @cached_property
    def _account(self) -> Account:
        return read_account(self._home.root / "azure.json")

    @cached_property
    def _cloud(self) -> Cloud:
        return Cloud(self._account)

    @cached_property
    def _catalogue(self) -> Catalogue:
        prices = PriceList(self._account.prices, self._account.ca_file, self._home.prices)
        return Catalogue(self._account, self._cloud, prices)

    @cached_property
    def _watch(self) -> Watch:
        return Watch(self._cloud, self._catalogue, self._server)

    def _forget_account(self) -> None:
        """It is read anew when it is next needed, with all that was made from it."""
        for known in ("_account", "_cloud", "_catalogue", "_watch"):
            self.__dict__.pop(known, None)

    def _place(self, key: str) -> str:
        return self._watch.places.get(key) or naming.group_name(self._account.workspace, key)

    def _lease_tag(self) -> dict[str, str]:
        return naming.lease_tag(self._cloud.now() + timedelta(seconds=self._account.lease_s))

    def _start_again(self, request: NodeRequest, machine: str) -> None:
        """The group gets the new node's mark before its machine is switched on: whatever happens in between, it is
        known whose it is."""
        found = [(group, marks) for group in self._cloud.groups() if (marks := self._cloud.marks(group))]
        there = [(group, marks) for group, marks in found if marks.machine == machine and not group.deleting]
        if not there:
            raise NoCapacity(f"starting {request.key}: the machine of {machine} is no longer there")
        (group, marks), *_ = there
        self._watch.expect(request.key, None)
        try:
            if marks.key != request.key:
                self._cloud.mark(group.name, {naming.KEY: request.key, **self._lease_tag()})
            self._watch.expect(request.key, self._cloud.switch_on(group.name))
        except ProviderFailed:
            self._watch.forget(request.key)
            raise

    def _is_ours(self, group: str, key: str) -> bool:
        """A list may leave out what is there; a name alone does not make it ours."""
        found = self._cloud.group(group)
        marks = self._cloud.marks(found) if found else None
        return marks is not None and marks.key == key

    def _delete(self, group: str) -> None:
        """What somebody has locked cannot be deleted, but it need not cost what a machine costs."""
        try:
            self._cloud.delete_group(group)
        except Locked:
            self._cloud.switch_off(group)
            raise


def nobodys_key() -> str:
    """Azure wants a key where there is no password. The private half of this one is gone when this returns."""
    from cryptography.hazmat.primitives import serialization  # comes with the SDKs
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    form = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return f"{Ed25519PrivateKey.generate().public_key().public_bytes(*form).decode()} nobody"
