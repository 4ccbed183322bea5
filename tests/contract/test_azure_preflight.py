"""The preflight of an Azure account: each thing that keeps a run from starting is found before anything costs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.model.node import Need
from stoker.model.workspace.groundwork import GivenOptions
from stoker.model.workspace.store import CheckResult, Finding
from stoker.providers.azure.account.recording import IDS
from stoker.providers.azure.setup.cloud import open_cloud
from stoker.providers.azure.setup.setup import AzureSetup
from stoker.testing.twin import TwinHandle, twin
from stoker.twin import rights

SPOT, EITHER = (Need(spot=True),), (Need(spot=True), Need())
SIZE, CONTRIBUTOR, READER = (
    "Standard_D2as_v5",
    "b24988ac-6180-42a0-ab88-20f7382dd24c",
    "acdd72a7-3385-48ef-bd42-f606fba81ae7",
)


@pytest.fixture(scope="module")
def one_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwinHandle]:
    with twin(tmp_path_factory.mktemp("twin"), speed=10) as handle:
        yield handle


@pytest.fixture
def cloud(one_cloud: TwinHandle) -> Iterator[TwinHandle]:
    """As it was at its start."""
    yield one_cloud
    one_cloud.forget()
    one_cloud.order("calm")
    one_cloud.order("subscription", state="Enabled")
    one_cloud.order("registration", namespace="Microsoft.Network", on=True)
    for family in ("lowPriorityCores", "standardDASv5Family", "PublicIPAddresses"):
        one_cloud.order("quota", region="eastus", family=family, limit=100)


class Account:
    """An `azure.json` of the twin, and what a preflight finds with it."""

    def __init__(self, cloud: TwinHandle, folder: Path) -> None:
        self.cloud, self.folder = cloud, folder
        self.write()

    def write(self, *, secret: str = "", **more: Any) -> None:
        address = self.cloud.address
        (self.folder / "secret").write_text(secret or address.client_secret)
        account = {
            "subscription": address.subscription,
            "tenant": address.tenant,
            "client": address.client_id,
            "secret_file": str(self.folder / "secret"),
            "arm": address.url,
            "login": address.url,
            "prices": f"{address.url}/api/retail/prices",
            "ca_file": address.authority,
            "regions": ["eastus"],
            **more,
        }
        (self.folder / "azure.json").write_text(json.dumps(account))

    def findings(self, needs: tuple[Need, ...] = SPOT) -> list[Finding]:
        return list(AzureSetup().preflight(GivenOptions({}, folder=self.folder), needs))

    def bad(self, needs: tuple[Need, ...] = SPOT) -> list[Finding]:
        return [one for one in self.findings(needs) if one.verdict in (CheckResult.FAIL, CheckResult.WARN)]

    def put(self, id: str, api: str, body: dict[str, Any]) -> None:
        """As the owner of the subscription."""
        told = {name: getattr(self.cloud.address, name) for name in self.cloud.address.__dataclass_fields__}
        owner = open_cloud(GivenOptions({}, twin=told))
        owner.put_by_id(f"/subscriptions/{self.cloud.address.subscription}{id}", api, body)

    def policy(self, definition: str, parameter: str, value: list[str], title: str) -> None:
        properties = {
            "displayName": title,
            "policyDefinitionId": f"/providers/Microsoft.Authorization/policyDefinitions/{definition}",
            "parameters": {parameter: {"value": value}},
        }
        self.put("/providers/Microsoft.Authorization/policyAssignments/rule", "2022-06-01", {"properties": properties})

    def person(self, role: str) -> str:
        """Somebody with one role in the subscription; their object id."""
        made = self.cloud.order("principal", name="anna", secret="pass")
        self.write(client=made["client_id"], secret="pass")
        root = f"/subscriptions/{self.cloud.address.subscription}"
        properties = {
            "principalId": made["object_id"],
            "principalType": "ServicePrincipal",
            "roleDefinitionId": f"{root}/providers/Microsoft.Authorization/roleDefinitions/{role}",
        }
        name = "00000000-0000-0000-0000-000000000001"
        id = f"/providers/Microsoft.Authorization/roleAssignments/{name}"
        self.put(id, "2022-04-01", {"properties": properties})
        return str(made["object_id"])


@pytest.fixture
def account(cloud: TwinHandle, tmp_path: Path) -> Account:
    return Account(cloud, tmp_path)


def left(cloud: TwinHandle) -> list[str]:
    kinds = (rights.DEFINITIONS, rights.ASSIGNMENTS, "Microsoft.Authorization/policyAssignments")
    return [one.id for one in cloud.cloud.resources.values() if one.kind not in kinds]


def test_an_account_in_order_has_nothing_but_good_news_and_nothing_is_left(cloud: TwinHandle, account: Account) -> None:
    found = account.findings(EITHER)
    assert {one.verdict for one in found} == {CheckResult.OK}
    names = [one.name for one in found]
    assert names[:5] == ["login", "clock", "subscription", "services", "limits"]
    places = {"size eastus", "image eastus", "quota eastus", "addresses eastus", "deployment eastus"}
    assert places | {"rights"} == set(names[5:])
    cloud.wait(lambda _: not left(cloud))
    assert not cloud.cloud.instances
    assert not cloud.cloud.charges
    assert not cloud.cloud.all(rights.DEFINITIONS)  # not even the role of nodes was created


def test_a_wrong_secret_is_a_failed_login_and_nothing_else_is_tried(account: Account) -> None:
    account.write(secret="wrong")
    login, rest = account.findings()
    assert (login.name, login.verdict, rest.verdict) == ("login", CheckResult.FAIL, CheckResult.SKIP)
    assert "AADSTS7000215" in login.found
    assert "secret_file" in login.advice


@pytest.mark.parametrize(
    ("state", "verdict", "words"),
    [("Warned", CheckResult.WARN, "unpaid"), ("Disabled", CheckResult.FAIL, "nothing can be created")],
)
def test_the_state_of_the_subscription_is_reported(
    cloud: TwinHandle, account: Account, state: str, verdict: CheckResult, words: str
) -> None:
    cloud.order("subscription", state=state)
    (found,) = account.bad()
    assert (found.name, found.verdict) == ("subscription", verdict)
    assert state in found.found
    assert words in found.found


def test_a_service_that_is_not_registered_is_named_with_its_command(cloud: TwinHandle, account: Account) -> None:
    cloud.order("registration", namespace="Microsoft.Network", on=False)
    (found,) = account.bad()
    assert (found.verdict, found.found) == (CheckResult.FAIL, "not registered: Microsoft.Network")
    assert found.advice == "az provider register --namespace Microsoft.Network --wait"


def test_a_spot_quota_that_is_too_small_is_reported_with_its_figures(cloud: TwinHandle, account: Account) -> None:
    cloud.order("quota", region="eastus", family="lowPriorityCores", limit=1)
    quota = next(one for one in account.bad() if one.name == "quota eastus")
    assert (quota.verdict, quota.found) == (
        CheckResult.FAIL,
        f"lowPriorityCores: 0 of 1 vCPUs are in use, and {SIZE} needs 2",
    )
    assert "az quota update --resource-name lowPriorityCores" in quota.advice
    assert all(one.verdict is CheckResult.WARN for one in account.bad(EITHER))  # on demand there is room


def test_a_limit_of_public_addresses_is_reported_where_the_machine_needs_one(
    cloud: TwinHandle, account: Account
) -> None:
    """A student's subscription has three, and every spot machine that Azure restores has one."""
    cloud.order("quota", region="eastus", family="PublicIPAddresses", limit=0)
    (found,) = [one for one in account.bad() if one.name == "addresses eastus"]
    assert (found.verdict, found.found) == (
        CheckResult.FAIL,
        "PublicIPAddresses: 0 of 0 public addresses are in use, and the machine needs 1",
    )
    assert "az quota update --resource-name PublicIPAddresses" in found.advice
    assert "public_address" in found.advice
    on_demand = account.findings((Need(),))  # such a machine has none
    assert not [one for one in on_demand if one.name.startswith("addresses") or one.verdict is CheckResult.FAIL]


@pytest.mark.heavy
def test_a_quota_of_a_family_counts_for_machines_on_demand(cloud: TwinHandle, account: Account) -> None:
    cloud.order("quota", region="eastus", family="standardDASv5Family", limit=0)
    quota = next(one for one in account.bad((Need(),)) if one.name == "quota eastus")
    assert quota.verdict is CheckResult.FAIL
    assert quota.found.startswith("standardDASv5Family: 0 of 0")


@pytest.mark.heavy
def test_an_image_that_is_not_there_is_reported_before_a_deployment_fails(account: Account) -> None:
    account.write(image="Canonical:no-such:sku:latest")
    image = next(one for one in account.bad() if one.name == "image eastus")
    assert image.found == "Canonical:no-such:sku:latest is not available"
    assert "az vm image list --location eastus --publisher Canonical" in image.advice


@pytest.mark.heavy
def test_a_size_that_the_subscription_cannot_have_leaves_nothing_to_run_on(cloud: TwinHandle, account: Account) -> None:
    account.write(sizes=[SIZE])
    cloud.order("restrict", region="eastus", size=SIZE)
    (found,) = account.bad()
    assert (found.name, found.verdict) == ("size eastus", CheckResult.FAIL)


def test_a_policy_that_denies_the_size_is_named_with_its_assignment(account: Account) -> None:
    account.policy("cccc23c7-8427-4f53-ad12-b6a63eb452b3", "listOfAllowedSKUs", ["Standard_E2s_v5"], "Approved sizes")
    (found,) = account.bad()
    assert (found.name, found.verdict) == ("deployment eastus", CheckResult.FAIL)
    assert "the policy `Approved sizes` refuses it" in found.found
    assert "az policy assignment show --name rule --scope /subscriptions/" in found.advice


def test_where_azure_makes_no_scale_set_a_plain_machine_is_tried_and_the_loss_told(account: Account) -> None:
    sets = "Microsoft.Compute/virtualMachineScaleSets"
    account.policy("6c112d4e-5bc7-47ae-a041-ea2d9dccd749", "listOfResourceTypesNotAllowed", [sets], "No sets")
    (found,) = account.bad()
    assert (found.name, found.verdict) == ("restore policy eastus", CheckResult.WARN)
    assert "an evicted VM is not restored while no server is running" in found.found


@pytest.mark.heavy
def test_a_region_that_a_policy_denies_is_a_warning_where_another_works(account: Account) -> None:
    account.policy("e56962a6-4747-49cd-b67b-bf8b01975c4c", "listOfAllowedLocations", ["westeurope"], "EU only")
    assert [one.verdict for one in account.bad()] == [CheckResult.FAIL]
    account.write(regions=["eastus", "westeurope"])
    (found,) = account.bad()
    assert (found.name, found.verdict) == ("deployment eastus", CheckResult.WARN)


def test_a_region_that_azure_closes_to_the_subscription_is_reported_with_what_to_do(
    cloud: TwinHandle, account: Account
) -> None:
    cloud.order("restrict", region="eastus")
    (found,) = account.bad()
    assert (found.name, found.verdict) == ("deployment eastus", CheckResult.FAIL)
    assert "this subscription may not use the region: Resource " in found.found
    assert "name other regions in azure.json" in found.advice


def test_a_login_that_may_only_read_is_told_which_roles_it_lacks_and_who_gives_them(account: Account) -> None:
    who = account.person(READER)
    (found,) = account.bad()
    assert (found.name, found.verdict) == ("rights", CheckResult.FAIL)
    assert f"--role Contributor --assignee {who}" in found.advice


@pytest.mark.heavy
def test_a_contributor_lacks_the_right_to_give_nodes_their_role(account: Account) -> None:
    who = account.person(CONTRIBUTOR)
    found = next(one for one in account.bad() if one.name == "rights")
    assert found.found == "this login may not Microsoft.Authorization/roleAssignments/write"
    assert f"az role assignment create --role 'User Access Administrator' --assignee {who}" in found.advice


def test_who_is_not_admitted_to_a_team_is_told_what_the_administrator_runs(account: Account) -> None:
    account.write(practitioner="11111111-1111-1111-1111-111111111111", workspace="vision")
    found = next(one for one in account.bad() if one.name == "rights")
    assert found.verdict is CheckResult.FAIL
    assert "stoker admin setup azure --workspace vision --practitioner" in found.advice


def test_no_account_is_a_finding_too(account: Account) -> None:
    (account.folder / "azure.json").unlink()
    (found,) = account.findings()
    assert (found.name, found.verdict) == ("account", CheckResult.FAIL)


def test_a_preflight_is_recorded_without_secrets_and_replayed_without_azure(
    cloud: TwinHandle, account: Account, tmp_path: Path
) -> None:
    account.policy("e56962a6-4747-49cd-b67b-bf8b01975c4c", "listOfAllowedLocations", ["westeurope"], "EU only")
    account.write(regions=["eastus", "westeurope"])
    file, address = tmp_path / "asked.jsonl", cloud.address
    with AzureSetup().recording(GivenOptions({}, folder=tmp_path), file):
        met = account.findings(EITHER)
    text = file.read_text()
    for private in (
        address.client_secret,
        address.subscription,
        address.tenant,
        address.client_id,
        "I2Nsb3VkLWNvbmZpZw",
    ):
        assert private not in text
    asked = [json.loads(line) for line in text.splitlines()]
    assert any(one["method"] == "POST" and "/validate" in one["url"] and one["status"] == 400 for one in asked)
    assert any("/api/retail/prices" in one["url"] for one in asked)

    account.write(
        **IDS,
        regions=["eastus", "westeurope"],
        replay=str(file),
        arm="https://nowhere.invalid",
        prices="https://nowhere.invalid/api/retail/prices",
    )
    before = len(cloud.ask("requests"))
    again = account.findings(EITHER)
    assert len(cloud.ask("requests")) == before
    assert [(one.name, one.verdict) for one in again] == [(one.name, one.verdict) for one in met]
    assert next(one for one in again if one.verdict is CheckResult.WARN).found.endswith("was disallowed by policy")


@pytest.mark.heavy
def test_an_azure_that_throttles_fails_and_loses_answers_is_asked_again(cloud: TwinHandle, account: Account) -> None:
    # Only what is ordered here fails: what is drawn on top may exceed the three repeats of the SDK.
    cloud.order("weather", forecast="hostile", throttled=0, lost=0, failed=0)
    for kind, path in (("throttle", "/usages"), ("error", "/validate"), ("lose", "/validate"), ("lose", "/skus")):
        cloud.order("fault", kind=kind, path=path, times=2)
    before = len(cloud.ask("requests"))
    assert [one for one in account.findings() if one.verdict is not CheckResult.OK] == []
    assert {429, 500} <= {one["status"] for one in cloud.ask("requests")[before:]}
