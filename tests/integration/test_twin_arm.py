"""The official Azure SDKs, unmodified, against the twin over TLS; and a twin that is killed."""

from __future__ import annotations

import base64
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ResourceNotFoundError
from azure.identity import ClientSecretCredential
from azure.mgmt.authorization import AuthorizationManagementClient
from azure.mgmt.compute import ComputeManagementClient
from azure.mgmt.msi import ManagedServiceIdentityClient
from azure.mgmt.network import NetworkManagementClient
from azure.mgmt.resource.resources import ResourceManagementClient

from stoker.testing.twin import FakeMachines, TwinHandle, real_machines, twin
from stoker.twin.machines import MachineSpec
from stoker.twin.twin import Twin
from stoker.twin.world import machine_token

REGION = "westeurope"
PRIMARY = "isPrimaryMeterRegion"
IMAGE = {"publisher": "Debian", "offer": "debian-12", "sku": "12-gen2", "version": "latest"}
VM_CONTRIBUTOR = "9980e02c-c2be-4d73-94e8-173b1dc7cf3c"
READER = "acdd72a7-3385-48ef-bd42-f606fba81ae7"


@dataclass(frozen=True)
class Azure:
    """The SDKs' clients, each as its documentation makes it, with the twin's addresses."""

    address: Any
    client_id: str = ""
    client_secret: str = ""

    def client(self, kind: Any, *extra: Any) -> Any:
        address = self.address
        credential = ClientSecretCredential(
            address.tenant,
            self.client_id or address.client_id,
            self.client_secret or address.client_secret,
            authority=address.url,
            disable_instance_discovery=True,
            connection_verify=address.authority,
        )
        scope = {"credential_scopes": [f"{address.url}/.default"]}
        return kind(
            credential, address.subscription, *extra, base_url=address.url, connection_verify=address.authority, **scope
        )

    @property
    def groups(self) -> Any:
        return self.client(ResourceManagementClient).resource_groups

    @property
    def compute(self) -> Any:
        return self.client(ComputeManagementClient)

    @property
    def vms(self) -> Any:
        return self.compute.virtual_machines

    @property
    def network(self) -> Any:
        return self.client(NetworkManagementClient)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwinHandle]:
    with twin(tmp_path_factory.mktemp("twin")) as handle:
        yield handle


@pytest.fixture
def cloud(shared: TwinHandle) -> TwinHandle:
    """A twin of fair weather and of speed 1, whatever the test before has left."""
    shared.order("calm")
    shared.order("speed", speed=1)
    return shared


@pytest.fixture
def azure(cloud: TwinHandle) -> Azure:
    return Azure(cloud.address)


@pytest.fixture
def group(azure: Azure, request: pytest.FixtureRequest) -> str:
    name = request.node.name[:60]
    make_group(azure, name)
    return str(name)


def make_group(azure: Azure, name: str) -> None:
    """A group with a network in it."""
    azure.groups.create_or_update(name, {"location": REGION, "tags": {"owner": "test"}})
    prefix = {"addressSpace": {"addressPrefixes": ["10.0.0.0/16"]}}
    subnets = {"subnets": [{"name": "nodes", "properties": {"addressPrefix": "10.0.0.0/24"}}]}
    network = {"location": REGION, "properties": {**prefix, **subnets}}
    azure.network.virtual_networks.begin_create_or_update(name, "net", network).result()


def vm_body(azure: Azure, group: str, **properties: Any) -> dict[str, Any]:
    subnet = f"/subscriptions/{azure.address.subscription}/resourceGroups/{group}/providers/Microsoft.Network"
    subnet += "/virtualNetworks/net/subnets/nodes"
    configuration = {"name": "ip", "properties": {"subnet": {"id": subnet}, "primary": True}}
    nic = {
        "name": "nic",
        "properties": {"primary": True, "deleteOption": "Delete", "ipConfigurations": [configuration]},
    }
    return {
        "location": REGION,
        "properties": {
            "hardwareProfile": {"vmSize": "Standard_D4s_v5"},
            "storageProfile": {
                "imageReference": IMAGE,
                "osDisk": {"createOption": "FromImage", "deleteOption": "Delete"},
            },
            "osProfile": {
                "computerName": "vm",
                "adminUsername": "me",
                "adminPassword": "A secret of 2026",
                "customData": base64.b64encode(b"#cloud-config\n").decode(),
            },
            "networkProfile": {"networkApiVersion": "2022-07-01", "networkInterfaceConfigurations": [nic]},
            **properties,
        },
    }


def create(azure: Azure, group: str, **properties: Any) -> Any:
    return azure.vms.begin_create_or_update(group, "vm", vm_body(azure, group, **properties)).result()


def power(azure: Azure, group: str) -> str:
    return str(azure.vms.instance_view(group, "vm").statuses[-1].code)


def test_a_vm_is_made_commanded_stopped_started_and_deleted_with_its_group(
    cloud: TwinHandle, azure: Azure, group: str
) -> None:
    vm = create(azure, group)
    assert vm.properties.provisioning_state == "Succeeded"
    assert power(azure, group) == "PowerState/running"
    (machine,) = [one for one in machines(cloud) if one.spec.facts["resourceGroupName"] == group]
    assert (machine.spec.custom_data, machine.spec.address) == (b"#cloud-config\n", "10.0.0.4")
    order = {"commandId": "RunShellScript", "script": ["echo hello"]}
    (status,) = azure.vms.begin_run_command(group, "vm", order).result().value
    assert f"[stdout]\n{machine.spec.name}: echo hello" in status.message
    azure.vms.begin_deallocate(group, "vm").result()
    assert (power(azure, group), machine.on) == ("PowerState/deallocated", False)
    azure.vms.begin_start(group, "vm").result()
    assert (power(azure, group), machine.on, machine.boots) == ("PowerState/running", True, 2)
    azure.vms.begin_restart(group, "vm").result()
    assert machine.boots == 3
    azure.groups.begin_delete(group).result()
    assert not azure.groups.check_existence(group)
    assert not [one for one in machines(cloud) if one.spec.facts["resourceGroupName"] == group]


def machines(cloud: TwinHandle) -> list[Any]:
    assert isinstance(cloud.machines, FakeMachines)
    return list(cloud.machines.machines.values())


def test_a_simulated_eviction_gives_thirty_seconds_of_notice_and_then_the_machine_is_off(
    cloud: TwinHandle, azure: Azure, group: str
) -> None:
    create(azure, group, priority="Spot", evictionPolicy="Deallocate", billingProfile={"maxPrice": -1})
    (machine,) = [one for one in machines(cloud) if one.spec.facts["resourceGroupName"] == group]
    azure.vms.simulate_eviction(group, "vm")
    cloud.wait(lambda _: machine.events.get("Events"))
    (event,) = machine.events["Events"]
    assert (event["EventType"], event["EventStatus"], event["Resources"]) == ("Preempt", "Scheduled", ["vm"])
    assert machine.on
    cloud.order("speed", speed=100)
    cloud.wait(lambda _: not machine.on)
    cloud.wait(lambda _: power(azure, group) == "PowerState/deallocated")


def test_an_eviction_on_order_can_be_without_notice_or_be_withdrawn(
    cloud: TwinHandle, azure: Azure, group: str
) -> None:
    vm = create(azure, group, priority="Spot", evictionPolicy="Delete")
    (machine,) = [one for one in machines(cloud) if one.spec.facts["resourceGroupName"] == group]
    cloud.order("evict", vm=vm.id, notice_s=1, withdrawn=True)
    cloud.wait(lambda _: machine.events.get("Events"))
    cloud.wait(lambda _: machine.events.get("Events") == [])
    assert machine.on
    cloud.order("evict", vm=vm.id, notice_s=0)
    cloud.wait(lambda state: state.find(vm.id) is None)
    with pytest.raises(ResourceNotFoundError):
        azure.vms.get(group, "vm")


def test_quota_capacity_and_price_are_refused_in_azures_words(cloud: TwinHandle, azure: Azure, group: str) -> None:
    cloud.order("quota", region=REGION, family="lowPriorityCores", limit=2)
    with pytest.raises(HttpResponseError) as refused:
        create(azure, group, priority="Spot")
    assert refused.value.error and refused.value.error.code == "OperationNotAllowed"
    assert "LowPriorityCores" in refused.value.message
    cloud.order("quota", region=REGION, family="lowPriorityCores", limit=100)
    cloud.order("restrict", region=REGION, size="Standard_D4s_v5")
    with pytest.raises(HttpResponseError, match="SkuNotAvailable"):
        create(azure, group)
    cloud.order("restrict", region=REGION, size="Standard_D4s_v5", on=False)
    with pytest.raises(HttpResponseError, match="SpotPriceGreaterThanProvidedMaxPrice"):
        create(azure, group, priority="Spot", billingProfile={"maxPrice": 0.0001})
    cloud.order("fault", kind="allocation")
    with pytest.raises(HttpResponseError, match="AllocationFailed"):
        create(azure, group)
    assert create(azure, group).properties.provisioning_state == "Succeeded"


def test_a_throttled_request_is_repeated_by_the_sdk_and_an_answer_that_was_lost_has_been_done_once(
    cloud: TwinHandle, azure: Azure, group: str
) -> None:
    cloud.order("fault", kind="throttle", seconds=1)
    assert azure.groups.get(group).name == group
    cloud.order("fault", kind="lose", method="PUT", path="virtualMachines/vm")
    create(azure, group)  # the SDK retries with the same PUT
    made = [one for one in machines(cloud) if one.spec.facts["resourceGroupName"] == group]
    assert len(made) == 1
    seen = [(one["method"], one["status"]) for one in cloud.ask("requests")]
    assert ("GET", 429) in seen
    assert seen.count(("PUT", 201)) >= 2


def test_slow_and_broken_answers_can_be_ordered(cloud: TwinHandle, azure: Azure, group: str) -> None:
    cloud.order("fault", kind="error", status=409, code="Conflict", message="Another operation is in progress.")
    with pytest.raises(HttpResponseError, match="Another operation is in progress"):
        azure.groups.get(group)
    cloud.order("fault", kind="slow", seconds=60)
    cloud.order("speed", speed=100)
    assert azure.groups.get(group).name == group
    with pytest.raises(ValueError, match="`flood`"):
        cloud.order("fault", kind="flood")


def test_a_botched_request_was_executed_a_stalled_one_takes_longer_and_a_list_may_omit_what_exists(
    cloud: TwinHandle, azure: Azure, group: str
) -> None:
    cloud.order("fault", kind="botch", method="DELETE", status=418, code="Unforeseen")
    cloud.order("fault", kind="stall", method="DELETE", seconds=10_000)
    with pytest.raises(HttpResponseError) as refused:
        azure.groups.begin_delete(group, polling=False)
    assert (refused.value.status_code, getattr(refused.value.error, "code", "")) == (418, "Unforeseen")
    cloud.wait(lambda now: now.find(f"/subscriptions/{now.subscription}/resourceGroups/{group}") is None)
    azure.groups.create_or_update(group, {"location": "eastus"})
    azure.groups.begin_delete(group, polling=False)
    cloud.order("fault", kind="omit", method="GET", path="resourceGroups")
    assert list(azure.groups.list()) == []
    assert [one.properties.provisioning_state for one in azure.groups.list() if one.name == group] == ["Deleting"]
    cloud.order("speed", speed=100_000)
    cloud.wait(lambda now: now.find(f"/subscriptions/{now.subscription}/resourceGroups/{group}") is None)


def test_logins_that_are_wrong_expired_or_without_rights_are_distinguished(
    cloud: TwinHandle, azure: Azure, group: str
) -> None:
    with pytest.raises(ClientAuthenticationError, match="AADSTS7000215"):
        Azure(cloud.address, client_secret="wrong").groups.get(group)
    known = cloud.order("principal", name="reader", secret="pass")
    other = Azure(cloud.address, known["client_id"], "pass")
    with pytest.raises(HttpResponseError, match="AuthorizationFailed"):
        other.groups.get(group)
    scope = f"/subscriptions/{cloud.address.subscription}/resourceGroups/{group}"
    roles = azure.client(AuthorizationManagementClient).role_assignments
    definition = f"{scope}/providers/Microsoft.Authorization/roleDefinitions/{READER}"
    body = {"properties": {"roleDefinitionId": definition, "principalId": known["object_id"]}}
    roles.create(scope, "11111111-1111-1111-1111-111111111111", body)
    groups = other.groups
    assert groups.get(group).name == group
    cloud.order("logout")
    with pytest.raises(ClientAuthenticationError, match="ExpiredAuthenticationToken"):
        groups.get(group)


def test_identities_usages_sizes_and_pictures_of_the_whole_are_there(azure: Azure, group: str) -> None:
    identities = azure.client(ManagedServiceIdentityClient).user_assigned_identities
    identity = identities.create_or_update(group, "myself", {"location": REGION})
    assert identity.principal_id and identity.client_id != identity.principal_id
    usages = {one.name.value: one.limit for one in azure.compute.usage.list(REGION)}
    assert usages["standardDSv5Family"] == 100
    sizes = {one.name for one in azure.compute.resource_skus.list(filter=f"location eq '{REGION}'")}
    assert "Standard_NC24ads_A100_v4" in sizes and "Standard_ND96isr_H100_v5" not in sizes
    everything = azure.client(ResourceManagementClient).resources.list_by_resource_group(group)
    assert sorted(one.name for one in everything) == ["myself", "net"]


def test_a_machine_gets_a_token_of_its_identity_and_nobody_elses_rights(
    cloud: TwinHandle, azure: Azure, group: str
) -> None:
    body = {**vm_body(azure, group), "identity": {"type": "SystemAssigned"}}
    vm = azure.vms.begin_create_or_update(group, "vm", body).result()
    instance = cloud.cloud.instance(vm.id)
    assert instance
    token = machine_token(cloud.cloud, instance.name, "https://management.azure.com/", time.time())
    assert set(token) >= {"access_token", "expires_in", "expires_on", "resource", "token_type", "client_id"}
    answer = get(cloud.address, f"{vm.id}?api-version=2024-07-01", token["access_token"])
    assert answer["error"]["code"] == "AuthorizationFailed"
    assert vm.identity.principal_id in answer["error"]["message"]


def get(address: Any, path: str, token: str = "") -> Any:
    request = Request(f"{address.url}{path}", headers={"Authorization": f"Bearer {token}"} if token else {})
    context = ssl.create_default_context(cafile=address.authority)
    try:
        with urlopen(request, context=context, timeout=10) as answer:
            return json.load(answer)
    except OSError as error:
        return json.load(error)  # type: ignore[arg-type]  # an HTTPError can be read like an answer


def test_the_price_list_is_filtered_paged_and_moves_with_spot_prices(cloud: TwinHandle) -> None:
    wanted = quote("serviceName eq 'Virtual Machines' and armRegionName eq 'eastus'")
    path, items, pages = f"/api/retail/prices?$filter={wanted}", [], 0
    while path:
        page = get(cloud.address, path)
        items += page["Items"]
        pages += 1
        path = (page["NextPageLink"] or "").removeprefix(cloud.address.url)
    sizes = {one["armSkuName"] for one in items}
    assert pages == -(-len(items) // 100)
    assert len(items) > 8 * len(sizes), "of each size the list has rows of Windows, reservations and more"
    cloud.order("price", size="Standard_D4s_v5", region="eastus", usd_per_hour=0.123)
    one = quote("armSkuName eq 'Standard_D4s_v5' and armRegionName eq 'eastus' and contains(skuName, 'Spot')")
    found = get(cloud.address, f"/api/retail/prices?$filter={one}")["Items"]
    linux = [item["retailPrice"] for item in found if "Windows" not in item["productName"] and item[PRIMARY]]
    assert linux == [0.123]
    cloud.order("price", size="Standard_D4s_v5", region="eastus", usd_per_hour=None)


def test_the_bill_follows_what_runs(cloud: TwinHandle, azure: Azure, group: str) -> None:
    vm = create(azure, group)
    cloud.order("speed", speed=3600)
    cloud.wait(lambda _: usd(cloud, vm.id) > 0.3)
    cloud.order("speed", speed=1)
    azure.vms.begin_delete(group, "vm").result()
    after = usd(cloud, vm.id)
    time.sleep(0.1)
    assert usd(cloud, vm.id) == after


def usd(cloud: TwinHandle, resource: str) -> float:
    return float(sum(one["usd"] for one in cloud.ask("bill")["charges"] if one["resource"] == resource))


def test_machines_that_ran_when_the_twin_went_down_run_again_when_it_comes_back(tmp_path: Path) -> None:
    machines = FakeMachines()
    first = Twin(tmp_path, lambda _: machines)
    first.start()
    azure = Azure(first.address)
    make_group(azure, "group")
    create(azure, "group")
    (machine,) = machines.machines.values()
    first.power_down()
    first.close()
    assert not machine.on
    with twin(tmp_path, machines) as again:
        again.wait(lambda _: machine.on)
        assert (power(azure, "group"), machine.boots) == ("PowerState/running", 2)


class Stuck(FakeMachines):
    """Machines that are never created."""

    def create(self, spec: MachineSpec) -> None:
        threading.Event().wait()


def test_what_a_killed_twin_had_begun_is_finished_by_the_next(tmp_path: Path) -> None:
    with twin(tmp_path, Stuck()) as first:
        azure = Azure(first.address)
        make_group(azure, "group")
        azure.vms.begin_create_or_update("group", "vm", vm_body(azure, "group"), polling=False)
        assert len(first.cloud.chores) == 1
    machines = FakeMachines()
    with twin(tmp_path, machines) as again:
        again.wait(lambda _: power(azure, "group") == "PowerState/running")
        assert [machine.spec.address for machine in machines.machines.values()] == ["10.0.0.4"]
        assert not again.cloud.chores


LEAVE = """
import json, urllib.request
def ask(url, method="GET", **headers):
    request = urllib.request.Request(url, b"" if method == "POST" else None, headers, method=method)
    return urllib.request.urlopen(request, timeout=10).read()
place = "http://169.254.169.254/metadata/identity/oauth2/token?api-version=2018-02-01&resource=x"
token = json.loads(ask(place, Metadata="true"))["access_token"]
ask("{url}{vm}/deallocate?api-version=2024-07-01", "POST", Authorization=f"Bearer {{token}}")
"""


def test_a_real_machine_boots_from_its_custom_data_and_deallocates_itself_through_its_identity(tmp_path: Path) -> None:
    """Processes, metadata service, token, rights, ARM and power, end to end."""
    whole = Twin(tmp_path / "twin", real_machines(tmp_path / "twin"))
    whole.start()
    try:
        azure, group = Azure(whole.address), "real"
        make_group(azure, group)
        body = {**vm_body(azure, group), "identity": {"type": "SystemAssigned"}}
        script = base64.b64encode(b"#!/bin/sh\necho booted as $(id -u) > /var/lib/said\n").decode()
        body["properties"]["osProfile"]["customData"] = script
        vm = azure.vms.begin_create_or_update(group, "vm", body).result()
        order = {"commandId": "RunShellScript", "script": ["cat /var/lib/said"]}
        told = azure.vms.begin_run_command(group, "vm", order).result().value[0].message
        assert f"[stdout]\nbooted as {os.getuid()}" in told
        scope = f"/subscriptions/{whole.address.subscription}/resourceGroups/{group}"
        role = {"roleDefinitionId": f"{scope}/providers/x/{VM_CONTRIBUTOR}", "principalId": vm.identity.principal_id}
        roles = azure.client(AuthorizationManagementClient).role_assignments
        roles.create(scope, "11111111-1111-1111-1111-111111111111", {"properties": role})
        leave = f"python3 - <<'END'\n{LEAVE.format(url=whole.address.url, vm=vm.id)}\nEND"
        azure.vms.begin_run_command(group, "vm", {**order, "script": [leave]}, polling=False)
        TwinHandle(whole).wait(lambda _: power(azure, group) == "PowerState/deallocated")
        azure.groups.begin_delete(group).result()
        assert whole.machines.names() == []
    finally:
        whole.power_down()
        whole.close()


def stoker(home: Path, *words: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "stoker.cli", *words, "--json"],
        env={**os.environ, "STOKER_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return json.loads(done.stdout)


def test_a_twin_that_is_killed_comes_back_at_the_same_address_with_all_it_knew(tmp_path: Path) -> None:
    told = stoker(tmp_path, "twin", "up", "--plain", "--seed", "5")["twin"]
    try:
        azure = Azure(_Told(**{name: told[name] for name in _Told.__annotations__}))
        azure.groups.create_or_update("kept", {"location": REGION, "tags": {"a": "b"}})
        os.kill(told["pid"], signal.SIGKILL)
        again = stoker(tmp_path, "twin", "up", "--plain")
        assert again["started"]
        assert again["twin"]["url"] == told["url"]
        assert azure.groups.get("kept").tags == {"a": "b"}
        status = stoker(tmp_path, "twin", "status")["twin"]
        assert (status["seed"], status["resources"]) == (5, 1)
    finally:
        assert stoker(tmp_path, "twin", "down", "--forget")["stopped"]
    assert not (tmp_path / "twin").exists()
    assert stoker(tmp_path, "twin", "status") == {"up": False, "twin": None}


@pytest.mark.parametrize("kind", [["--plain"], []], ids=["plain", "as allowed here"])
def test_down_switches_off_what_a_killed_twin_has_left_running(kind: list[str], tmp_path: Path) -> None:
    told = stoker(tmp_path, "twin", "up", *kind)["twin"]
    azure = Azure(_Told(**{name: told[name] for name in _Told.__annotations__}))
    make_group(azure, "group")
    create(azure, "group")
    order = {"commandId": "RunShellScript", "script": ["nohup sleep 600 >/dev/null 2>&1 & echo $!"]}
    azure.vms.begin_run_command("group", "vm", order).result()
    os.kill(told["pid"], signal.SIGKILL)
    assert processes(tmp_path)
    assert stoker(tmp_path, "twin", "down", "--forget")["stopped"]
    assert not processes(tmp_path)
    assert not (tmp_path / "twin").exists()


def processes(home: Path) -> list[str]:
    """Those that have something below this folder on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            found.append(path.read_bytes().decode(errors="replace"))
    return [line for line in found if str(home / "twin") in line]


@dataclass(frozen=True)
class _Told:
    url: str
    authority: str
    tenant: str
    subscription: str
    client_id: str
    client_secret: str
