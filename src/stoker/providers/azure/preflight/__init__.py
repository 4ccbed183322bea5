"""Whether a run could start on this account: checked with Azure, free of charge, before anything is billed."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path

from stoker.errors import LoginFailed, NotAllowed, ProviderFailed, StokerError
from stoker.model.node.node import Need, Offer
from stoker.model.workspace.finding import CheckResult, Finding, failed
from stoker.providers.azure import naming, nobodys_key
from stoker.providers.azure.account.account import Account, check_ssh, check_way_out
from stoker.providers.azure.account.grounds import Ground, SharedGroup, ground
from stoker.providers.azure.deployment import images
from stoker.providers.azure.deployment.noderole import POWER_ROLE
from stoker.providers.azure.deployment.scaleset import refuses_set
from stoker.providers.azure.deployment.template import Json, MachineChoice, NodeSite, deployment
from stoker.providers.azure.market.catalogue import Catalogue
from stoker.providers.azure.market.prices import account_prices
from stoker.providers.azure.naming import NodePlace
from stoker.providers.azure.preflight import reading
from stoker.providers.azure.preflight.questions import Questions
from stoker.providers.azure.setup import roles
from stoker.providers.azure.setup.resources import ROLES_API

SERVICES = (
    "Microsoft.Compute",
    "Microsoft.Network",
    "Microsoft.Storage",
    "Microsoft.ManagedIdentity",
    "Microsoft.Authorization",
)
_DOCTOR = "doctor"  # owner of a group that a check leaves behind
_BOOT = base64.b64encode(b"#cloud-config\n").decode()


class Preflight:
    """`secret` belongs to the account's client where no file contains it. `prices` is the folder of cached price
    lists."""

    def __init__(self, account: Account, secret: str = "", prices: Path | None = None) -> None:
        self._account = account
        self._cloud = Questions(account, secret)
        self._catalogue = Catalogue(account, self._cloud, account_prices(account, prices))
        self._rights_told = False

    def findings(self, needs: Sequence[Need]) -> Iterator[Finding]:
        """All preconditions of a run with one of these needs."""
        before = []
        for one in self.standing():
            before.append(one)
            yield one
        if failed(before):
            yield Finding("machines", CheckResult.SKIP, "not checked, because an earlier check failed")
            return
        yield from reading.best({region: self._region(region, needs) for region in self._account.regions})

    def standing(self, *, made: bool = False) -> Iterator[Finding]:
        """The login and the subscription. `made`: the caller registers what is missing."""
        try:
            yield reading.login(self._claims)
        except StokerError as error:
            yield _trouble("login", error)
            return
        yield _asked("clock", lambda: reading.clock(self._cloud.clock_ahead()))
        yield _asked("subscription", lambda: reading.subscription(self._cloud.subscription()))
        yield _asked(
            "services",
            lambda: reading.services({name: self._cloud.registration(name) for name in SERVICES}, made=made),
        )
        with suppress(ProviderFailed):  # a login that may not count them needs no warning
            yield reading.limits(*self._cloud.counts())

    def places(self, needs: Sequence[Need], *, deploys: bool = False) -> list[Finding]:
        """Sizes, images and quotas in each region, without trying a deployment."""
        return reading.best({region: self._region(region, needs, deploys=deploys) for region in self._account.regions})

    @cached_property
    def _claims(self) -> Json:
        return self._cloud.claims()

    @cached_property
    def _ground(self) -> Ground:
        return ground(self._cloud, self._account)

    def _region(self, region: str, needs: Sequence[Need], *, deploys: bool = True) -> list[Finding]:
        """One of the needs is enough, since a run takes the first that is available."""
        tried = {f"{number}": self._need(region, need, deploys=deploys) for number, need in enumerate(needs)}
        return reading.best(tried)

    def _need(self, region: str, need: Need, *, deploys: bool) -> list[Finding]:
        found = [_asked(f"size {region}", lambda: reading.size(region, self._cheapest(region, need)))]
        offer = None if failed(found) else self._cheapest(region, need)
        if offer is None:
            return found
        traits, image = self._catalogue.size_of(region, offer.size), self._account.image
        image = image or images.image_of(traits)
        there = _asked(f"image {region}", lambda: reading.image(region, image, self._cloud.image_there(region, image)))
        subscription = self._account.subscription
        room = _asked(
            f"quota {region}",
            lambda: reading.quota(offer, traits, self._cloud.usages(region), subscription),
        )
        return [*found, there, room, *self._addresses(offer), *(self._deployment(offer) if deploys else ())]

    def _addresses(self, offer: Offer) -> list[Finding]:
        """Of a machine that has a public address: a small subscription runs out of them before it does of vCPUs."""
        account, region = self._account, offer.place
        if not account.addressed(of_set=account.restored(spot=offer.spot)):
            return []
        name = f"addresses {region}"
        try:
            return [reading.addresses(region, self._cloud.address_usages(region), account.subscription)]
        except NotAllowed as error:
            return [Finding(name, CheckResult.SKIP, f"not counted: {error.message}")]  # a run does without this right
        except StokerError as error:
            return [_trouble(name, error)]

    def _cheapest(self, region: str, need: Need) -> Offer | None:
        return min(
            self._catalogue.offers(replace(need, region=region)), key=lambda offer: offer.usd_per_hour, default=None
        )

    def _deployment(self, offer: Offer) -> Iterator[Finding]:
        """Azure validates the exact deployment of a run: rights, policies, and whatever else it would refuse."""
        name, kind = f"deployment {offer.place}", "spot" if offer.spot else "on demand"
        try:
            check_ssh(self._account)
            check_way_out(self._account)
            with self._somewhere(offer.place) as place:
                if self._account.restored(spot=offer.spot):
                    kind = yield from self._as_set(replace(place, set=True), offer)
                else:
                    yield from self._validated(place, offer)
        except NotAllowed as error:
            yield Finding("rights", CheckResult.FAIL, error.message, error.hint)
        except StokerError as error:
            yield _trouble(name, error)
        else:
            yield Finding(name, CheckResult.OK, f"Azure accepts {offer.size}, {kind}: no policy or rule refuses it")

    def _as_set(self, place: NodePlace, offer: Offer) -> Generator[Finding, None, str]:
        """A scale set of one, which Azure restores, or a plain VM where it is refused. Returns which, as text."""
        try:
            yield from self._validated(place, offer)
        except ProviderFailed as error:
            if not refuses_set(error):
                raise
            yield from self._validated(replace(place, set=False), offer)
            found = "Azure refuses scale sets here, so an evicted VM is not restored while no server is running"
            yield Finding(f"restore policy {offer.place}", CheckResult.WARN, f"{found}: {error.message}", error.hint)
            return "spot"
        return "spot, restored after an eviction"

    def _validated(self, place: NodePlace, offer: Offer) -> Iterator[Finding]:
        properties = self._properties(place, offer)
        yield from self._rights(place, properties)
        self._cloud.validate(place, properties, _BOOT)

    @contextmanager
    def _somewhere(self, region: str) -> Iterator[NodePlace]:
        """The practitioner's group, or an empty one, which is free and deleted afterwards."""
        if isinstance(self._ground, SharedGroup):
            yield naming.shared_place(self._ground.group, f"{_DOCTOR}-{secrets.token_hex(4)}")
            return
        key = f"{_DOCTOR}-{secrets.token_hex(4)}"
        place = self._ground.place(key)
        until = naming.lease_tag(self._cloud.now() + timedelta(seconds=self._account.lease_s))
        self._cloud.make_group(place.group, region, {**self._tags(key), **until})
        try:
            yield place
        finally:
            with suppress(ProviderFailed):  # it has a lease: `stoker cleanup --others` removes it
                self._cloud.delete_group(place.group)

    def _properties(self, place: NodePlace, offer: Offer) -> Json:
        traits = self._catalogue.size_of(offer.place, offer.size)
        subscription, account = self._account.subscription, self._account
        scope = place.node_id(subscription) if place.shared else place.group_id(subscription)
        machine = MachineChoice(offer.size, offer.place, offer.spot, restore_s=account.lasts_s(None), traits=traits)
        site = NodeSite(account, place, self._role(), scope)
        return deployment(site, machine, self._tags(_DOCTOR), account.ssh_key or nobodys_key())

    def _rights(self, place: NodePlace, properties: Json) -> Iterator[Finding]:
        """Reports all missing rights at once: a validation stops at the first."""
        if self._rights_told:
            return
        try:
            held = self._cloud.permissions(place.group)
        except LoginFailed:
            raise
        except StokerError:
            return  # a login that may not read its rights is reported by the validation
        self._rights_told = True
        missing = reading.lacking(reading.needed(properties, shared=place.shared), held)
        scope = f"/subscriptions/{self._account.subscription}"
        workspace, who = self._account.workspace, str(self._claims.get("oid", "YOU"))
        admission = f"stoker admin setup azure --workspace {workspace} --practitioner {who}" if place.shared else ""
        yield reading.rights(missing, who, scope, admission)

    def _role(self) -> str:
        """The role of nodes, where it exists; else the built-in role with the fewest rights."""
        account = self._account
        if account.role:
            return account.role
        own = roles.own_role(account.subscription, account.workspace, "node")
        there = self._cloud.get(roles.role_id(account.subscription, own), ROLES_API)
        return own if there else POWER_ROLE

    def _tags(self, key: str) -> dict[str, str]:
        return naming.tags(self._account.workspace, _DOCTOR, key, {})


def _asked(name: str, ask: Callable[[], Finding]) -> Finding:
    try:
        return ask()
    except StokerError as error:
        return _trouble(name, error)


def _trouble(name: str, error: StokerError) -> Finding:
    return Finding(name, CheckResult.FAIL, error.message, error.hint)
