"""The Azure provider keeps the provider contract, over the wire of the twin, with the official SDKs."""

from __future__ import annotations

import base64
import json
import re
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from services import Azurite
from stoker.errors import ProviderUnavailable
from stoker.model.node import NodeRequest, NodeState, Offer
from stoker.model.workspace import layout
from stoker.model.workspace.groundwork import GivenOptions
from stoker.model.workspace.home import Home
from stoker.providers import Provider, Setup
from stoker.providers.azure import AzureProvider
from stoker.providers.azure.setup.cloud import open_cloud
from stoker.providers.azure.watch import KEPT_S
from stoker.stores.kinds import grant
from stoker.stores.opening import open_store
from stoker.testing.providers import ProviderContract
from stoker.testing.twin import TwinHandle, twin
from stoker.twin import rights
from stoker.twin.time import power
from stoker.twin.time.weather import Weather
from stoker.twin.world import machine_token


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwinHandle]:
    with twin(tmp_path_factory.mktemp("twin"), weather=Weather(restore_s=40), speed=10) as handle:
        yield handle


# Whatever a node could rent or run something with.
MAKERS = (
    "Microsoft.Resources/deployments",
    "Microsoft.Compute/virtualMachines",
    "Microsoft.Compute/virtualMachineScaleSets",
    "Microsoft.Compute/disks",
    "Microsoft.Network/publicIPAddresses",
    "Microsoft.ManagedIdentity/userAssignedIdentities",
)


class CloseWatch(AzureProvider):
    """Every look is new: the twin runs ten times as fast as Azure."""

    looks_kept_s = 0.0


def all_stopped(provider: Provider) -> bool:
    """Stops every node that is there; true once none is."""
    keys = [one.key for one in provider.look()]
    for key in keys:
        provider.stop(key)
    return not keys


class TestAzureProvider(ProviderContract):
    @pytest.fixture(autouse=True)
    def _services(self, cloud: TwinHandle, azurite: Azurite, tmp_path: Path) -> Iterator[None]:
        self.cloud, self.azurite = cloud, azurite
        self.container = azurite.new_container()
        yield
        for one in self.make(tmp_path).look():
            self.make(tmp_path).stop(one.key)
        cloud.wait(lambda now: not [one for one in now.resources.values() if one.kind != rights.DEFINITIONS])

    def make(self, folder: Path, server: str = "first", **more: Any) -> AzureProvider:
        address = self.cloud.address
        (folder / "secret").write_text(address.client_secret)
        account = {
            "subscription": address.subscription,
            "workspace": folder.name,
            "tenant": address.tenant,
            "client": address.client_id,
            "secret_file": str(folder / "secret"),
            "arm": address.url,
            "login": address.url,
            "prices": f"{address.url}/api/retail/prices",
            "ca_file": address.authority,
            "regions": ["eastus"],
            **more,
        }
        (folder / "azure.json").write_text(json.dumps(account))
        return CloseWatch(Setup(Home(folder), server=server))

    def request(self, folder: Path, key: str) -> NodeRequest:
        orders = layout.orders("r", int(key.rpartition("-")[2]))
        open_store(self.container, self.azurite.account_key).put(orders, b"{}")
        access = grant(
            self.container, self.azurite.account_key, reads=["blobs/"], writes=[layout.run("r")], for_s=3600
        ).to_text()
        offer = Offer("azure", "Standard_D2s_v5", "eastus", Decimal("0.004"), spot=True)
        labels = {"run": "ants-1", "owner": "anna"}
        return NodeRequest(key, orders, self.container, offer=offer, access=access, seal="00", labels=labels)

    def take_away(self, provider: Provider, key: str) -> None:
        vm = self.cloud.wait(
            lambda now: next(
                (
                    one.vm
                    for one in now.instances.values()
                    if re.search(rf"-{key}[/_]", f"{one.vm}/") and one.power == "running"
                ),
                "",
            )
        )
        self.cloud.order("evict", vm=vm, notice_s=0)

    def up(self, provider: Provider, key: str) -> None:
        self.cloud.wait(lambda _: self._seen(provider, key).state is NodeState.UP)

    def test_a_node_is_made_by_two_writing_requests(self, tmp_path: Path) -> None:
        provider, request = self.make(tmp_path), self.request(tmp_path, "r-1")
        provider.start(self.request(tmp_path, "r-2"))  # the first makes the role that all have
        before = len(self.cloud.ask("requests"))
        provider.start(request)
        asked = [f"{one['method']} {one['status']}" for one in self.cloud.ask("requests")[before:]]
        assert [one for one in asked if not one.startswith("GET")] == ["PUT 201", "PUT 201"]

    def test_a_node_removes_itself_with_its_own_token_and_can_do_nothing_else(self, tmp_path: Path) -> None:
        provider = self.make(tmp_path)
        for key in ("r-1", "r-2"):
            provider.start(self.request(tmp_path, key))
            self.up(provider, key)
        mine, theirs = (self.vm(key) for key in ("r-1", "r-2"))
        own_set, their_set = (self.set_of(vm) for vm in (mine, theirs))
        own_group = mine.split("/providers/")[0]
        group, subscription = theirs.split("/providers/")[0], f"/subscriptions/{self.cloud.address.subscription}"
        machines = f"{subscription}/providers/Microsoft.Compute/virtualMachines"
        forbidden = [
            *(("GET", theirs), ("DELETE", theirs), ("PATCH", theirs), ("PUT", f"{theirs}/extensions/x")),
            *(("POST", f"{theirs}/{word}") for word in ("deallocate", "powerOff", "restart", "runCommand")),
            *(("DELETE", group), ("GET", f"{group}/resources"), ("GET", machines)),
            *(("GET", f"{subscription}/resourcegroups"), ("GET", f"{subscription}/resources")),
            *(("POST", f"{mine}/runCommand"), ("PATCH", mine), ("PUT", f"{mine}/extensions/x")),
            ("PUT", f"{mine}/providers/Microsoft.Authorization/roleAssignments/x"),
            *(("PATCH", own_set), ("PUT", own_set), ("PUT", f"{own_set}_2")),
            *(("GET", their_set), ("PATCH", their_set), ("DELETE", their_set), ("GET", f"{their_set}/virtualMachines")),
            *(("PUT", f"{own_group}/providers/{kind}/another") for kind in MAKERS),
            *(("PUT", own_group), ("PATCH", own_group)),
            ("POST", f"{own_group}/providers/{MAKERS[0]}/another/validate"),
        ]
        assert {one: self.as_machine("r-1", *one) for one in forbidden} == dict.fromkeys(forbidden, 403)
        assert self._seen(provider, "r-2").state is NodeState.UP
        assert self.as_machine("r-1", "GET", own_set) == 200
        shared = "/stoker-r-1" in mine
        assert self.as_machine("r-1", "GET", mine) == (403 if shared else 200), "a role at a set is for the set alone"
        assert self.as_machine("r-1", "DELETE", own_set if shared else own_group) == 202
        self.cloud.wait(lambda now: now.find(mine) is None and now.find(own_set) is None, 40)
        assert self._seen(provider, "r-2").state is NodeState.UP
        left = [one.id for one in self.cloud.cloud.all(rights.ASSIGNMENTS) if own_set.lower() in one.id.lower()]
        assert left == [], "no role assignment stays behind"

    def vm(self, key: str) -> str:
        (vm,) = [one.vm for one in self.cloud.cloud.instances.values() if re.search(rf"-{key}[/_]", f"{one.vm}/")]
        return vm

    def set_of(self, vm: str) -> str:
        found = self.cloud.cloud.find(vm)
        assert found
        return power.set_of(found)

    def as_machine(self, key: str, method: str, path: str) -> int:
        """What Azure answers to a request with the token that this machine gets of its metadata service."""
        name = next(one.name for one in self.cloud.cloud.instances.values() if one.vm == self.vm(key))
        address = self.cloud.address
        token = machine_token(self.cloud.cloud, name, address.url, time.time())["access_token"]
        url, data = f"{address.url}{path}?api-version=2024-03-01", None if method == "GET" else b"{}"
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        context = ssl.create_default_context(cafile=address.authority)
        try:
            with urlopen(Request(url, data, headers, method=method), context=context, timeout=30) as answer:
                return int(answer.status)
        except HTTPError as error:
            return error.code

    def test_everything_of_a_node_is_listed_with_its_price(self, tmp_path: Path) -> None:
        provider = self.make(tmp_path)
        provider.start(self.request(tmp_path, "r-1"))
        self.up(provider, "r-1")
        (sight,) = self.make(tmp_path).look()
        kinds = {one.split("/")[0] for one in sight.resources}
        assert kinds >= {"virtualMachines", "disks", "networkInterfaces", "virtualNetworks"}
        assert sight.usd_per_hour > 0

    def test_another_server_of_the_workspace_sees_whose_a_node_is(self, tmp_path: Path) -> None:
        self.make(tmp_path).start(self.request(tmp_path, "r-1"))
        (mine,) = self.make(tmp_path).look()
        (theirs,) = self.make(tmp_path, "second").look()
        assert (mine.server, theirs.server) == ("", "first")
        assert theirs.lease_until and not theirs.expired

    def test_a_node_carries_the_end_of_its_lease_and_its_renewal(self, tmp_path: Path) -> None:
        provider = self.make(tmp_path, lease_s=1.0)
        provider.start(self.request(tmp_path, "r-1"))
        (short,) = provider.look()
        renewed = self.make(tmp_path, lease_s=7200.0)
        renewed.renew("r-1", 7200.0)
        (longer,) = renewed.look()
        assert short.lease_until and longer.lease_until
        assert longer.lease_until - short.lease_until > timedelta(hours=1)
        assert longer.lease_until - datetime.now(UTC) < timedelta(hours=3)

    def test_a_spot_node_is_a_scale_set_of_one_that_azure_restores_for_as_long_as_its_lease(
        self, tmp_path: Path
    ) -> None:
        provider = self.make(tmp_path)
        provider.start(replace(self.request(tmp_path, "r-1"), lease_s=7200.0))
        self.up(provider, "r-1")
        (made,) = self.cloud.cloud.all(power.SETS)
        assert made.properties["spotRestorePolicy"] == {"enabled": True, "restoreTimeout": "PT120M"}
        assert made.body["sku"]["capacity"] == 1
        profile = made.properties["virtualMachineProfile"]
        assert profile["securityProfile"] == {"securityType": "Standard"}
        (card,) = profile["networkProfile"]["networkInterfaceConfigurations"]
        assert card["properties"]["enableAcceleratedNetworking"] is True
        (identity,) = made.body["identity"]["userAssignedIdentities"]
        told = base64.b64decode(made.secret["osProfile"]["customData"]).decode()
        assert f"msi_res_id={quote(identity, safe='')}" in told, "which identity is never left to chance"
        assert "forceDeletion" in told and '\\"lease_s\\": 7200' in told
        assert provider.features.restores
        request = self.request(tmp_path, "r-2")
        assert request.offer
        provider.start(replace(request, offer=replace(request.offer, spot=False)))
        self.up(provider, "r-2")
        assert len(self.cloud.cloud.all(power.SETS)) == 1, "nobody evicts what is on demand"

    def test_an_evicted_node_whose_set_still_tries_is_shown_and_removed_whatever_its_state(
        self, tmp_path: Path
    ) -> None:
        provider = self.make(tmp_path)
        provider.start(self.request(tmp_path, "r-1"))
        self.up(provider, "r-1")
        self.cloud.order("fault", kind="allocation", path="/virtualMachineScaleSets/", times=1000)
        self.take_away(provider, "r-1")
        self.cloud.wait(lambda now: now.restores)
        sight = self._seen(self.make(tmp_path), "r-1")
        assert (sight.state, sight.taken, sight.still) == (NodeState.GONE, True, False), "it may come back"
        assert any(one.startswith("virtualMachineScaleSets/") for one in sight.resources)
        assert sight.usd_per_hour == 0
        self.make(tmp_path).stop("r-1")
        self.cloud.order("calm")
        self.cloud.wait(lambda _: all_stopped(provider))
        self.cloud.wait(lambda now: not now.all(power.SETS) and not now.restores)
        assert not self.cloud.cloud.instances

    @pytest.mark.heavy
    def test_an_evicted_node_comes_back_by_itself_under_its_key_until_it_is_stopped(
        self, provider: Provider, tmp_path: Path
    ) -> None:
        super().test_an_evicted_node_comes_back_by_itself_under_its_key_until_it_is_stopped(provider, tmp_path)

    @pytest.mark.heavy
    def test_people_reach_a_node_that_was_restored(self, tmp_path: Path) -> None:
        provider = self.make(tmp_path)
        provider.start(self.request(tmp_path, "r-1"))
        self.up(provider, "r-1")
        first = self.vm("r-1")
        self.take_away(provider, "r-1")
        self.cloud.wait(lambda now: [one for one in now.instances.values() if one.vm != first and one.boots], 40)
        name = self.vm("r-1").rsplit("/", 1)[-1]
        assert name.encode() in provider.command("r-1", ["id"]).out
        provider.renew("r-1", 600.0)
        assert self._seen(provider, "r-1").lease_until

    @pytest.mark.parametrize("when", ["at once", "in the deployment"])
    def test_where_azure_makes_no_set_a_plain_machine_is_made_and_that_is_reported(
        self, tmp_path: Path, when: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        provider, request = self.make(tmp_path), self.request(tmp_path, "r-1")
        why = {"status": 400, "code": "BadRequest", "message": "Spot restore is not supported with this orchestration."}
        if when == "at once":
            self.cloud.order("fault", kind="error", method="PUT", path="/deployments/", **why)
        else:
            self.cloud.order("fault", kind="refuse", path="/virtualMachineScaleSets/", **why)
        provider.start(request)
        self.cloud.wait(lambda now: not [one for one in now.operations.values() if one.open])
        if self._seen(provider, "r-1").unfinished:
            provider.start(request)
        self.up(provider, "r-1")
        assert "will not be restored automatically after an eviction" in caplog.text
        assert not provider.features.restores
        assert not self.cloud.cloud.all(power.SETS)
        self.take_away(provider, "r-1")
        self.cloud.wait(lambda _: self._seen(provider, "r-1").still)

    @pytest.mark.parametrize(
        ("code", "message"),
        [
            ("AllocationFailed", "no capacity for the scale set"),
            (
                "AuthorizationFailed",
                "may not perform action 'Microsoft.Compute/virtualMachineScaleSets/write' over scope",
            ),
        ],
    )
    def test_a_set_that_is_refused_for_want_of_machines_or_rights_is_not_made_plain(
        self, tmp_path: Path, code: str, message: str
    ) -> None:
        provider = self.make(tmp_path)
        self.cloud.order(
            "fault", kind="refuse", path="/virtualMachineScaleSets/", status=409, code=code, message=message
        )
        provider.start(self.request(tmp_path, "r-1"))
        self.cloud.wait(lambda _: self._seen(provider, "r-1").trouble)
        assert provider.features.restores

    @pytest.mark.parametrize("spot", [True, False])
    def test_a_machine_that_did_not_get_its_role_is_given_up_since_it_could_never_remove_itself(
        self, tmp_path: Path, spot: bool
    ) -> None:
        provider, request = self.make(tmp_path), self.request(tmp_path, "r-1")
        assert request.offer
        lost = {"status": 404, "code": "RoleDefinitionDoesNotExist", "message": "The specified role does not exist."}
        self.cloud.order("fault", kind="refuse", path="/roleAssignments/", **lost)
        provider.start(replace(request, offer=replace(request.offer, spot=spot)))
        self.cloud.wait(lambda _: self._seen(provider, "r-1").state is NodeState.GONE)
        assert self._seen(provider, "r-1").trouble == ProviderUnavailable.code, "a new role is not known at once"
        made = [one for one in self.cloud.cloud.instances.values() if re.search(r"-r-1[/_]", f"{one.vm}/")]
        assert not (made and spot and "/stoker-r-1" not in made[0].vm), "in its own group, the role comes first"

    def test_looking_at_many_nodes_takes_as_many_requests_as_looking_at_one(self, tmp_path: Path) -> None:
        provider, counts = self.make(tmp_path), []
        for key in ("r-1", "r-2", "r-3"):
            provider.start(self.request(tmp_path, key))
            self.up(provider, key)
            before = len(self.cloud.ask("requests"))
            provider.look()
            asked = [str(one["path"]).rsplit("/", 2)[-2] for one in self.cloud.ask("requests")[before:]]
            counts.append(len([kind for kind in asked if kind != "deployments"]))  # each is read once
        assert counts[0] == counts[2] <= 4

    def test_nodes_at_work_are_listed_again_after_five_seconds_or_when_one_is_started_stopped_or_renewed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(CloseWatch, "looks_kept_s", KEPT_S)
        provider = self.make(tmp_path)
        changes: tuple[Callable[[], None], ...] = (
            lambda: provider.start(self.request(tmp_path, "r-1")),
            lambda: provider.renew("r-1", 600.0),
            lambda: provider.start(self.request(tmp_path, "r-2")),
            lambda: provider.stop("r-2"),
        )
        for change in changes:
            change()
            assert self._lists(provider) > 0
            self.cloud.wait(lambda _: {one.state for one in provider.look()} == {NodeState.UP})
            assert self._lists(provider) == 0

    @pytest.mark.parametrize("path", ["/virtualMachines", "/resourceGroups", "/resources"])
    def test_a_list_that_omits_a_node_at_work_makes_it_neither_gone_nor_restarting(
        self, tmp_path: Path, path: str
    ) -> None:
        provider = self.make(tmp_path)
        provider.start(self.request(tmp_path, "r-1"))
        self.up(provider, "r-1")
        self.cloud.order("fault", kind="omit", method="GET", path=path, times=6)
        for _ in range(3):
            assert [(one.key, one.state) for one in provider.look()] == [("r-1", NodeState.UP)]
        self.cloud.order("calm")
        self.take_away(provider, "r-1")
        self.cloud.wait(lambda _: self._seen(provider, "r-1").taken)

    def _lists(self, provider: Provider) -> int:
        """Requests that one look sends."""
        before = len(self.cloud.ask("requests"))
        provider.look()
        return len(self.cloud.ask("requests")) - before

    def test_whatever_removes_a_node_does_it_by_force(self, tmp_path: Path) -> None:
        """A clean shutdown of an unneeded VM is billed."""
        provider = self.make(tmp_path)
        provider.start(self.request(tmp_path, "r-1"))
        self.up(provider, "r-1")
        provider.stop("r-1")
        asked = [one for one in self.cloud.ask("requests") if one["method"] == "DELETE" and "r-1" in one["path"]]
        asked = [one for one in asked if "/virtualMachine" in one["path"] or "/providers/" not in one["path"]]
        assert {"forceDeletionTypes", "forceDeletion"} & set(asked[-1]["query"])

    def test_a_machine_that_was_switched_off_is_had_again_under_the_next_key(self, tmp_path: Path) -> None:
        provider = self.make(tmp_path, eviction="Deallocate")
        provider.start(self.request(tmp_path, "r-1"))
        self.up(provider, "r-1")
        self.take_away(provider, "r-1")
        self.cloud.wait(lambda _: self._seen(provider, "r-1").still)
        assert self._seen(provider, "r-1").resumable
        request = self.request(tmp_path, "r-2")
        assert request.offer
        provider.start(replace(request, offer=replace(request.offer, again="r-1")))
        self.up(provider, "r-2")
        (sight,) = provider.look()
        assert (sight.key, sight.machine) == ("r-2", "r-1")
        (machine,) = self.cloud.cloud.instances.values()
        assert machine.boots == 2
        provider.stop("r-1")
        assert self._seen(provider, "r-2").state is NodeState.UP, "the machine belongs to the later node"
        provider.stop("r-2")
        assert self._gone(provider, "r-2")

    def test_a_restart_whose_answer_is_lost_is_asked_for_again_and_looks_like_no_eviction(self, tmp_path: Path) -> None:
        provider = self.make(tmp_path, eviction="Deallocate")
        provider.start(self.request(tmp_path, "r-1"))
        self.up(provider, "r-1")
        self.take_away(provider, "r-1")
        self.cloud.wait(lambda _: self._seen(provider, "r-1").still)
        self.cloud.order("fault", kind="lose", method="POST", path="/start")
        request = self.request(tmp_path, "r-2")
        assert request.offer
        provider.start(replace(request, offer=replace(request.offer, again="r-1")))
        assert not self._seen(provider, "r-2").taken
        self.up(provider, "r-2")

    def test_a_machine_that_is_unavailable_again_says_why(self, tmp_path: Path) -> None:
        provider = self.make(tmp_path, eviction="Deallocate")
        provider.start(self.request(tmp_path, "r-1"))
        self.up(provider, "r-1")
        self.take_away(provider, "r-1")
        self.cloud.wait(lambda _: self._seen(provider, "r-1").still)
        assert self._seen(provider, "r-1").resumable
        self.cloud.order("fault", kind="allocation")
        request = self.request(tmp_path, "r-2")
        assert request.offer
        provider.start(replace(request, offer=replace(request.offer, again="r-1")))
        self.cloud.wait(lambda _: self._seen(provider, "r-2").trouble == "no-capacity")
        assert self._seen(provider, "r-2").still

    def test_a_restart_that_is_asked_for_twice_is_made_once(self, tmp_path: Path) -> None:
        """As servers do until they have seen the node: a second operation would not know why the first one failed."""
        provider = self.make(tmp_path, eviction="Deallocate")
        provider.start(self.request(tmp_path, "r-1"))
        self.up(provider, "r-1")
        self.take_away(provider, "r-1")
        self.cloud.wait(lambda _: self._seen(provider, "r-1").still)
        self.cloud.order("fault", kind="allocation")
        request = self.request(tmp_path, "r-2")
        assert request.offer
        for _ in range(2):
            provider.start(replace(request, offer=replace(request.offer, again="r-1")))
        self.cloud.wait(lambda _: self._seen(provider, "r-2").trouble == "no-capacity")

    def test_a_machine_that_was_had_again_and_taken_at_once_is_seen_as_gone(self, tmp_path: Path) -> None:
        """Nobody looked in between."""
        provider = self.make(tmp_path, eviction="Deallocate")
        provider.start(self.request(tmp_path, "r-1"))
        self.up(provider, "r-1")
        self.take_away(provider, "r-1")
        self.cloud.wait(lambda _: self._seen(provider, "r-1").still)
        request = self.request(tmp_path, "r-2")
        assert request.offer
        provider.start(replace(request, offer=replace(request.offer, again="r-1")))
        self.take_away(provider, "r-1")
        self.cloud.wait(lambda _: self._seen(provider, "r-2").taken)

    def test_a_node_of_a_gang_may_remove_itself_and_neither_its_peers_nor_their_group(self, tmp_path: Path) -> None:
        provider = self.make(tmp_path)
        for key in ("g-1", "g-1-1"):
            provider.start(replace(self.request(tmp_path, key), gang="g"))
            self.up(provider, key)
        mine, theirs = (self.vm(key) for key in ("g-1", "g-1-1"))
        group = mine.split("/providers/")[0]
        assert theirs.startswith(group), "they are in one group"
        assert [self.as_machine("g-1", "DELETE", one) for one in (theirs, group)] == [403, 403]
        assert self.as_machine("g-1", "POST", f"{theirs}/deallocate") == 403
        assert self.as_machine("g-1", "DELETE", mine) == 202
        self.cloud.wait(lambda now: now.find(mine) is None)
        assert self._seen(provider, "g-1-1").state is NodeState.UP

    def test_a_gang_is_in_one_placement_group_until_that_has_no_room_left(self, tmp_path: Path) -> None:
        provider = self.make(tmp_path)

        def near(key: str) -> bool:
            vm = self.cloud.cloud.find(self.vm(key))
            assert vm
            return bool(vm.properties.get("proximityPlacementGroup"))

        provider.start(replace(self.request(tmp_path, "g-1"), gang="g"))
        self.up(provider, "g-1")
        assert near("g-1")
        self.cloud.order("fault", kind="allocation")
        provider.start(replace(self.request(tmp_path, "g-1-1"), gang="g"))
        self.cloud.wait(lambda _: self._seen(provider, "g-1-1").trouble == "no-capacity")
        assert "placement group" in self._seen(provider, "g-1-1").reason
        provider.start(replace(self.request(tmp_path, "g-2-1"), gang="g"))
        self.up(provider, "g-2-1")
        assert not near("g-2-1"), "in the same network, but not in the placement group"
        assert self.vm("g-2-1").split("/")[4] == self.vm("g-1").split("/")[4]
        provider.start(replace(self.request(tmp_path, "h-1"), gang="h"))
        self.up(provider, "h-1")
        assert near("h-1"), "the refusal was of the other gang"

    def test_what_was_only_begun_is_finished_when_it_is_asked_for_again(self, tmp_path: Path) -> None:
        """A server that died between the group and its machine."""
        provider = self.make(tmp_path)
        self.cloud.order("fault", kind="error", method="PUT", path="/deployments/", status=400, code="Broken")
        request = self.request(tmp_path, "r-1")
        with pytest.raises(Exception, match="Broken"):
            provider.start(request)
        assert self._seen(provider, "r-1").unfinished
        provider.start(request)
        self.up(provider, "r-1")

    def test_an_answer_that_was_lost_makes_no_second_node_and_no_failure(self, tmp_path: Path) -> None:
        provider = self.make(tmp_path)
        for path in ("/deployments/", "/resourcegroups/"):
            self.cloud.order("fault", kind="lose", method="PUT", path=path)
        provider.start(self.request(tmp_path, "r-1"))
        self.up(provider, "r-1")
        assert len(self.cloud.cloud.instances) == 1

    def test_a_login_that_may_not_define_roles_makes_nodes_that_switch_themselves_off_and_no_more(
        self, tmp_path: Path
    ) -> None:
        """With a role of Azure's own, at the machine itself."""
        person = self.cloud.order("principal", name="delegate", secret="hush-hush")
        delegate, contributor = "f58310d9-a9f6-439a-9e8d-f62e7b41a168", "b24988ac-6180-42a0-ab88-20f7382dd24c"
        owner, given = open_cloud(GivenOptions({}, {}, asdict(self.cloud.address))), []
        for role in (delegate, contributor):
            scope = f"/subscriptions/{self.cloud.address.subscription}/providers/Microsoft.Authorization"
            properties = {"principalId": person["object_id"], "roleDefinitionId": f"{scope}/roleDefinitions/{role}"}
            given.append(f"{scope}/roleAssignments/{role}")
            owner.put_by_id(given[-1], "2022-04-01", {"properties": properties})
        provider = self.make(tmp_path, client=person["client_id"], secret_file=str(tmp_path / "theirs"))
        (tmp_path / "theirs").write_text("hush-hush")
        provider.start(self.request(tmp_path, "r-1"))
        self.up(provider, "r-1")
        assert not provider.features.restores, "a restored VM would be another one, which the role is not for"
        vm = self.vm("r-1")
        assert [self.as_machine("r-1", "DELETE", one) for one in (vm, vm.split("/providers/")[0])] == [403, 403]
        assert self.as_machine("r-1", "POST", f"{vm}/runCommand") == 403
        assert self.as_machine("r-1", "POST", f"{vm}/deallocate") == 202
        provider.stop("r-1")
        for one in given:
            owner.delete_by_id(one, "2022-04-01")
