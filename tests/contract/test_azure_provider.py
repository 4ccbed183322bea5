"""The Azure provider keeps the provider contract, over the wire of the twin, with the official SDKs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from services import Azurite
from stoker.model import layout
from stoker.model.home import Home
from stoker.model.node import NodeRequest, NodeState, Offer
from stoker.providers import Provider, Setup
from stoker.providers.azure import AzureProvider
from stoker.stores.granting import grant
from stoker.stores.opening import open_store
from stoker.testing.providers import ProviderContract
from stoker.testing.twin import TwinHandle, twin


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwinHandle]:
    with twin(tmp_path_factory.mktemp("twin"), speed=10) as handle:
        yield handle


class TestAzureProvider(ProviderContract):
    @pytest.fixture(autouse=True)
    def _services(self, cloud: TwinHandle, azurite: Azurite, tmp_path: Path) -> Iterator[None]:
        self.cloud, self.azurite = cloud, azurite
        self.container = azurite.new_container()
        yield
        for one in self.make(tmp_path).look():
            self.make(tmp_path).stop(one.key)
        cloud.wait(lambda now: not now.resources)

    def make(self, folder: Path, server: str = "first", **more: object) -> AzureProvider:
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
        return AzureProvider(Setup(Home(folder), server=server))

    def request(self, folder: Path, key: str) -> NodeRequest:
        orders = layout.orders("r", int(key.rpartition("-")[2]))
        open_store(self.container, self.azurite.account_key).put(orders, b"{}")
        access = grant(
            self.container, self.azurite.account_key, reads=["blobs/"], writes=[layout.run("r")], for_s=3600
        ).to_text()
        offer = Offer("azure", "Standard_B1s", "eastus", Decimal("0.004"), spot=True)
        labels = {"run": "ants-1", "owner": "anna"}
        return NodeRequest(key, orders, self.container, offer=offer, access=access, seal="00", labels=labels)

    def take_away(self, provider: Provider, key: str) -> None:
        (vm,) = self.cloud.wait(lambda now: [one.vm for one in now.instances.values() if f"-{key}/" in one.vm])
        self.cloud.wait(lambda now: now.instance(vm).power == "running")
        self.cloud.order("evict", vm=vm, notice_s=0)

    def up(self, provider: Provider, key: str) -> None:
        self.cloud.wait(lambda _: self._seen(provider, key).state is NodeState.UP)

    def test_a_node_is_made_by_two_writing_requests(self, tmp_path: Path) -> None:
        provider, request = self.make(tmp_path), self.request(tmp_path, "r-1")
        before = len(self.cloud.ask("requests"))
        provider.start(request)
        asked = [f"{one['method']} {one['status']}" for one in self.cloud.ask("requests")[before:]]
        assert [one for one in asked if not one.startswith("GET")] == ["PUT 201", "PUT 201"]

    def test_everything_of_a_node_is_listed_with_its_price(self, tmp_path: Path) -> None:
        provider = self.make(tmp_path)
        provider.start(self.request(tmp_path, "r-1"))
        self.up(provider, "r-1")
        (sight,) = self.make(tmp_path).look()
        kinds = {one.split("/")[0] for one in sight.resources}
        assert kinds >= {"virtualMachines", "disks", "networkInterfaces", "userAssignedIdentities"}
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
        renewed.renew("r-1")
        (longer,) = renewed.look()
        assert short.lease_until and longer.lease_until
        assert longer.lease_until - short.lease_until > timedelta(hours=1)
        assert longer.lease_until - datetime.now(UTC) < timedelta(hours=3)

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

    def test_a_machine_that_cannot_be_had_again_says_why(self, tmp_path: Path) -> None:
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
