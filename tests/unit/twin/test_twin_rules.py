"""What the twin refuses, in Azure's own codes and words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from twinasks import Asker

from stoker.providers.azure.setup import site
from stoker.twin import rights
from stoker.twin.refusal import Refused
from stoker.twin.state import name_uuid

READER = "acdd72a7-3385-48ef-bd42-f606fba81ae7"
CONTRIBUTOR = "b24988ac-6180-42a0-ab88-20f7382dd24c"
SPOT = {"priority": "Spot"}


@pytest.fixture
def azure() -> Asker:
    azure = Asker()
    azure.group()
    azure.network()
    return azure


OWN_ROLE = name_uuid("own")


def assign(azure: Asker, scope: str, role: str, person: str = "me", name: str = "one") -> None:
    azure.ask(
        "PUT",
        f"{scope}/providers/Microsoft.Authorization/roleAssignments/{name_uuid(name)}",
        {"properties": {"principalId": person, "roleDefinitionId": f"/x/{role}", "principalType": "User"}},
    )


def test_quota_names_the_family_the_limit_and_what_was_asked(azure: Asker) -> None:
    azure.cloud = replace(azure.cloud, quotas={"westeurope/standarddsv5family": 6})
    azure.ready_vm("first")
    with pytest.raises(Refused) as refused:
        azure.vm("second")
    assert (refused.value.status, refused.value.code) == (409, "OperationNotAllowed")
    assert "standardDSv5Family Cores quota" in refused.value.message
    assert (
        "Current Limit: 6, Current Usage: 4, Additional Required: 4, (Minimum) New Limit Required: 8"
        in refused.value.message
    )
    azure.vm("third", **SPOT)  # spot cores have a limit of their own


def test_usages_count_what_is_there(azure: Asker) -> None:
    azure.ready_vm("first")
    azure.ready_vm("second", **SPOT)
    told = azure.ask("GET", "/providers/Microsoft.Compute/locations/westeurope/usages").body["value"]
    counts = {one["name"]["value"]: (one["currentValue"], one["limit"]) for one in told}
    assert counts["standardDSv5Family"] == (4, 100)
    assert counts["lowPriorityCores"] == (4, 100)
    assert counts["virtualMachines"][0] == 2


def test_a_size_that_a_region_lacks_is_not_available_there(azure: Asker) -> None:
    with pytest.raises(Refused, match=r"SkuNotAvailable.*Standard_ND96isr_H100_v5.*westeurope"):
        azure.vm(size="Standard_ND96isr_H100_v5")
    with pytest.raises(Refused, match=r"InvalidParameter.*Standard_Q9"):
        azure.vm(size="Standard_Q9")


def test_a_restricted_size_says_so_in_the_list_and_is_refused(azure: Asker) -> None:
    azure.cloud = replace(azure.cloud, restrictions=("westeurope/standard_d4s_v5",))
    listed = azure.ask("GET", "/providers/Microsoft.Compute/skus", _filter="location eq 'westeurope'").body["value"]
    found = {one["name"]: one["restrictions"] for one in listed}
    assert found["Standard_D4s_v5"][0]["reasonCode"] == "NotAvailableForSubscription"
    assert found["Standard_D8s_v5"] == []
    with pytest.raises(Refused, match="SkuNotAvailable"):
        azure.vm()


def test_somebody_without_a_role_is_told_the_action_and_the_scope(azure: Asker) -> None:
    azure.claims = {"appid": "app", "oid": "me"}
    with pytest.raises(Refused) as refused:
        azure.ask("GET", "/resourceGroups/g")
    assert (refused.value.status, refused.value.code) == (403, "AuthorizationFailed")
    assert "'Microsoft.Resources/subscriptions/resourceGroups/read' over scope" in refused.value.message


def test_a_role_holds_at_its_scope_and_below_and_allows_what_it_lists(azure: Asker) -> None:
    assign(azure, "/resourceGroups/g", READER)
    azure.group("other")
    azure.claims = {"appid": "app", "oid": "me"}
    assert azure.ask("GET", "/resourceGroups/g").status == 200
    with pytest.raises(Refused, match="AuthorizationFailed"):
        azure.ask("GET", "/resourceGroups/other")
    with pytest.raises(Refused, match=r"AuthorizationFailed.*virtualMachines/write"):
        azure.vm()


def test_a_contributor_can_make_things_but_give_nobody_a_role(azure: Asker) -> None:
    assign(azure, "/resourceGroups/g", CONTRIBUTOR)
    azure.claims = {"appid": "app", "oid": "me"}
    assert azure.vm().status == 201
    with pytest.raises(Refused, match=r"AuthorizationFailed.*roleAssignments/write"):
        assign(azure, "/resourceGroups/g", CONTRIBUTOR, "friend", "two")


def test_a_role_of_ones_own_allows_exactly_its_actions(azure: Asker) -> None:
    azure.ready_vm()
    actions = ["Microsoft.Compute/virtualMachines/deallocate/action"]
    body = {"properties": {"roleName": "stopper", "permissions": [{"actions": actions}]}}
    azure.ask("PUT", f"/providers/Microsoft.Authorization/roleDefinitions/{OWN_ROLE}", body)
    assign(azure, "/resourceGroups/g", OWN_ROLE)
    azure.claims = {"appid": "app", "oid": "me"}
    assert azure.ask("POST", azure.path("vm", "deallocate")).status == 202
    with pytest.raises(Refused, match="AuthorizationFailed"):
        azure.ask("DELETE", azure.path())


def test_the_same_role_twice_is_a_conflict_and_the_same_request_twice_is_not(azure: Asker) -> None:
    assign(azure, "/resourceGroups/g", READER)
    assign(azure, "/resourceGroups/g", READER)
    with pytest.raises(Refused, match="RoleAssignmentExists"):
        assign(azure, "/resourceGroups/g", READER, name="another")


def test_a_lock_keeps_what_is_above_and_below_it_from_being_deleted(azure: Asker) -> None:
    azure.ready_vm()
    lock = azure.path("vm", "providers/Microsoft.Authorization/locks/keep")
    azure.ask("PUT", lock, {"properties": {"level": "CanNotDelete"}})
    for path in (azure.path(), "/resourceGroups/g"):
        with pytest.raises(Refused, match=r"ScopeLocked.*virtualMachines/vm"):
            azure.ask("DELETE", path)
    assert azure.ask("POST", azure.path("vm", "restart")).status == 202
    azure.ask("DELETE", lock)
    assert azure.ask("DELETE", azure.path()).status == 202


def test_a_group_that_is_being_deleted_cannot_be_locked_any_more(azure: Asker) -> None:
    azure.ready_vm()
    assert azure.ask("DELETE", "/resourceGroups/g").status == 202
    with pytest.raises(Refused, match="ResourceGroupBeingDeleted"):
        lock = "/resourceGroups/g/providers/Microsoft.Authorization/locks/keep"
        azure.ask("PUT", lock, {"properties": {"level": "CanNotDelete"}})


def test_what_is_in_use_cannot_be_deleted(azure: Asker) -> None:
    azure.ready_vm()
    nic = azure.inside("Microsoft.Network/networkInterfaces/vm-nic")
    with pytest.raises(Refused, match="NicInUse"):
        azure.ask("DELETE", nic)
    with pytest.raises(Refused, match="InUseSubnetCannotBeDeleted"):
        azure.ask("DELETE", azure.inside("Microsoft.Network/virtualNetworks/net"))
    disk = azure.ask("GET", azure.path()).body["properties"]["storageProfile"]["osDisk"]["name"]
    with pytest.raises(Refused, match=r"^OperationNotAllowed"):
        azure.ask("DELETE", azure.inside(f"Microsoft.Compute/disks/{disk}"))


def test_addresses_of_a_subnet_are_given_once(azure: Asker) -> None:
    assert [azure.ready_vm(name).address for name in ("a", "b", "c")] == ["10.0.0.4", "10.0.0.5", "10.0.0.6"]
    azure.ask("DELETE", azure.path("b"))
    azure.pass_time(2)
    assert azure.ready_vm("d").address == "10.0.0.5"


def test_storage_account_names_are_taken_once_and_their_keys_are_told_to_those_who_ask(azure: Asker) -> None:
    account = azure.inside("Microsoft.Storage/storageAccounts/stokerteam")
    body = {"location": "westeurope", "kind": "StorageV2", "sku": {"name": "Standard_LRS"}}
    made = azure.ask("PUT", account, body).body
    assert made["properties"]["primaryEndpoints"]["blob"] == "http://127.0.0.1:10000/stokerteam/"
    keys = [one["value"] for one in azure.ask("POST", f"{account}/listKeys").body["keys"]]
    assert len(set(keys)) == 2
    assert keys == [one["value"] for one in azure.ask("POST", f"{account}/listKeys").body["keys"]]
    assert keys[0] not in str(azure.ask("GET", account).body)
    azure.group("other")
    with pytest.raises(Refused, match="StorageAccountAlreadyTaken"):
        azure.ask("PUT", account.replace("/g/", "/other/"), body)
    assert azure.ask("PUT", f"{account}/blobServices/default/containers/runs").status == 201
    assert azure.ask("PUT", f"{account}/blobServices/default/containers/runs").status == 200
    listed = azure.ask("GET", f"{account}/blobServices/default/containers").body["value"]
    assert [one["name"] for one in listed] == ["runs"]
    azure.ask("DELETE", account)
    assert "containers" not in azure.kinds()


def test_a_condition_says_which_role_may_be_given_to_whom(azure: Asker) -> None:
    """A user who may assign one role to one principal assigns no other, to nobody else, and revokes none."""
    root = f"/subscriptions/{azure.cloud.subscription}/providers/Microsoft.Authorization/roleDefinitions"
    delegate = "f58310d9-a9f6-439a-9e8d-f62e7b41a168"
    reader, contributor = "acdd72a7-3385-48ef-bd42-f606fba81ae7", "b24988ac-6180-42a0-ab88-20f7382dd24c"
    kind = "Microsoft.Authorization/roleAssignments"
    condition = (
        f"((!(ActionMatches{{'{kind}/write'}})) OR (@Request[{kind}:RoleDefinitionId] ForAnyOfAnyValues:GuidEquals "
        f"{{{reader}}} AND @Request[{kind}:PrincipalId] ForAnyOfAnyValues:GuidEquals {{node}})) AND "
        f"(!(ActionMatches{{'{kind}/delete'}}))"
    )
    given = {"principalId": "anna", "roleDefinitionId": f"{root}/{delegate}", "condition": condition}
    azure.ask("PUT", f"/providers/{kind}/{name_uuid('first')}", {"properties": {**given, "principalType": "User"}})
    azure.group()
    azure.claims = {"appid": "annas", "oid": "anna"}

    def give(role: str, principal: str) -> int:
        given = {"principalId": principal, "roleDefinitionId": f"{root}/{role}", "principalType": "User"}
        body = {"properties": given}
        return azure.ask("PUT", f"/resourceGroups/g/providers/{kind}/{name_uuid(role, principal)}", body).status

    assert give(reader, "node") == 201
    for role, principal in ((contributor, "node"), (reader, "anna")):
        with pytest.raises(Refused, match=r"^AuthorizationFailed"):
            give(role, principal)
    with pytest.raises(Refused, match=r"^AuthorizationFailed"):
        azure.ask("DELETE", f"/resourceGroups/g/providers/{kind}/{name_uuid(reader, 'node')}")


def test_a_condition_on_the_kind_of_principal_holds_for_giving_and_for_taking_back(azure: Asker) -> None:
    root = f"/subscriptions/{azure.cloud.subscription}/providers/Microsoft.Authorization/roleDefinitions"
    delegate, kind = "f58310d9-a9f6-439a-9e8d-f62e7b41a168", "Microsoft.Authorization/roleAssignments"
    condition = site.only_for_nodes(READER)
    given = {"principalId": "anna", "roleDefinitionId": f"{root}/{delegate}", "condition": condition}
    azure.ask("PUT", f"/providers/{kind}/{name_uuid('first')}", {"properties": {"principalType": "User", **given}})
    azure.group()
    assign(azure, "/resourceGroups/g", CONTRIBUTOR, "bob", "bobs")
    azure.claims = {"appid": "annas", "oid": "anna"}

    def give(role: str, kind_of_principal: str, name: str) -> int:
        body = {"principalId": name, "roleDefinitionId": f"{root}/{role}", "principalType": kind_of_principal}
        return azure.ask("PUT", f"/resourceGroups/g/providers/{kind}/{name_uuid(name)}", {"properties": body}).status

    assert give(READER, "ServicePrincipal", "node") == 201
    for role, principal in ((CONTRIBUTOR, "ServicePrincipal"), (READER, "User"), (READER, "Group")):
        with pytest.raises(Refused, match=r"^AuthorizationFailed"):
            give(role, principal, "other")
    with pytest.raises(Refused, match=r"^AuthorizationFailed"):
        azure.ask("DELETE", f"/resourceGroups/g/providers/{kind}/{name_uuid('bobs')}")
    assert azure.ask("DELETE", f"/resourceGroups/g/providers/{kind}/{name_uuid('node')}").status == 200


@pytest.mark.parametrize("condition", ["", "nonsense", "@Request[a:RoleDefinitionId] Like {x}", "(ActionMatches{'a'}"])
def test_a_condition_that_cannot_be_read_allows_nothing(condition: str) -> None:
    assert not rights.holds(condition, rights.ConditionFacts("a", {"RoleDefinitionId": "x"}))


def test_a_machine_in_somebody_elses_network_needs_the_right_to_join_it(azure: Asker) -> None:
    azure.group("mine")
    assign(azure, "/resourceGroups/mine", CONTRIBUTOR)
    azure.claims = {"appid": "mine", "oid": "me"}
    subnet = f"/subscriptions/{azure.cloud.subscription}/resourceGroups/g/providers/Microsoft.Network/virtualNetworks"
    part = {"name": "one", "properties": {"subnet": {"id": f"{subnet}/net/subnets/default"}}}
    body = {"location": "westeurope", "properties": {"ipConfigurations": [part]}}
    with pytest.raises(Refused, match=r"LinkedAuthorizationFailed.*virtualNetworks/subnets/join/action"):
        azure.ask("PUT", "/resourceGroups/mine/providers/Microsoft.Network/networkInterfaces/nic", body)


def test_a_role_that_somebody_has_stays_and_its_name_is_taken(azure: Asker) -> None:
    kind, root = "Microsoft.Authorization/roleDefinitions", f"/subscriptions/{azure.cloud.subscription}"
    body = {"properties": {"roleName": "mine", "permissions": [{"actions": ["*/read"]}]}}
    azure.ask("PUT", f"/providers/{kind}/{OWN_ROLE}", body)
    with pytest.raises(Refused, match="already exists"):
        azure.ask("PUT", f"/providers/{kind}/{name_uuid('two')}", body)
    given = {"principalId": "anna", "roleDefinitionId": f"{root}/providers/{kind}/{OWN_ROLE}", "principalType": "User"}
    assigned = f"/providers/Microsoft.Authorization/roleAssignments/{name_uuid('a')}"
    azure.ask("PUT", assigned, {"properties": given})
    with pytest.raises(Refused, match="RoleDefinitionHasAssignments"):
        azure.ask("DELETE", f"/providers/{kind}/{OWN_ROLE}")
    azure.ask("DELETE", assigned)
    assert azure.ask("DELETE", f"/providers/{kind}/{OWN_ROLE}").status == 200


def test_a_budget_knows_what_was_spent_at_its_scope(azure: Asker) -> None:
    azure.group("other")
    properties = {"amount": 10, "category": "Cost", "timeGrain": "Monthly", "timePeriod": {"startDate": "2026-11-01"}}
    for group in ("g", "other"):
        azure.ask(
            "PUT", f"/resourceGroups/{group}/providers/Microsoft.Consumption/budgets/b", {"properties": properties}
        )
    azure.ready_vm()
    azure.pass_time(3600)
    spent = [
        azure.ask("GET", f"/resourceGroups/{group}/providers/Microsoft.Consumption/budgets/b").body["properties"]
        for group in ("g", "other")
    ]
    assert [one["currentSpend"]["amount"] for one in spent] == [pytest.approx(0.2376, abs=0.001), 0]


def test_the_version_is_required_and_must_be_a_date(azure: Asker) -> None:
    for version, code in (("", "MissingApiVersionParameter"), ("newest", "InvalidApiVersionParameter")):
        with pytest.raises(Refused, match=code):
            azure.ask("GET", "/resourceGroups/g", version=version)


def test_another_subscription_is_not_found(azure: Asker) -> None:
    with pytest.raises(Refused, match="SubscriptionNotFound"):
        azure.ask("GET", "/resourceGroups/g", subscription="00000000-0000-0000-0000-000000000000")


def test_resources_are_listed_by_tag(azure: Asker) -> None:
    azure.ready_vm("mine", tags={"run": "a"})
    azure.ready_vm("other", tags={"run": "b"})
    found = azure.ask("GET", "/resources", _filter="tagName eq 'run' and tagValue eq 'a'").body["value"]
    assert [one["name"] for one in found] == ["mine"]
    kinds = azure.ask("GET", "/resources", _filter="resourceType eq 'Microsoft.Compute/virtualMachines'").body["value"]
    assert len(kinds) == 2


def test_long_lists_come_in_pages(azure: Asker) -> None:
    for number in range(120):
        azure.group(f"group-{number}")
    first = azure.ask("GET", "/resourcegroups").body
    assert len(first["value"]) == 100
    assert "%24skiptoken=100" in first["nextLink"]
    rest = azure.ask("GET", "/resourcegroups", _skiptoken="100").body
    assert len(rest["value"]) == 21
    assert "nextLink" not in rest
