"""The Azure provider keeps the same contract where all nodes of a practitioner are in one group, with no more rights
than the set-up gives them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import test_azure_provider as alone

from services import Azurite
from stoker.errors import NotAllowed, NotSetUp, ProviderUnavailable
from stoker.model.node import NodeState
from stoker.model.workspace.groundwork import GivenOptions
from stoker.model.workspace.home import Home
from stoker.providers import Setup
from stoker.providers.azure import AzureProvider
from stoker.providers.azure.account.clients import PATIENCE_S, Spreading
from stoker.providers.azure.setup.setup import AzureSetup
from stoker.testing.twin import TwinHandle, twin
from stoker.twin.state import CloudState
from stoker.twin.time.weather import Weather

SECRET = "hush-hush"
pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwinHandle]:
    with twin(tmp_path_factory.mktemp("twin"), weather=Weather(restore_s=40), speed=10) as handle:
        yield handle


@pytest.fixture(scope="module")
def people(cloud: TwinHandle) -> dict[str, Any]:
    """Two practitioners with access, by name, and the account that all got."""
    found = {name: cloud.order("principal", name=name, secret=SECRET) for name in ("anna", "bob", "stranger")}
    cloud.order("blob", endpoint="nowhere:")
    asked = {
        "workspace": "vision",
        "region": ("eastus", "westus2"),
        "practitioner": tuple(found[name]["object_id"] for name in ("anna", "bob")),
    }
    handover = AzureSetup().lay(GivenOptions(asked, {}, asdict(cloud.address)), lambda _: None)
    # A hand-over contains the certificate's text; everybody stores it in a file of their own.
    return {**found, "account": {**handover.accounts["azure"], "ca_file": cloud.address.authority}}


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me"


def _all_stopped(provider: AzureProvider, _now: object) -> bool:
    return alone.all_stopped(provider)


class TestSharedGroup(alone.TestAzureProvider):
    @pytest.fixture(autouse=True)
    def _services(self, cloud: TwinHandle, azurite: Azurite, tmp_path: Path, people: dict[str, Any]) -> Iterator[None]:
        self.cloud, self.azurite, self.people = cloud, azurite, people
        self.container = azurite.new_container()
        before = set(cloud.cloud.resources)
        yield
        for name in ("anna", "bob"):
            provider = self.make(tmp_path, person=name)
            cloud.wait(partial(_all_stopped, provider))
        cloud.wait(lambda now: set(now.resources) <= before)

    def make(self, folder: Path, server: str = "first", *, person: str = "anna", **more: Any) -> AzureProvider:
        home = folder / person
        home.mkdir(exist_ok=True)
        (home / "secret").write_text(SECRET)
        login = {"client": self.people[person]["client_id"], "secret_file": str(home / "secret")}
        (home / "azure.json").write_text(json.dumps({**self.people["account"], **login, **more}))
        return alone.CloseWatch(Setup(Home(home), server=server))

    def test_a_node_is_made_by_two_writing_requests(self, tmp_path: Path) -> None:
        """One of them: its group exists."""
        provider, request = self.make(tmp_path), self.request(tmp_path, "r-1")
        before = len(self.cloud.ask("requests"))
        provider.start(request)
        asked = [f"{one['method']} {one['status']}" for one in self.cloud.ask("requests")[before:]]
        assert [one for one in asked if not one.startswith("GET") and one != "POST 200"] == ["PUT 201"]

    def test_everything_of_a_node_is_listed_with_its_price(self, tmp_path: Path) -> None:
        provider = self.make(tmp_path)
        provider.start(self.request(tmp_path, "r-1"))
        provider.start(self.request(tmp_path, "r-10"))
        self.up(provider, "r-1")
        sight = self._seen(self.make(tmp_path), "r-1")
        made = ["disks", "networkInterfaces", "publicIPAddresses", "userAssignedIdentities"]
        assert [one.split("/")[0] for one in sight.resources] == [*made, "virtualMachineScaleSets", "virtualMachines"]
        assert sight.usd_per_hour > 0

    test_a_login_that_may_not_define_roles_makes_nodes_that_switch_themselves_off_and_no_more = None  # type: ignore[assignment]  # theirs may

    def test_a_gang_in_a_group_without_a_placement_group_does_without(self, tmp_path: Path) -> None:
        """As an earlier set-up left it."""
        provider = self.make(tmp_path)
        group = f"/resourcegroups/{provider._ground.place('g-1').group}/"
        kind = "Microsoft.Compute/proximityPlacementGroups"
        (there,) = (one for one in self.cloud.cloud.all(kind) if one.region == "eastus" and group in one.id.lower())
        self.cloud.order("fault", kind="error", method="GET", path=there.id, status=404, code="ResourceNotFound")
        provider.start(replace(self.request(tmp_path, "g-1"), gang="g"))
        self.up(provider, "g-1")
        vm = self.cloud.cloud.find(self.vm("g-1"))
        assert vm and "proximityPlacementGroup" not in vm.properties

    def test_what_was_only_begun_is_finished_when_it_is_asked_for_again(self, tmp_path: Path) -> None:
        """There is one request, and so nothing in between."""
        provider = self.make(tmp_path)
        self.cloud.order("fault", kind="error", method="PUT", path="/deployments/", status=400, code="Broken")
        request = self.request(tmp_path, "r-1")
        with pytest.raises(Exception, match="Broken"):
            provider.start(request)
        assert provider.look() == []
        provider.start(request)
        self.up(provider, "r-1")

    def test_nothing_of_a_node_is_left_in_the_group_and_its_neighbour_stays(self, tmp_path: Path) -> None:
        provider = self.make(tmp_path, open_ssh=True, ssh_from=["127.0.0.1"], ssh_key=KEY)
        before = set(self.cloud.cloud.resources)
        provider.start(self.request(tmp_path, "r-1"))
        made = set(self.cloud.cloud.resources) - before
        kinds = sorted(self.cloud.cloud.resources[one].kind.rsplit("/", 1)[1] for one in made)
        node = ["deployments", "disks", "networkInterfaces", "publicIPAddresses", "roleAssignments"]
        assert kinds == [*node, "userAssignedIdentities", "virtualMachineScaleSets", "virtualMachines"]
        provider.start(self.request(tmp_path, "r-10"))
        self.up(provider, "r-1")
        self.up(provider, "r-10")
        provider.stop("r-1")
        self.cloud.wait(lambda now: not made & set(now.resources))
        assert self._gone(provider, "r-1")
        assert self._seen(provider, "r-10").state is NodeState.UP

    def test_a_node_that_is_stopped_while_it_is_made_leaves_nothing(self, tmp_path: Path) -> None:
        provider = self.make(tmp_path)
        before = set(self.cloud.cloud.resources)
        provider.start(self.request(tmp_path, "r-1"))
        provider.stop("r-1")
        self.cloud.wait(lambda _: alone.all_stopped(provider))
        self.cloud.wait(lambda now: set(now.resources) == before)

    def test_what_a_failed_allocation_leaves_is_removed(self, tmp_path: Path) -> None:
        provider = self.make(tmp_path)
        before = set(self.cloud.cloud.resources)
        self.cloud.order("fault", kind="allocation")
        provider.start(self.request(tmp_path, "r-1"))
        self.cloud.wait(lambda _: self._seen(provider, "r-1").trouble == "no-capacity")
        self.cloud.wait(lambda _: alone.all_stopped(provider))
        self.cloud.wait(lambda now: set(now.resources) == before)

    def test_an_address_without_its_machine_is_removed_after_the_interface_that_holds_it(self, tmp_path: Path) -> None:
        provider = self.make(
            tmp_path, open_ssh=True, ssh_from=["127.0.0.1"], ssh_key=KEY, image="Canonical:no-such-offer:server:latest"
        )
        before = set(self.cloud.cloud.resources)
        request = self.request(tmp_path, "r-1")
        assert request.offer
        provider.start(replace(request, offer=replace(request.offer, spot=False)))
        self.cloud.wait(lambda _: self._seen(provider, "r-1").trouble)
        left = [one.split("/")[0] for one in self._seen(provider, "r-1").resources]
        assert left == ["networkInterfaces", "publicIPAddresses"]
        self.cloud.wait(lambda _: alone.all_stopped(provider))
        self.cloud.wait(lambda now: set(now.resources) == before)

    def test_practitioners_see_and_reach_their_own_nodes_alone(self, tmp_path: Path) -> None:
        anna, bob = self.make(tmp_path), self.make(tmp_path, person="bob")
        anna.start(self.request(tmp_path, "r-1"))
        self.up(anna, "r-1")
        assert bob.look() == []
        bob.stop("r-1")
        assert self._seen(anna, "r-1").state is NodeState.UP
        theirs = anna._place("r-1")
        for act in (
            lambda: bob._cloud.run_command(theirs, ["id"]),
            lambda: bob._cloud.delete_machine(theirs),
            lambda: bob._cloud.delete_machine(replace(theirs, set=False)),
            lambda: bob._cloud.switch_off(theirs),
            lambda: bob._cloud.mark(theirs, {"stoker-node": "mine"}),
            lambda: bob._cloud.delete_group(theirs.group),
            lambda: bob._cloud.parts(theirs.group),
            lambda: bob._cloud.deployments(theirs.group),
            lambda: bob._cloud.put_by_id(f"{vm_id(anna)}/extensions/reset", "2024-07-01", reset_of_ssh()),
        ):
            with pytest.raises(NotAllowed):
                act()
        assert self._seen(anna, "r-1").state is NodeState.UP

    def test_somebody_who_is_not_admitted_is_told_what_their_administrator_runs(self, tmp_path: Path) -> None:
        provider, now = self.make(tmp_path, person="stranger"), [0.0]
        provider._spreading = Spreading(lambda: now[0])
        with pytest.raises(ProviderUnavailable):  # the role may have been assigned a moment ago
            provider.start(self.request(tmp_path, "r-1"))
        now[0] = PATIENCE_S
        with pytest.raises(NotAllowed) as caught:
            provider.start(self.request(tmp_path, "r-1"))
        who = self.people["stranger"]["object_id"]
        assert "Microsoft.Authorization/roleAssignments/read" in caught.value.message or who in caught.value.hint

    def test_a_role_that_has_not_spread_yet_is_waited_for_and_one_that_is_missing_is_reported(
        self, tmp_path: Path
    ) -> None:
        provider, request = self.make(tmp_path), self.request(tmp_path, "r-1")
        refusal = {"kind": "error", "method": "PUT", "path": "/deployments/", "status": 403}
        now = [0.0]
        provider._spreading = Spreading(lambda: now[0])
        for now[0], refused in (
            (0, ProviderUnavailable),
            (PATIENCE_S - 1, ProviderUnavailable),
            (PATIENCE_S, NotAllowed),
        ):
            self.cloud.order("fault", **refusal, code="AuthorizationFailed")
            with pytest.raises(refused):
                provider.start(request)
        provider.start(request)
        self.up(provider, "r-1")
        self.cloud.order("fault", **refusal, code="AuthorizationFailed")
        with pytest.raises(ProviderUnavailable):
            provider.start(self.request(tmp_path, "r-2"))

    def test_the_port_for_ssh_is_open_to_whom_it_says_and_shut_when_that_changes(self, tmp_path: Path) -> None:
        key: dict[str, Any] = {"ssh_key": KEY}
        with pytest.raises(NotSetUp, match="ssh_from"):
            self.make(tmp_path, open_ssh=True, **key).start(self.request(tmp_path, "r-1"))
        cases: list[tuple[dict[str, Any], list[str]]] = [
            ({"open_ssh": True, "ssh_from": "203.0.113.7"}, ["203.0.113.7"]),
            ({"open_ssh": True, "ssh_from": ["198.51.100.0/24"]}, ["198.51.100.0/24"]),
            ({}, []),
        ]
        for number, (settings, sources) in enumerate(cases):
            self.make(tmp_path, **key, **settings).start(self.request(tmp_path, f"r-{number}"))
            assert allowed(self.cloud.cloud) == sources


def allowed(cloud: CloudState) -> list[str]:
    """Every address that some firewall lets in."""
    firewalls = cloud.all("Microsoft.Network/networkSecurityGroups")
    rules = [rule["properties"] for one in firewalls for rule in one.properties.get("securityRules", ())]
    return [source for rule in rules for source in rule["sourceAddressPrefixes"]]


def vm_id(provider: AzureProvider) -> str:
    place = provider._place("r-1")
    return replace(place, name=place.machine).vm_id(provider._account.subscription)


def reset_of_ssh() -> dict[str, Any]:
    """As `az vm user update` requests it."""
    properties = {
        "publisher": "Microsoft.OSTCExtensions",
        "type": "VMAccessForLinux",
        "typeHandlerVersion": "1.5",
        "protectedSettings": {"username": "stoker", "ssh_key": KEY},
    }
    return {"location": "eastus", "properties": properties}
