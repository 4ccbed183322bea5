"""What an administrator may say of a workspace in Azure; and what comes of it, as data."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import date
from decimal import Decimal
from typing import Any, cast

import pytest

from stoker.errors import BadInput
from stoker.model.workspace.groundwork import GivenOptions
from stoker.model.workspace.handover import TeamStore
from stoker.providers.azure import template
from stoker.providers.azure.account.account import Account
from stoker.providers.azure.setup import options as setupasked
from stoker.providers.azure.setup import resources
from stoker.providers.azure.setup import site as setupsite
from stoker.providers.azure.setup.cloud import SetupCloud
from stoker.providers.azure.setup.resources import WantedResource, agrees, merged
from stoker.providers.azure.setup.site import (
    ACCESS_ADMINISTRATOR,
    BLOB_CONTRIBUTOR,
    MEMBER_ACTIONS,
    NODE_ACTIONS,
    PRACTITIONER_ACTIONS,
    WorkspaceSite,
    only_for_nodes,
    own_role,
)
from stoker.providers.azure.setup.workspace import Workspace

SUBSCRIPTION = "ae13b4a7-54c4-47f6-9977-3b2fb95ebcf6"
SITE = WorkspaceSite(
    SUBSCRIPTION, "vision-team", ("westeurope",), "stoker_vision-team", "stokervision1", practitioners=("p",)
)


def asked(**options: Any) -> GivenOptions:
    return GivenOptions(options)


def role_of(assignment: WantedResource) -> str:
    return str(assignment.body["properties"]["roleDefinitionId"]).rsplit("/", 1)[-1]


@pytest.mark.parametrize(
    ("read", "options", "says"),
    [
        (setupasked.workspace, {}, "--workspace is required"),
        (setupasked.workspace, {"workspace": "Vision Team"}, "`Vision Team` cannot name a workspace"),
        (setupasked.workspace, {"workspace": "a" * 31}, "cannot name a workspace"),
        (setupasked.subscription, {}, "--subscription is required"),
        (setupasked.subscription, {"subscription": "mine"}, "--subscription is `mine`, expected an id"),
        (setupasked.regions, {"region": ("west/europe",)}, "unknown Azure region `west/europe`"),
        (setupasked.budget, {"budget": "much", "mail": ("a@b.org",)}, "the budget is `much`, expected a number"),
        (setupasked.budget, {"budget": "nan", "mail": ("a@b.org",)}, "expected more than 0 dollars"),
        (setupasked.budget, {"budget": "-1", "mail": ("a@b.org",)}, "the budget is -1, expected more than 0"),
        (setupasked.budget, {"budget": "200"}, "requires a mail address"),
        (setupasked.budget, {"mail": ("a@b.org",)}, "requires a budget"),
        (setupasked.budget, {"budget": "200", "mail": ("anna",)}, "`anna` is not a mail address"),
        (setupasked.budget, {"budget": "200", "mail": ("a@b.org, c@d.org",)}, "is not a mail address"),
        (setupasked.practitioners, {"practitioner": ("anna@b.org",)}, "--practitioner is `anna@b.org`"),
        (setupasked.group, {"group": "a/b"}, "`a/b` is not a valid name of a resource group"),
        (setupasked.account, {"account": "My-Account"}, "`My-Account` is not a valid storage account name"),
    ],
)
def test_what_cannot_be_is_refused_with_what_was_expected(read: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(asked(**options))
    assert says in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("range", "regions", "says"),
    [
        ("ten", ("westeurope",), "the network is `ten`"),
        ("10.20.0.1/16", ("westeurope",), "has host bits set"),
        ("8.8.8.0/24", ("westeurope",), "8.8.8.0/24 is not a private network"),
        ("10.0.0.0/30", ("westeurope",), "of at least 16 addresses"),
        ("10.20.0.0/16", ("westeurope", "eastus"), "VMs may be in 2: westeurope, eastus"),
    ],
)
def test_a_network_that_nodes_could_not_use_is_refused(range: str, regions: tuple[str, ...], says: str) -> None:
    with pytest.raises(BadInput) as caught:
        setupasked.network(asked(network=range), regions)
    assert says in caught.value.message


def test_what_people_write_is_read_as_azure_spells_it() -> None:
    assert setupasked.regions(asked(region=("West Europe", "eastus", "westeurope"))) == ("westeurope", "eastus")
    assert setupasked.budget(asked(budget="$1200.50", mail=("a@b.org",))) == (Decimal("1200.50"), ("a@b.org",))
    assert setupasked.subscription(asked(subscription=SUBSCRIPTION.upper())) == SUBSCRIPTION
    found = GivenOptions({}, {"AZURE_SUBSCRIPTION_ID": SUBSCRIPTION})
    assert setupasked.subscription(found) == SUBSCRIPTION


def test_names_are_the_same_each_time_and_fit_azures_rules() -> None:
    account = setupsite.default_account(SUBSCRIPTION, "a-very-long-name-of-a-workspace")
    assert account == setupsite.default_account(SUBSCRIPTION.upper(), "a-very-long-name-of-a-workspace")
    assert setupasked.account(asked(account=account)) == account
    assert setupsite.default_account(SUBSCRIPTION, "other") != account
    assert own_role(SUBSCRIPTION, "a", "node") != own_role(SUBSCRIPTION, "b", "node")


def test_a_node_may_remove_its_group_and_nothing_else_may_be_given_away() -> None:
    """No role of a node writes anything, and what practitioners may assign is that role alone, to machines alone, in
    their own group alone."""
    assert all(action.endswith(("/read", "/delete", "/deallocate/action")) for action in NODE_ACTIONS)
    condition = only_for_nodes("role-id")
    assert condition.count("GuidEquals {role-id}") == condition.count("{'ServicePrincipal'}") == 2
    given_away = [one for one in PRACTITIONER_ACTIONS if one.startswith("Microsoft.Authorization/")]
    assert given_away == ["Microsoft.Authorization/*/read"]
    rights = [one for one in resources.admission(SITE, "p") if one.kind == "role assignment"]
    scopes = {role_of(one): one.id.partition("/providers/Microsoft.Authorization/")[0] for one in rights}
    assert scopes == {
        BLOB_CONTRIBUTOR: SITE.account_id,
        ACCESS_ADMINISTRATOR: SITE.group_of("p"),
        SITE.practitioner_role: SITE.group_of("p"),
        SITE.member_role: SITE.scope,
    }
    assert SITE.group_of("p") != SITE.group_of("q")
    assert all(one.endswith("/read") for one in MEMBER_ACTIONS), "in the subscription people only read"


def test_no_key_opens_the_storage_account_and_nothing_in_it_is_public() -> None:
    account = next(one for one in resources.wanted(SITE, date(2026, 11, 16)) if one.kind == "storage account")
    assert account.body["properties"]["allowSharedKeyAccess"] is False
    assert account.body["properties"]["allowBlobPublicAccess"] is False


def test_what_azure_adds_to_an_answer_makes_no_difference_and_what_it_changed_does() -> None:
    assert agrees({"a": 200, "b": ["X", "y"]}, {"a": 200.0, "b": ["Y", "x"], "c": 1})
    assert not agrees({"a": 200}, {"a": 300})
    assert not agrees({"a": ["x"]}, {"a": ["x", "y"]})
    assert not agrees({"a": {"b": True}}, {"a": None})


def test_a_budget_keeps_the_month_it_began_in_and_a_group_the_tags_of_others() -> None:
    site = WorkspaceSite(SUBSCRIPTION, "w", ("westeurope",), "g", "a", budget=Decimal(5), mails=("a@b.org",))
    kinds = {one.kind: one for one in resources.wanted(site, date(2026, 11, 16))}
    group, budget = kinds["resource group"], kinds["budget"]
    found = {"properties": {"timePeriod": {"startDate": "2025-01-01T00:00:00Z"}, "amount": 5}}
    assert merged(budget, found).body["properties"]["timePeriod"] == {"startDate": "2025-01-01T00:00:00Z"}
    assert budget.body["properties"]["timePeriod"]["startDate"] == "2026-11-01T00:00:00Z"
    kept = merged(group, {"location": "northeurope", "tags": {"cost-centre": "7"}}).body
    assert (kept["location"], kept["tags"]["cost-centre"]) == ("northeurope", "7")


class PublicAzure:
    """An Azure in which everything that a hand-over needs exists already."""

    account = Account(SUBSCRIPTION)

    def subscription(self) -> dict[str, Any]:
        return {"tenantId": "the-tenant"}

    def set_up_groups(self, tag: str, workspace: str) -> list[tuple[str, dict[str, str], str]]:
        return [("team-group", {tag: workspace, setupsite.REGIONS: "westeurope,eastus"}, "westeurope")]

    def inside(self, group: str) -> list[tuple[str, str, dict[str, str]]]:
        return [("Microsoft.Storage/storageAccounts", "teamaccount", {setupsite.SETUP: "vision-team"})]

    def get(self, id: str, api: str) -> dict[str, Any] | None:
        answers = {
            "teamaccount": {"properties": {"primaryEndpoints": {"blob": "https://teamaccount.blob.core.windows.net/"}}},
        }
        return answers.get(id.rsplit("/", 1)[-1])


def test_a_hand_over_of_the_public_azure_needs_nothing_but_a_login() -> None:
    told = GivenOptions({"workspace": "vision-team", "subscription": SUBSCRIPTION})
    found = Workspace(told, cast(SetupCloud, PublicAzure())).handover()
    assert found.login == ("az login --tenant the-tenant",)
    assert found.store == TeamStore("vision-team", "https://teamaccount.blob.core.windows.net/stoker")
    assert dict(found.accounts["azure"]) == {
        "subscription": SUBSCRIPTION,
        "tenant": "the-tenant",
        "workspace": "vision-team",
        "regions": ["westeurope", "eastus"],
        "role": own_role(SUBSCRIPTION, "vision-team", "node"),
        "practitioner": own_role(SUBSCRIPTION, "vision-team", "practitioner"),
    }
    assert {one.name for one in fields(Account)} >= found.accounts["azure"].keys(), "the provider reads all of it"


def test_every_subnet_of_a_team_and_of_a_gang_has_a_way_out_whatever_azures_default_is() -> None:
    with_network = resources.wanted(replace(SITE, network="10.9.0.0/24"), date(2026, 11, 1))
    made = [one.body for one in (*with_network, *resources.admission(SITE, "p"))]
    made += template.gang_network(Account("s"), "westeurope", {})["template"]["resources"]
    networks = [one["properties"]["subnets"] for one in made if "subnets" in one.get("properties", {})]
    assert len(networks) == 3, "of the workspace, of a practitioner, of a gang"
    assert all(subnet["properties"]["defaultOutboundAccess"] is True for found in networks for subnet in found)
