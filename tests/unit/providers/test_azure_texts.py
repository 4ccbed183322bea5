"""What the Azure provider sends and how it parses the responses, without an Azure."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.errors import NoCapacity, NotAllowed, NotSetUp, ProviderFailed, ProviderUnavailable, QuotaReached
from stoker.model.cause import Cause
from stoker.model.node import Need
from stoker.providers.azure import naming
from stoker.providers.azure.account.account import FORM, Account, check_ssh, read_account
from stoker.providers.azure.booting import BOOT, CONFIG, UNIT, Boot, custom_data, signed_url
from stoker.providers.azure.market import listed as snapshot
from stoker.providers.azure.market.listed import listed
from stoker.providers.azure.market.sizes import AzureSize, Gpus
from stoker.providers.azure.naming import NodePlace
from stoker.providers.azure.refusals import translated
from stoker.providers.azure.template import MachineChoice, NodeSite, deployment
from stoker.stores.access import Access, Route
from stoker.twin.machines.guest.services import unit

GROUP = naming.group_id("s", "g")
VM = f"{GROUP}/providers/Microsoft.Compute/virtualMachines/node"


def site(account: Account) -> NodeSite:
    return NodeSite(account, NodePlace("g"), account.role or "r0le", GROUP)


def resources(account: Account, machine: MachineChoice) -> dict[str, dict[str, Any]]:
    made = deployment(site(account), machine, {"a": "b"}, "ssh-ed25519 AAAA")["template"]["resources"]
    return {one["type"].rsplit("/", 1)[1]: one for one in made}


def test_a_node_is_one_deployment_of_everything_it_needs_and_nothing_open() -> None:
    made = resources(Account("s"), MachineChoice("Standard_D2s_v5", "eastus"))
    network = {"networkInterfaces", "virtualNetworks", "networkSecurityGroups"}
    assert set(made) == {"virtualMachines", "roleAssignments", *network}
    assert made["networkSecurityGroups"]["properties"]["securityRules"] == []
    own = [one for name, one in made.items() if name != "roleAssignments"]  # a role has neither
    assert all(one["tags"] == {"a": "b"} and one["location"] == "eastus" for one in own)
    assert "priority" not in made["virtualMachines"]["properties"]


def test_ssh_is_open_only_where_somebody_asked_for_it() -> None:
    made = resources(Account("s", open_ssh=True, ssh_from=("203.0.113.7",)), MachineChoice("Standard_D2s_v5", "eastus"))
    assert "publicIPAddresses" in made
    (rule,) = made["networkSecurityGroups"]["properties"]["securityRules"]
    assert rule["properties"]["destinationPortRange"] == "22"
    assert rule["properties"]["sourceAddressPrefixes"] == ["203.0.113.7"]
    assert "sourceAddressPrefix" not in rule["properties"]


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ((), "does not say to which addresses"),
        (("0.0.0.0/0",), "allows everybody"),
        (("::/0",), "allows everybody"),
        (("*",), "'\\*'"),
    ],
)
def test_ssh_is_never_open_to_everybody(sources: tuple[str, ...], said: str) -> None:
    with pytest.raises(NotSetUp, match=said) as refused:
        check_ssh(Account("s", open_ssh=True, ssh_from=sources))
    assert "ssh_from" in refused.value.hint
    check_ssh(Account("s", open_ssh=True, ssh_from=("203.0.113.7", "2001:db8::/32")))
    check_ssh(Account("s"))


def test_a_machine_without_trusted_launch_is_asked_for_in_a_version_that_can_say_so() -> None:
    """Older versions refuse `Standard` unless a feature of the subscription is registered."""
    machine = resources(Account("s"), MachineChoice("Standard_D2s_v5", "eastus"))["virtualMachines"]
    assert machine["properties"]["securityProfile"] == {"securityType": "Standard"}
    assert machine["apiVersion"] >= "2025-11-01"


@pytest.mark.parametrize("spot", [True, False])
@pytest.mark.parametrize("accelerated", [True, False])
def test_a_node_leaves_nothing_to_defaults_that_azure_changes_and_waits_for_nobody_at_its_end(
    spot: bool, accelerated: bool
) -> None:
    traits = AzureSize("Standard_D2s_v5", "f", 2, 8.0, "eastus", True, Gpus(), accelerated=accelerated)
    made = resources(Account("s"), MachineChoice("Standard_D2s_v5", "eastus", spot, traits=traits))
    (subnet,) = made["virtualNetworks"]["properties"]["subnets"]
    assert subnet["properties"]["defaultOutboundAccess"] is True
    assert made["networkInterfaces"]["properties"]["enableAcceleratedNetworking"] is accelerated
    assert "scheduledEventsProfile" not in json.dumps(made), "a notice of termination costs minutes at every delete"


def test_a_network_of_ones_own_is_used_and_none_is_made() -> None:
    made = resources(Account("s", subnet="/subscriptions/s/x"), MachineChoice("Standard_D2s_v5", "eastus"))
    assert set(made) == {"virtualMachines", "networkInterfaces", "roleAssignments"}
    assert made["networkInterfaces"]["dependsOn"] == []


def test_list_prices_of_spot_machines_hold_the_address_that_they_have() -> None:
    spot, sure = (
        min(listed(Need(size="Standard_D2s_v5", region="eastus", spot=spot), "why"), key=lambda one: one.usd_per_hour)
        for spot in (True, False)
    )
    prices = snapshot.listing("eastus")
    assert prices
    disk = prices.disk_per_hour(Account("").disk_gb)
    machine = prices.machine("Standard_D2s_v5", spot=True), prices.machine("Standard_D2s_v5", spot=False)
    assert None not in (disk, *machine)
    assert spot.usd_per_hour == machine[0] + disk + Decimal("0.005")  # type: ignore[operator]
    assert sure.usd_per_hour == machine[1] + disk  # type: ignore[operator]


def test_a_machine_may_remove_its_own_group_and_touch_nothing_else() -> None:
    made = resources(Account("s", role="r0le"), MachineChoice("Standard_D2s_v5", "eastus"))
    assert made["virtualMachines"]["identity"] == {"type": "SystemAssigned"}, "no other machine has it"
    role = made["roleAssignments"]
    assert "scope" not in role, "a deployment into a group assigns roles in that group"
    assert role["properties"]["principalId"] == f"[reference('{VM}', '2025-11-01', 'Full').identity.principalId]"
    assert role["dependsOn"] == [VM]
    assert "'r0le'" in role["properties"]["roleDefinitionId"]


def test_in_a_shared_group_a_machine_has_its_role_for_itself_alone_and_all_of_it_goes_with_it() -> None:
    place = naming.shared_place("g", "r-1")
    own = NodeSite(Account("s", practitioner="p"), place, "r0le", place.vm_id("s"))
    made = {one["type"].rsplit("/", 1)[1]: one for one in parts(own)}
    assert set(made) == {"virtualMachines", "networkInterfaces", "roleAssignments"}
    assert made["roleAssignments"]["scope"] == f"{GROUP}/providers/Microsoft.Compute/virtualMachines/stoker-r-1"
    assert place.owns(made["virtualMachines"]["properties"]["storageProfile"]["osDisk"]["name"])
    assert not place.owns("stoker-r-10") and not place.owns("stoker-r-10_disk")


def parts(own: NodeSite) -> list[dict[str, Any]]:
    made = deployment(own, MachineChoice("x", "eastus", spot=True), {}, "key")["template"]["resources"]
    assert isinstance(made, list)
    return made


@pytest.mark.parametrize(("most", "sent"), [(None, -1.0), (Decimal("0.5"), 0.5)])
def test_a_spot_machine_says_what_it_may_cost_and_what_happens_at_an_eviction(
    most: Decimal | None, sent: float
) -> None:
    machine = MachineChoice("Standard_D2s_v5", "eastus", spot=True, max_price=most)
    properties = resources(Account("s", eviction="Deallocate"), machine)["virtualMachines"]["properties"]
    assert properties["priority"] == "Spot"
    assert properties["evictionPolicy"] == "Deallocate"
    assert properties["billingProfile"] == {"maxPrice": sent}
    assert "scheduledEventsProfile" not in properties, "Azure refuses it of spot machines"


def test_what_goes_with_the_machine_is_deleted_with_it() -> None:
    properties = resources(Account("s"), MachineChoice("x", "eastus"))["virtualMachines"]["properties"]
    assert properties["storageProfile"]["osDisk"]["deleteOption"] == "Delete"
    assert properties["networkProfile"]["networkInterfaces"][0]["properties"]["deleteOption"] == "Delete"


def test_what_a_machine_is_told_is_a_secure_parameter_and_not_in_the_template() -> None:
    made = deployment(site(Account("s")), MachineChoice("x", "eastus"), {}, "key")["template"]
    assert made["parameters"] == {"customData": {"type": "securestring"}}
    assert "[parameters('customData')]" in json.dumps(made)


def boot(**changed: Any) -> Boot:
    given = {"agent_url": "http://h/a?sig=x", "agent_sha256": "f" * 64, "store": "http://h", "orders": "o"}
    more = {"lease_s": 600.0, "release": {}, "arguments": {}, "variables": {"HF_TOKEN": "s3cret"}}
    return Boot(**{**given, **more, **changed})


def test_only_root_reads_what_a_machine_opens_its_secrets_with() -> None:
    text = custom_data(boot())
    assert text.startswith("#cloud-config\n")
    files = {one["path"]: one for one in json.loads(text.split("\n", 1)[1])["write_files"]}
    assert files[CONFIG]["permissions"] == "0600"
    assert json.loads(files[CONFIG]["content"])["variables"] == {"HF_TOKEN": "s3cret"}
    assert not any("s3cret" in one["content"] for path, one in files.items() if path != CONFIG)
    compile(files[BOOT]["content"], BOOT, "exec")


def test_whatever_kills_the_tenant_it_is_started_again_however_often() -> None:
    """By default systemd gives up after five times in ten seconds, and then nobody would remove the VM."""
    files = {one["path"]: one for one in json.loads(custom_data(boot()).split("\n", 1)[1])["write_files"]}
    told = unit(UNIT, files[f"/etc/systemd/system/{UNIT}"]["content"])
    assert told.burst_s == 0 and told.restarts_after(clean=False, signalled=True)


def test_more_than_a_machine_can_be_told_is_refused() -> None:
    with pytest.raises(ValueError, match="more than a VM accepts"):
        custom_data(boot(variables={"BIG": "x" * 70_000}))


def test_groups_are_named_for_workspace_and_node_and_never_two_alike() -> None:
    assert naming.group_name("team", "01ab-1") == "stoker-team-01ab-1"
    odd = [naming.group_name("team", key) for key in ("Key", "key", "k_y", "k-y", "k" * 200, "k" * 201)]
    assert len(set(odd)) == len(odd)
    assert all(len(name) <= 90 for name in odd)


def test_a_group_is_ours_by_its_tags_alone() -> None:
    tags = naming.tags("team", "5erver", "k-1", {"run": "ants-1", "owner": ""})
    assert naming.marks(tags, "team") == naming.Marks("k-1", "k-1", "5erver")
    assert naming.marks(tags, "other") is None
    assert naming.marks(None, "team") is None
    assert tags["stoker-run"] == "ants-1"
    assert "stoker-owner" not in tags


def test_the_end_of_a_lease_is_read_as_it_was_written() -> None:
    until = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    tags = naming.tags("team", "5erver", "k-1", {}) | naming.lease_tag(until)
    assert tags["stoker-lease"] == "2026-01-02T03:04:05Z"
    found = naming.marks(tags, "team")
    assert found and found.lease_until == until
    broken = naming.marks(tags | {"stoker-lease": "soon"}, "team")
    assert broken and broken.lease_until is None


def refused(code: str, message: str = "", details: list[Any] | None = None) -> Exception:
    error = Exception(message)
    error.error = SimpleNamespace(code=code, message=message, details=details)  # type: ignore[attr-defined]
    return error


def test_a_quota_is_reported_with_its_family_its_limit_and_what_was_asked() -> None:
    said = (
        "Operation could not be completed as it results in exceeding approved standardNCADSA100v4Family Cores quota. "
        "Additional details - Deployment Model: Resource Manager, Location: eastus, Current Limit: 24, "
        "Current Usage: 0, Additional Required: 48, (Minimum) New Limit Required: 48."
    )
    inner = SimpleNamespace(code="QuotaExceeded", message=said, details=None)
    found = translated(refused("DeploymentFailed", "see details", [inner]), "starting x")
    assert isinstance(found, QuotaReached)
    assert found.message.endswith(
        "vCPU quota exceeded for standardNCADSA100v4Family in eastus: limit 24, in use 0, requested 48 more"
    )


def test_no_capacity_is_distinguished_from_other_failures() -> None:
    assert isinstance(translated(refused("AllocationFailed", "no room"), "starting x"), NoCapacity)
    assert isinstance(translated(refused("SkuNotAvailable", "not there"), "starting x"), NoCapacity)
    other = translated(refused("OperationNotAllowed", "the VM is being deleted"), "starting x")
    assert type(other) is ProviderFailed


@pytest.mark.parametrize(("status", "later"), [(429, True), (503, True), (500, True), (409, False), (400, False)])
def test_an_azure_that_is_busy_is_asked_again_and_costs_no_attempt(status: int, later: bool) -> None:
    error = refused("SomethingNew", "slow down")
    error.status_code = status  # type: ignore[attr-defined]
    assert isinstance(translated(error, "starting x"), ProviderUnavailable) is later


def test_throttling_is_known_by_what_the_compute_service_says_of_it() -> None:
    """It uses the code of a quota, for a request as for a part of a deployment, which has no status."""
    counted = '{"operationGroup":"CreateVMScaleSet3Min","allowedRequestCount":60,"measuredRequestCount":71}'
    inner = SimpleNamespace(code="TooManyRequests", message=counted, details=None)
    said = "The server rejected the request because too many requests have been received for this subscription."
    asked = refused("OperationNotAllowed", said, [inner])
    part = SimpleNamespace(code="OperationNotAllowed", message=said, details=[inner])
    for error in (asked, refused("DeploymentFailed", "see details", [part])):
        told = translated(error, "starting x")
        assert isinstance(told, ProviderUnavailable)
        assert told.message == f"starting x: Azure is throttling requests: OperationNotAllowed: {said}"


@pytest.mark.parametrize("code", ["RetryableError", "InternalServerError", "ServerTimeout", "ServiceUnavailable"])
def test_a_deployment_that_azure_asks_to_repeat_costs_no_attempt(code: str) -> None:
    part = SimpleNamespace(code=code, message="Please retry.", details=None)
    told = translated(refused("DeploymentFailed", "see details", [part]), "starting x")
    assert isinstance(told, ProviderUnavailable)
    assert told.message == f"starting x: Azure could not handle the request: {code}: Please retry."


@pytest.mark.parametrize(
    "kind",
    [
        *("ServiceRequestError", "ServiceRequestTimeoutError", "ServiceResponseError", "ServiceResponseTimeoutError"),
        *("DecodeError", "IncompleteReadError"),
    ],
)
def test_an_azure_that_does_not_answer_in_time_or_in_full_is_asked_again_and_costs_no_attempt(kind: str) -> None:
    """As in the network of a hotel: it times out, breaks off, or answers with a page of its own."""
    error = getattr(pytest.importorskip("azure.core.exceptions"), kind)("it broke off")
    told = translated(error, "starting x")
    assert isinstance(told, ProviderUnavailable) and "it broke off" in told.message


def test_a_missing_right_names_the_command_an_administrator_runs() -> None:
    action = "Microsoft.Compute/virtualMachines/write"
    said = f"The client 'c' does not have authorization to perform action '{action}' over scope '/subscriptions/s'."
    found = translated(refused("AuthorizationFailed", said), "starting x")
    assert isinstance(found, NotAllowed)
    assert action in found.message
    assert "--scope /subscriptions/s (" in found.hint


def test_a_deployment_that_lacks_the_right_to_a_part_names_that_right() -> None:
    said = (
        "The template deployment failed with error: 'Authorization failed for template resource 'x' of type "
        "'Microsoft.Authorization/roleAssignments'. The client 'c' with object id 'o' does not have permission to "
        "perform action 'Microsoft.Authorization/roleAssignments/write' at scope '/subscriptions/s/resourceGroups/g'.'."
    )
    found = translated(refused("InvalidTemplateDeployment", said), "starting x")
    assert isinstance(found, NotAllowed)
    assert "may not perform Microsoft.Authorization/roleAssignments/write" in found.message
    assert isinstance(translated(refused("InvalidTemplateDeployment", "no such size"), "x"), ProviderFailed)


def test_an_account_that_is_not_there_says_how_to_have_one(tmp_path: Any) -> None:
    with pytest.raises(NotSetUp, match="not set up"):
        read_account(tmp_path / "azure.json")
    (tmp_path / "azure.json").write_text('{"subscription": "s", "regions": ["a", "b"], "typo": 1}')
    with pytest.raises(NotSetUp, match="`typo`"):
        read_account(tmp_path / "azure.json")
    (tmp_path / "azure.json").write_text('["s"]')
    with pytest.raises(NotSetUp, match="does not describe"):
        read_account(tmp_path / "azure.json")
    (tmp_path / "azure.json").write_text('{"subscription": "s", "regions": ["a", "b"]}')
    assert read_account(tmp_path / "azure.json").regions == ("a", "b")


def test_a_hand_over_may_say_all_that_an_account_has_but_what_is_the_users_own_to_say() -> None:
    """Otherwise a set-up writes a file that nobody can join with."""
    own = {"secret_file", "ca_file", "switch", "replay", "ssh_key", "open_ssh", "ssh_from", "client"}
    assert set(FORM.fields) == {one.name for one in fields(Account)} - own


def test_the_agent_is_fetched_with_the_nodes_own_token() -> None:
    access = Access((Route("runs/r/", "https://a.blob/c-r", "sig=1"), Route("", "https://a.blob/c", "sig=2")))
    assert signed_url(access, "runs/r/agent.pyz") == "https://a.blob/c-r/agent.pyz?sig=1"
    one = Route("runs/r/agent.pyz", "https://a.blob/c-r/agent.pyz", "sig=3")
    assert signed_url(Access((*access.routes, one)), "runs/r/agent.pyz") == "https://a.blob/c-r/agent.pyz?sig=3"
    with pytest.raises(ProviderFailed) as refused:
        signed_url(Access((Route("", "file:///x"),)), "runs/r/agent.pyz")
    assert refused.value.cause == Cause.STORE_OUT_OF_REACH
