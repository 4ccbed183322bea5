"""The administrator's one-time set-up of a workspace in Azure and its removal, and whether a run could start on this
account."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from stoker.errors import LoginFailed, NotAllowed, NotSetUp, ProviderFailed, StokerError
from stoker.model.node import Need, Offer
from stoker.model.workspace.groundwork import GivenOptions, GroundworkPiece, Option, PieceState
from stoker.model.workspace.handover import AccountForm, Handover
from stoker.model.workspace.home import Home
from stoker.model.workspace.store import CheckResult, Finding, failed
from stoker.providers.azure import POWER_ROLE, naming, nobodys_key, template
from stoker.providers.azure.account.account import FORM, Account, check_ssh, check_way_out, read_account
from stoker.providers.azure.account.grounds import Ground, SharedGroup, ground
from stoker.providers.azure.account.recording import SWITCH, recording
from stoker.providers.azure.market.prices import Catalogue, account_prices
from stoker.providers.azure.naming import NodePlace, refuses_set
from stoker.providers.azure.rehearsal import twin_account
from stoker.providers.azure.setup import answers, options
from stoker.providers.azure.setup.answers import Questions
from stoker.providers.azure.setup.cloud import open_cloud
from stoker.providers.azure.setup.options import OPTIONS
from stoker.providers.azure.setup.resources import ROLES_API
from stoker.providers.azure.setup.site import own_role, role_id
from stoker.providers.azure.setup.workspace import GroundworkRemoval, Workspace
from stoker.providers.azure.template import Json, MachineChoice, NodeSite, deployment


class AzureSetup:
    """Stateless: everything is read from Azure."""

    options: ClassVar[tuple[Option, ...]] = OPTIONS
    form: ClassVar[AccountForm] = FORM

    def plan(self, asked: GivenOptions) -> list[GroundworkPiece]:
        with _as_owner(asked):
            return [piece for piece, _ in Workspace(asked, open_cloud(asked)).steps(costs=True)]

    def lay(self, asked: GivenOptions, tell: Callable[[GroundworkPiece], None]) -> Handover:
        with _as_owner(asked):
            workspace = Workspace(asked, open_cloud(asked))
            for piece, make in workspace.steps():
                if piece.state is not PieceState.THERE:
                    make()
                    tell(piece)
            return workspace.handover()

    def preflight(self, asked: GivenOptions, needs: Sequence[Need]) -> Iterator[Finding]:
        if asked.folder is None:
            yield from _before_setup(asked, needs)
            return
        try:
            account, secret = _account_of_runs(asked)
        except NotSetUp as error:
            yield Finding("account", CheckResult.FAIL, error.message, error.hint)
            return
        yield from Preflight(account, secret, Home(asked.folder).prices).findings(needs)

    def recording(self, asked: GivenOptions, file: Path) -> AbstractContextManager[None]:
        return recording(asked.folder, file) if asked.folder else nullcontext()

    def drill(self, asked: GivenOptions, key: str) -> str:
        return Questions(*_account_of_runs(asked)).evict(key)

    def survey(self, asked: GivenOptions) -> list[GroundworkPiece]:
        with _as_owner(asked):
            return GroundworkRemoval(asked, open_cloud(asked)).survey()

    def remove(self, asked: GivenOptions, tell: Callable[[GroundworkPiece], None]) -> list[GroundworkPiece]:
        with _as_owner(asked):
            return GroundworkRemoval(asked, open_cloud(asked)).carry_out(tell)


def _account_of_runs(asked: GivenOptions) -> tuple[Account, str]:
    """The account that runs use, and its secret where no file contains it."""
    if asked.twin is not None:
        switch = str(asked.folder / SWITCH) if asked.folder else ""
        return replace(twin_account(asked.twin), switch=switch), str(asked.twin["client_secret"])
    assert asked.folder is not None
    return read_account(asked.folder / "azure.json"), ""


def _before_setup(asked: GivenOptions, needs: Sequence[Need]) -> Iterator[Finding]:
    """What must hold before anything is created. The rest is what the set-up creates."""
    options.check(asked)
    cloud = open_cloud(asked)
    account = replace(cloud.account, regions=options.regions(asked) or cloud.account.regions)
    preflight = Preflight(account, cloud.secret)
    found = list(preflight.standing(made=True))
    yield from found
    if not failed(found):
        yield from preflight.places(needs)


@contextmanager
def _as_owner(asked: GivenOptions) -> Iterator[None]:
    """Creating roles requires the role Owner: with a smaller one, Azure would refuse the next step."""
    try:
        yield
    except NotAllowed as error:
        who = options.assignee(error.hint)
        scope = f"/subscriptions/{options.subscription(asked)}"
        raise NotAllowed(
            f"{error.message}: the set-up requires the role Owner of the subscription",
            hint=f"an owner runs: az role assignment create --role Owner --assignee {who} --scope {scope}",
        ) from error


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
        yield from answers.best({region: self._region(region, needs) for region in self._account.regions})

    def standing(self, *, made: bool = False) -> Iterator[Finding]:
        """The login and the subscription. `made`: the caller registers what is missing."""
        try:
            yield answers.login(self._claims)
        except StokerError as error:
            yield _trouble("login", error)
            return
        yield _asked("clock", lambda: answers.clock(self._cloud.clock_ahead()))
        yield _asked("subscription", lambda: answers.subscription(self._cloud.subscription()))
        yield _asked(
            "services",
            lambda: answers.services({name: self._cloud.registration(name) for name in SERVICES}, made=made),
        )
        with suppress(ProviderFailed):  # a login that may not count them needs no warning
            yield answers.limits(*self._cloud.counts())

    def places(self, needs: Sequence[Need], *, deploys: bool = False) -> list[Finding]:
        """Sizes, images and quotas in each region, without trying a deployment."""
        return answers.best({region: self._region(region, needs, deploys=deploys) for region in self._account.regions})

    @cached_property
    def _claims(self) -> Json:
        return self._cloud.claims()

    @cached_property
    def _ground(self) -> Ground:
        return ground(self._cloud, self._account)

    def _region(self, region: str, needs: Sequence[Need], *, deploys: bool = True) -> list[Finding]:
        """One of the needs is enough, since a run takes the first that is available."""
        tried = {f"{number}": self._need(region, need, deploys=deploys) for number, need in enumerate(needs)}
        return answers.best(tried)

    def _need(self, region: str, need: Need, *, deploys: bool) -> list[Finding]:
        found = [_asked(f"size {region}", lambda: answers.size(region, self._cheapest(region, need)))]
        offer = None if failed(found) else self._cheapest(region, need)
        if offer is None:
            return found
        traits, image = self._catalogue.size_of(region, offer.size), self._account.image
        image = image or template.image_of(traits)
        there = _asked(f"image {region}", lambda: answers.image(region, image, self._cloud.image_there(region, image)))
        subscription = self._account.subscription
        room = _asked(
            f"quota {region}",
            lambda: answers.quota(offer, traits, self._cloud.usages(region), subscription),
        )
        return [*found, there, room, *self._addresses(offer), *(self._deployment(offer) if deploys else ())]

    def _addresses(self, offer: Offer) -> list[Finding]:
        """Of a machine that has a public address: a small subscription runs out of them before it does of vCPUs."""
        account, region = self._account, offer.place
        if not account.addressed(of_set=account.restored(spot=offer.spot)):
            return []
        name = f"addresses {region}"
        try:
            return [answers.addresses(region, self._cloud.address_usages(region), account.subscription)]
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
        missing = answers.lacking(answers.needed(properties, shared=place.shared), held)
        scope = f"/subscriptions/{self._account.subscription}"
        workspace, who = self._account.workspace, str(self._claims.get("oid", "YOU"))
        admission = f"stoker admin setup azure --workspace {workspace} --practitioner {who}" if place.shared else ""
        yield answers.rights(missing, who, scope, admission)

    def _role(self) -> str:
        """The role of nodes, where it exists; else the built-in role with the fewest rights."""
        account = self._account
        if account.role:
            return account.role
        own = own_role(account.subscription, account.workspace, "node")
        there = self._cloud.get(role_id(account.subscription, own), ROLES_API)
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
