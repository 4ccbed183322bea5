"""Nodes in Azure: each is a VM with its resources, in its own resource group or in the practitioner's. The role that
each node has over itself: an administrator's, one created at first use, or a built-in one. How people reach a VM in
Azure: by ssh where its port is open, and by Azure's run-command always. Pure but for two requests to the cloud."""

from __future__ import annotations

import base64
import logging
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import ClassVar

from stoker.errors import Conflict, LoginFailed, NoCapacity, NotAllowed, NotSetUp, ProviderFailed, ProviderUnavailable
from stoker.model.cause import Cause
from stoker.model.node import Entrance, Features, Need, NodeRequest, NodeSight, Offer, Said
from stoker.providers import Setup
from stoker.providers.azure import naming
from stoker.providers.azure.account.account import NO_ACCOUNT, Account, check_ssh, check_way_out, read_account
from stoker.providers.azure.account.clients import Spreading
from stoker.providers.azure.account.grounds import Ground, ground
from stoker.providers.azure.booting import CONFIG, boot_text
from stoker.providers.azure.cloud import AzureCloud, Starting
from stoker.providers.azure.market.listed import listed
from stoker.providers.azure.market.prices import Catalogue, account_prices
from stoker.providers.azure.naming import NodePlace, refuses_set
from stoker.providers.azure.setup import site
from stoker.providers.azure.setup.resources import ROLES_API, agrees, node_role
from stoker.providers.azure.template import ADMIN, MachineChoice, NodeSite, deployment
from stoker.providers.azure.watch import KEPT_S, NodeWatch

FEATURES = Features(
    notice_s=30.0,
    spot=True,
    market=True,
    look_every_s=2.0,
    patience_s=15.0,
    lease_s=432_000.0,
    reachable=True,
    restores=True,
    warm=True,
    containers=True,
)

log = logging.getLogger(__name__)


class AzureProvider:
    looks_kept_s: ClassVar[float] = KEPT_S

    def __init__(self, setup: Setup) -> None:
        self._home = setup.home
        self._server = setup.server
        self._spreading = Spreading()
        self._makes_sets = True  # until Azure refuses one
        self._gangs: dict[str, str] = {}  # by node key: its gang, of nodes that this process requested
        self._apart: set[str] = set()  # gangs for which Azure had no capacity in one placement group

    @property
    def features(self) -> Features:
        """Leases and evictions are read from the account as soon as there is one."""
        known: Account | None = self.__dict__.get("_account")
        if known is None:
            return FEATURES
        restores = self._makes_sets and known.restored(spot=True) and self.__dict__.get("_role") != POWER_ROLE
        return replace(FEATURES, lease_s=known.lease_s, idle_s=known.idle_s, restores=restores)

    def offers(self, need: Need) -> list[Offer]:
        """Before an account is set up: list prices, marked as such."""
        return listed(need, NO_ACCOUNT) if self._is_bare else self._catalogue.offers(need)

    @property
    def _is_bare(self) -> bool:
        """No account file exists yet. An invalid one is reported as an error instead."""
        return not (self._home.root / "azure.json").exists()

    def start(self, request: NodeRequest) -> None:
        if request.offer is None:
            raise ProviderFailed(f"no VM size given for {request.key}")
        with self._changing(), self._spreading.waiting() if self._account.practitioner else nullcontext():
            if request.offer.again:
                self._start_again(request, request.offer.again)
            elif request.gang:
                tags = {**self._tags(request), **self._lease_tag(request.lease_s)}
                with self._ground.joined(request.gang, request.key, request.offer.place, tags) as place:
                    self._start_joined(request, request.offer, place)
            else:
                self._start_new(request, request.offer, self._ground.place(request.key))

    def _start_joined(self, request: NodeRequest, offer: Offer, place: NodePlace) -> None:
        self._gangs[request.key] = request.gang
        try:
            self._start_new(request, offer, place)
        except NoCapacity:
            self._apart.add(request.gang)
            raise

    def _start_new(self, request: NodeRequest, offer: Offer, place: NodePlace) -> None:
        account = self._account
        check_ssh(account)
        check_way_out(account)
        made = self._cloud.deployed(place)
        if made and made.set_refused:
            self._without_set(request.key, made.failure)
            self._cloud.remove_set(place)
        elif made and made.begun:
            return  # the custom data of a VM cannot be changed
        most = self._catalogue.most_for_machine(offer, request.max_price, alone=not request.gang)
        traits = self._catalogue.size_of(offer.place, offer.size)
        restore_s = account.lasts_s(request.lease_s)
        machine = MachineChoice(
            offer.size,
            offer.place,
            offer.spot,
            most,
            restore_s=restore_s,
            traits=traits,
            # A placement group limits where Azure looks for capacity: after a refusal, the gang does without.
            near=place.near and request.gang not in self._apart,
        )
        # A node of a gang cannot continue without the others, so Azure does not restore it.
        restored = self._makes_sets and account.restored(spot=offer.spot) and self._role != POWER_ROLE
        restored = restored and not request.gang
        try:
            self._deploy(request, machine, replace(place, set=restored), there=made is not None)
        except ProviderFailed as error:
            if not restored or not refuses_set(error):
                raise
            self._without_set(request.key, error)
            self._deploy(request, machine, place, there=True)

    def _deploy(self, request: NodeRequest, machine: MachineChoice, place: NodePlace, *, there: bool) -> None:
        account, lease, tags = self._account, self._lease_tag(request.lease_s), self._tags(request)
        tags |= {naming.FORM: naming.SET} if place.set else {}
        site = self._site(place)
        boot = boot_text(request, site, self._home)
        self._ground.prepare(place, machine.region, {**tags, **lease}, there=there)
        # In its own group, a node keeps its lease in the group's tags; its resources have no tag that changes.
        own = {**tags, **lease} if place.shared else tags
        properties = deployment(site, machine, own, account.ssh_key or nobodys_key())
        self._cloud.deploy(place, properties, base64.b64encode(boot.encode()).decode(), own)

    def _without_set(self, key: str, error: ProviderFailed | None) -> None:
        """Azure refused a scale set here: do not request one again."""
        self._makes_sets = False
        log.warning("%s is a plain spot VM and will not be restored automatically after an eviction: %s", key, error)

    def look(self) -> list[NodeSight]:
        """Empty without an account. Raises where the account cannot log in, because nodes may exist that nobody can
        see."""
        try:
            watch = self._watch
        except NotSetUp:
            return []
        try:
            found = watch.look()
        except LoginFailed:
            self._cloud.log_in_again()
            raise
        refused = {one.key for one in found if one.trouble == NoCapacity.code}
        self._apart |= {self._gangs[key] for key in refused & self._gangs.keys()}
        return found

    def stop(self, key: str) -> None:
        with self._changing():
            self._ground.stop(key)
        self._watch.stopped(key)
        self._gangs.pop(key, None)

    def renew(self, key: str, lease_s: float) -> None:
        with self._changing():
            self._cloud.mark(self._place(key), self._lease_tag(lease_s))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """What was seen before this is not shown after it."""
        watch = self._watch
        try:
            yield
        finally:
            watch.changed()

    def entrance(self, key: str) -> Entrance:
        return entrance(self._cloud, self._account, self._reached(key))

    def command(self, key: str, words: Sequence[str]) -> Said:
        return run_command(self._cloud, self._reached(key), words)

    @cached_property
    def _account(self) -> Account:
        return read_account(self._home.root / "azure.json")

    @cached_property
    def _cloud(self) -> AzureCloud:
        return AzureCloud(self._account)

    @cached_property
    def _catalogue(self) -> Catalogue:
        return Catalogue(self._account, self._cloud, account_prices(self._account, self._home.prices))

    @cached_property
    def _watch(self) -> NodeWatch:
        return NodeWatch(self._cloud, self._ground, self._catalogue, self._server, kept_s=self.looks_kept_s)

    @cached_property
    def _ground(self) -> Ground:
        return ground(self._cloud, self._account)

    @cached_property
    def _role(self) -> str:
        return role_of_nodes(self._cloud, self._account)

    def _forget_account(self) -> None:
        """The account and everything derived from it is read again when next needed."""
        for known in ("_account", "_cloud", "_catalogue", "_watch", "_ground", "_role"):
            self.__dict__.pop(known, None)

    def _place(self, key: str) -> NodePlace:
        return self._watch.places.get(key) or self._found(key)

    def _reached(self, key: str) -> NodePlace:
        """A VM that was restored since the last look has another name."""
        known = self._watch.places.get(key)
        return known if known and not known.set else self._found(key)

    def _found(self, key: str) -> NodePlace:
        there = (one.place for one in self._ground.found() if one.marks.key == key)
        return next(there, self._ground.place(key))

    def _site(self, place: NodePlace) -> NodeSite:
        """Azure roles apply to a scope and everything below it. The scope is the node's group if it has its own and the
        role may delete groups; otherwise its VM or scale set."""
        subscription, role = self._account.subscription, self._role
        alone = not place.shared and role != POWER_ROLE
        return NodeSite(
            self._account, place, role, place.group_id(subscription) if alone else place.node_id(subscription)
        )

    def _tags(self, request: NodeRequest) -> dict[str, str]:
        return naming.tags(self._account.workspace, self._server, request.key, request.labels)

    def _lease_tag(self, lease_s: float | None) -> dict[str, str]:
        return naming.lease_tag(self._cloud.now() + timedelta(seconds=self._account.lasts_s(lease_s)))

    def _start_again(self, request: NodeRequest, machine: str) -> None:
        """The VM gets the new node's tags before it is started, so its owner is known at any moment. A server
        requests a node until it has seen it: whether Azure has capacity is the answer to the first request."""
        if self._watch.awaits(request.key):
            return
        there = [one for one in self._ground.found() if one.marks.machine == machine and not one.deleting]
        if not there:
            raise NoCapacity(f"starting {request.key}: the VM of {machine} no longer exists")
        place, marks = there[0].place, there[0].marks
        self._watch.expect(request.key, None)
        try:
            if marks.key != request.key:
                kept = {name: tag for name, tag in self._tags(request).items() if name != naming.MACHINE}
                self._cloud.mark(place, {**kept, **self._lease_tag(request.lease_s)})
            self._watch.expect(request.key, self._switched_on(place))
        except BaseException:
            self._watch.forget(request.key)
            raise

    def _switched_on(self, place: NodePlace) -> Starting:
        """The SDKs do not repeat a POST whose response was lost. While the VM is off and has the new node's tags, it
        looks evicted once more."""
        for pause_s in _PAUSES_S:
            with suppress(ProviderUnavailable):
                return self._cloud.switch_on(place)
            time.sleep(pause_s)
        return self._cloud.switch_on(place)


_PAUSES_S = (1.0, 3.0)


def nobodys_key() -> str:
    """Azure requires a public key where there is no password. The private half of this one is discarded here."""
    from cryptography.hazmat.primitives import serialization  # comes with the SDKs
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    form = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return f"{Ed25519PrivateKey.generate().public_key().public_bytes(*form).decode()} nobody"


# "Desktop Virtualization Power On Off Contributor": the smallest built-in role with which a VM can stop its own
# billing. It may deallocate, and delete nothing: the disk stays until somebody removes it.
POWER_ROLE = "40c5ff49-9181-41f8-ae61-143b0e78555e"


def role_of_nodes(cloud: AzureCloud, account: Account) -> str:
    """Its id. A login that may not define roles gets the built-in role with the fewest rights. Raises NotSetUp where
    the role of the account does not exist."""
    if account.role:
        with suppress(NotAllowed):
            if cloud.get(site.role_id(account.subscription, account.role), ROLES_API) is None:
                raise NotSetUp(f"the role {account.role} of azure.json does not exist", hint=_ROLE_GONE)
        return account.role
    role = site.own_role(account.subscription, account.workspace, "node")
    id, wanted = site.role_id(account.subscription, role), node_role(account.subscription, account.workspace)
    try:
        found = cloud.get(id, ROLES_API)
        if found is None or not agrees(wanted, found):
            cloud.put_by_id(id, ROLES_API, wanted)
    except NotAllowed:
        return POWER_ROLE
    return role


_ROLE_GONE = "an administrator runs stoker admin setup azure again; or remove `role`: Stoker then defines one"

FOLDER = "/var/lib/stoker/node"
_AGENT = '"$(ls -t /var/lib/stoker/agent-*.pyz | head -n 1)"'
_ENTER = f"exec python3 -I -S {_AGENT} enter --folder {FOLDER}"
_MARK = "stoker-exit-code:"


def entrance(cloud: AzureCloud, account: Account, place: NodePlace) -> Entrance:
    """Raises Conflict, with the settings to change, where no port is open or no key is set."""
    if not account.open_ssh or not account.ssh_key:
        lacking = (
            "`open_ssh`" if account.ssh_key else "`open_ssh` and `ssh_key`" if not account.open_ssh else "`ssh_key`"
        )
        raise Conflict(
            f"the VMs of this workspace do not accept ssh: the account does not set {lacking}",
            hint='set "open_ssh": true, "ssh_key" to your public key and "ssh_from" to your public address in '
            "azure.json for future runs; stoker exec needs none of them",
            cause=Cause.NO_SSH,
        )
    address = cloud.public_address(place)
    if not address:
        raise Conflict(
            "this VM has no public address",
            hint="set `open_ssh` before the VM starts; stoker exec works without it",
            cause=Cause.NO_SSH,
        )
    return Entrance(("sudo", "-n", "sh", "-c", f'{_ENTER} -- "$@"', "stoker"), address=address, user=ADMIN)


def run_command(cloud: AzureCloud, place: NodePlace, words: Sequence[str]) -> Said:
    """By Azure's VM agent, which works whatever the state of ours. It returns the last 4 kB when the command ends."""
    script = [f"sh -c '{_ENTER} --config {CONFIG} -- \"$@\"' stoker {shlex.join(words)}", f'echo "{_MARK}$?"']
    out, err = streams(cloud.run_command(place, script))
    said, _, code = out.rpartition(_MARK)
    return Said(int(code) if code.strip().isdigit() else 125, said.encode(), err.encode())


def streams(message: str) -> tuple[str, str]:
    """Azure's report of a command: `Enable succeeded: \\n[stdout]\\n…\\n[stderr]\\n…`."""
    _, _, rest = message.partition("[stdout]\n")
    out, _, err = rest.rpartition("\n[stderr]\n")
    return out, err
