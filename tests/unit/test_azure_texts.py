"""What the Azure provider sends and how it reads what comes back, without an Azure."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.errors import NoCapacity, NotAllowed, NotSetUp, ProviderFailed, ProviderUnavailable, QuotaReached
from stoker.model.node import Need
from stoker.providers.azure import naming
from stoker.providers.azure.account import Account, read_account
from stoker.providers.azure.booting import signed_url
from stoker.providers.azure.cloudinit import BOOT, CONFIG, Boot, custom_data
from stoker.providers.azure.refusals import translated
from stoker.providers.azure.sizes import Size, fits, gpu_of, read_sizes
from stoker.providers.azure.template import Machine, deployment, image_reference
from stoker.stores.access import Access, Route

GROUP = naming.group_id("s", "g")


def resources(account: Account, machine: Machine) -> dict[str, dict[str, Any]]:
    made = deployment(account, GROUP, machine, {"a": "b"}, "ssh-ed25519 AAAA")["template"]["resources"]
    return {one["type"].rsplit("/", 1)[1]: one for one in made}


def test_a_node_is_one_deployment_of_everything_it_needs_and_nothing_open() -> None:
    made = resources(Account("s"), Machine("Standard_D2s_v5", "eastus"))
    network = {"networkInterfaces", "virtualNetworks", "networkSecurityGroups"}
    assert set(made) == {"virtualMachines", "userAssignedIdentities", "roleAssignments", *network}
    assert made["networkSecurityGroups"]["properties"]["securityRules"] == []
    own = [one for name, one in made.items() if name != "roleAssignments"]  # a role has neither
    assert all(one["tags"] == {"a": "b"} and one["location"] == "eastus" for one in own)
    assert "priority" not in made["virtualMachines"]["properties"]


def test_ssh_is_open_only_where_somebody_asked_for_it() -> None:
    made = resources(Account("s", open_ssh=True), Machine("Standard_D2s_v5", "eastus"))
    assert "publicIPAddresses" in made
    assert made["networkSecurityGroups"]["properties"]["securityRules"][0]["properties"]["destinationPortRange"] == "22"


def test_a_network_of_ones_own_is_used_and_none_is_made() -> None:
    made = resources(Account("s", subnet="/subscriptions/s/x"), Machine("Standard_D2s_v5", "eastus"))
    assert set(made) == {"virtualMachines", "networkInterfaces", "userAssignedIdentities", "roleAssignments"}
    assert made["networkInterfaces"]["dependsOn"] == []


def test_a_machine_may_remove_its_own_group_and_touch_nothing_else() -> None:
    made = resources(Account("s", role="r0le"), Machine("Standard_D2s_v5", "eastus"))
    identity = f"{GROUP}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/node"
    assert made["virtualMachines"]["identity"]["userAssignedIdentities"] == {identity: {}}
    assert identity in made["virtualMachines"]["dependsOn"]
    role = made["roleAssignments"]
    assert "scope" not in role, "a deployment into a group assigns roles in that group"
    assert role["properties"]["principalId"] == f"[reference('{identity}', '2023-01-31').principalId]"
    assert "'r0le'" in role["properties"]["roleDefinitionId"]


def test_an_identity_that_an_administrator_made_is_used_and_none_is_made() -> None:
    made = resources(Account("s", identity="/subscriptions/s/i"), Machine("Standard_D2s_v5", "eastus"))
    assert not {"userAssignedIdentities", "roleAssignments"} & set(made)
    assert made["virtualMachines"]["identity"]["userAssignedIdentities"] == {"/subscriptions/s/i": {}}


def test_drivers_come_with_the_image_or_as_an_extension_where_there_are_gpus() -> None:
    def made(image: str, gpus: int) -> tuple[str, bool]:
        found = resources(Account("s", image=image), Machine("x", "eastus", gpus=gpus))
        offer = found["virtualMachines"]["properties"]["storageProfile"]["imageReference"]["offer"]
        return offer, "extensions" in found

    assert made("", 0) == ("0001-com-ubuntu-server-jammy", False)
    assert made("", 1) == ("ubuntu-hpc", False)
    assert made("Canonical:ubuntu-24_04-lts:server:latest", 1) == ("ubuntu-24_04-lts", True)
    assert made("Canonical:ubuntu-24_04-lts:server:latest", 0) == ("ubuntu-24_04-lts", False)


@pytest.mark.parametrize(("most", "sent"), [(None, -1.0), (Decimal("0.5"), 0.5)])
def test_a_spot_machine_says_what_it_may_cost_and_what_happens_at_an_eviction(
    most: Decimal | None, sent: float
) -> None:
    machine = Machine("Standard_D2s_v5", "eastus", spot=True, max_price=most)
    properties = resources(Account("s", eviction="Deallocate"), machine)["virtualMachines"]["properties"]
    assert properties["priority"] == "Spot"
    assert properties["evictionPolicy"] == "Deallocate"
    assert properties["billingProfile"] == {"maxPrice": sent}


def test_what_goes_with_the_machine_is_deleted_with_it() -> None:
    properties = resources(Account("s"), Machine("x", "eastus"))["virtualMachines"]["properties"]
    assert properties["storageProfile"]["osDisk"]["deleteOption"] == "Delete"
    assert properties["networkProfile"]["networkInterfaces"][0]["properties"]["deleteOption"] == "Delete"


def test_what_a_machine_is_told_is_a_secure_parameter_and_not_in_the_template() -> None:
    made = deployment(Account("s"), GROUP, Machine("x", "eastus"), {}, "key")["template"]
    assert made["parameters"] == {"customData": {"type": "securestring"}}
    assert "[parameters('customData')]" in json.dumps(made)


def test_an_image_is_named_by_its_four_words_or_its_id() -> None:
    assert image_reference("a:b:c:latest") == {"publisher": "a", "offer": "b", "sku": "c", "version": "latest"}
    assert image_reference("/subscriptions/s/images/i") == {"id": "/subscriptions/s/images/i"}


def boot(**changed: Any) -> Boot:
    given = {"agent_url": "http://h/a?sig=x", "agent_sha256": "f" * 64, "store": "http://h", "orders": "o"}
    more = {"lease_s": 600.0, "release": {}, "arguments": {}, "variables": {"HF_TOKEN": "s3cret"}}
    return Boot(**{**given, **more, **changed})


def test_only_root_reads_the_secrets_of_a_machine() -> None:
    text = custom_data(boot())
    assert text.startswith("#cloud-config\n")
    files = {one["path"]: one for one in json.loads(text.split("\n", 1)[1])["write_files"]}
    assert files[CONFIG]["permissions"] == "0600"
    assert json.loads(files[CONFIG]["content"])["variables"] == {"HF_TOKEN": "s3cret"}
    assert not any("s3cret" in one["content"] for path, one in files.items() if path != CONFIG)
    compile(files[BOOT]["content"], BOOT, "exec")


def test_more_than_a_machine_can_be_told_is_refused() -> None:
    with pytest.raises(ValueError, match="bytes are more than"):
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


def test_a_quota_is_told_with_its_family_its_limit_and_what_was_asked() -> None:
    said = (
        "Operation could not be completed as it results in exceeding approved standardNCADSA100v4Family Cores quota. "
        "Additional details - Deployment Model: Resource Manager, Location: eastus, Current Limit: 24, "
        "Current Usage: 0, Additional Required: 48, (Minimum) New Limit Required: 48."
    )
    inner = SimpleNamespace(code="QuotaExceeded", message=said, details=None)
    found = translated(refused("DeploymentFailed", "see details", [inner]), "starting x")
    assert isinstance(found, QuotaReached)
    assert "standardNCADSA100v4Family allows 24 vCPUs; 0 are in use and 48 more were asked for" in found.message


def test_no_capacity_is_told_from_other_failures() -> None:
    assert isinstance(translated(refused("AllocationFailed", "no room"), "starting x"), NoCapacity)
    assert isinstance(translated(refused("SkuNotAvailable", "not there"), "starting x"), NoCapacity)
    other = translated(refused("OperationNotAllowed", "the VM is being deleted"), "starting x")
    assert type(other) is ProviderFailed


@pytest.mark.parametrize(("status", "later"), [(429, True), (503, True), (500, True), (409, False), (400, False)])
def test_an_azure_that_is_busy_is_asked_again_and_costs_no_attempt(status: int, later: bool) -> None:
    error = refused("TooManyRequests", "slow down")
    error.status_code = status  # type: ignore[attr-defined]
    assert isinstance(translated(error, "starting x"), ProviderUnavailable) is later


def test_a_missing_right_names_the_command_an_administrator_runs() -> None:
    action = "Microsoft.Compute/virtualMachines/write"
    said = f"The client 'c' does not have authorization to perform action '{action}' over scope '/subscriptions/s'."
    found = translated(refused("AuthorizationFailed", said), "starting x")
    assert isinstance(found, NotAllowed)
    assert action in found.message
    assert found.hint.endswith("--scope /subscriptions/s")


def test_a_deployment_that_lacks_the_right_to_a_part_names_that_right() -> None:
    said = (
        "The template deployment failed with error: 'Authorization failed for template resource 'x' of type "
        "'Microsoft.Authorization/roleAssignments'. The client 'c' with object id 'o' does not have permission to "
        "perform action 'Microsoft.Authorization/roleAssignments/write' at scope '/subscriptions/s/resourceGroups/g'.'."
    )
    found = translated(refused("InvalidTemplateDeployment", said), "starting x")
    assert isinstance(found, NotAllowed)
    assert "may not do Microsoft.Authorization/roleAssignments/write" in found.message
    assert isinstance(translated(refused("InvalidTemplateDeployment", "no such size"), "x"), ProviderFailed)


def sku(name: str, **has: str) -> dict[str, Any]:
    capabilities = [{"name": key, "value": value} for key, value in has.items()]
    place = {"location": "eastus", "zones": ["2", "1"]}
    return {"name": name, "resourceType": "virtualMachines", "family": "f", "capabilities": capabilities} | {
        "locationInfo": [place]
    }


def test_sizes_are_read_from_what_azure_says_of_them() -> None:
    listed = [
        sku("Standard_NC24ads_A100_v4", vCPUs="24", MemoryGB="220", GPUs="1", LowPriorityCapable="True"),
        sku("Standard_D2s_v5", vCPUs="2", MemoryGB="8") | {"restrictions": [{"type": "Location"}]},
        {"name": "disk", "resourceType": "disks"},
    ]
    assert read_sizes(listed, "eastus") == [
        Size("Standard_NC24ads_A100_v4", "f", 24, 220.0, 1, "A100", "eastus", True, ("1", "2"))
    ]


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("Standard_NC6s_v3", "V100"),
        ("Standard_NC4as_T4_v3", "T4"),
        ("Standard_ND96asr_v4", "A100"),
        ("Standard_D2", ""),
    ],
)
def test_a_gpu_is_known_by_the_name_of_its_size(name: str, gpu: str) -> None:
    assert gpu_of(name) == gpu


def test_a_need_is_met_by_enough_of_everything_and_no_gpu_that_nobody_asked_for() -> None:
    plain = Size("Standard_D8s_v5", "f", 8, 32, 0, "", "eastus", True)
    graphics = Size("Standard_NC24ads_A100_v4", "f", 24, 220, 1, "A100", "eastus", False)
    assert fits(plain, Need(cpus=8, memory_gb=32, spot=True))
    assert not fits(plain, Need(cpus=9))
    assert not fits(graphics, Need(cpus=8))
    assert fits(graphics, Need(gpus=1, gpu="a100"))
    assert not fits(graphics, Need(gpus=1, spot=True))
    assert fits(graphics, Need(size="standard_nc24ads_a100_v4", spot=True)), "a size by name is taken as it is"


def test_an_account_that_is_not_there_says_how_to_have_one(tmp_path: Any) -> None:
    with pytest.raises(NotSetUp, match="not set up"):
        read_account(tmp_path / "azure.json")
    (tmp_path / "azure.json").write_text('{"subscription": "s", "regions": ["a", "b"], "typo": 1}')
    with pytest.raises(NotSetUp, match="does not describe"):
        read_account(tmp_path / "azure.json")
    (tmp_path / "azure.json").write_text('{"subscription": "s", "regions": ["a", "b"]}')
    assert read_account(tmp_path / "azure.json").regions == ("a", "b")


def test_the_agent_is_fetched_with_the_nodes_own_token() -> None:
    access = Access((Route("runs/r/", "https://a.blob/c-r", "sig=1"), Route("", "https://a.blob/c", "sig=2")))
    assert signed_url(access, "runs/r/agent.pyz") == "https://a.blob/c-r/agent.pyz?sig=1"
    with pytest.raises(ProviderFailed, match="cannot reach the store"):
        signed_url(Access((Route("", "file:///x"),)), "runs/r/agent.pyz")
