"""An administrator's set-up of a workspace, by the official SDKs on the twin: once, twice, half, refused, and away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import pytest
from azuretwin import BOTH_WEATHERS

from stoker.errors import Conflict, NotAllowed, NotFound, ProviderFailed
from stoker.model.workspace.groundwork import GivenOptions, GroundworkPiece, PieceState
from stoker.providers.azure.setup.cloud import ASSIGNMENTS, open_cloud
from stoker.providers.azure.setup.resources import ROLES_API, WantedResource
from stoker.providers.azure.setup.setup import AzureSetup
from stoker.testing.twin import TwinHandle, twin
from stoker.twin.arm.bodies import newest
from stoker.twin.rights import DEFINITIONS
from stoker.twin.state import name_uuid

ANNA = "11111111-1111-4111-8111-111111111111"
BOB = "22222222-2222-4222-8222-222222222222"
READER = "acdd72a7-3385-48ef-bd42-f606fba81ae7"
SPEED = 10


class Admin:
    """A user of the twin, the owner of its subscription unless another login is given."""

    def __init__(self, cloud: TwinHandle, **login: str) -> None:
        self.cloud = cloud
        self.setup = AzureSetup()
        self._login = {**asdict(cloud.address), **login}

    def asked(self, workspace: str, **options: Any) -> GivenOptions:
        return GivenOptions({"workspace": workspace, **options}, {}, self._login)

    def lay(self, workspace: str, *, crash_after: int = -1, **options: Any) -> list[str]:
        """What was created or changed, by kind. A crash comes right after the work of a step was done."""
        made: list[str] = []

        def tell(piece: GroundworkPiece) -> None:
            made.append(piece.kind)
            if len(made) == crash_after:
                raise KeyboardInterrupt

        self.setup.lay(self.asked(workspace, **options), tell)
        return made

    def until_roles_count(self) -> None:
        """In hostile weather a new role takes some seconds to apply."""
        time.sleep(self.cloud.ask("weather")["roles_spread_s"] / SPEED)

    def there(self, *words: str) -> list[str]:
        """Ids of everything in the cloud that contains one of these words."""
        return sorted(one for one in self.cloud.cloud.resources if any(word in one for word in words))


@pytest.fixture(scope="module", params=BOTH_WEATHERS)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwinHandle]:
    with twin(tmp_path_factory.mktemp("twin"), speed=SPEED) as handle:
        for name, id in (("Anna", ANNA), ("Bob", BOB)):
            handle.order("principal", name=name, secret="hush", object_id=id)  # the directory knows them
        yield handle


@pytest.fixture
def admin(shared: TwinHandle, request: pytest.FixtureRequest) -> Iterator[Admin]:
    """No trouble but that of the weather, and an empty cloud afterwards."""
    shared.order("calm")
    shared.order("weather", forecast=request.node.callspec.params["shared"])
    shared.order("blob", endpoint="nowhere:")  # data is looked at elsewhere
    yield Admin(shared)
    shared.forget()


FULL: dict[str, Any] = {
    "region": ("westeurope",),
    "budget": "$200",
    "mail": ("admin@example.org",),
    "network": "10.20.0.0/16",
    "practitioner": (ANNA,),
}
MADE = [
    *(*["role"] * 4, "resource group", "storage account", "container", "firewall", "network", "lock"),
    *("budget", "role assignment", "resource group", "placement group", *["role assignment"] * 5),
]


def test_the_plan_says_what_it_makes_and_what_it_costs_and_makes_nothing(admin: Admin) -> None:
    pieces = admin.setup.plan(admin.asked("vision", **FULL))
    assert [one.kind for one in pieces if one.state is PieceState.MISSING] == MADE
    assert [one.cost for one in pieces if one.cost] == ["$0.02208 per GB"]
    assert sum(one.usd_per_month or 0 for one in pieces) == 0
    assert all(one.why for one in pieces)
    assert admin.there("") == []


def test_a_second_set_up_changes_nothing_and_gives_the_same_file(admin: Admin) -> None:
    assert admin.lay("vision", **FULL) == MADE
    before = admin.cloud.cloud.resources
    first = admin.setup.lay(admin.asked("vision", **FULL), lambda piece: pytest.fail(f"made {piece}"))
    second = admin.setup.lay(admin.asked("vision"), lambda piece: pytest.fail(f"made {piece}"))
    assert admin.cloud.cloud.resources == before
    assert first == second, "what was settled once need not be said again"
    account = first.accounts["azure"]
    assert account["regions"] == ["westeurope"]
    assert account["subnet"].endswith("/virtualNetworks/stoker-network/subnets/nodes")
    roles = {one.name: one.properties["roleName"] for one in admin.cloud.cloud.all(DEFINITIONS)}
    assert roles[account["role"]].startswith("Stoker node of vision")
    assert roles[account["practitioner"]].startswith("Stoker practitioner of vision")
    text = first.to_text()
    secrets = [admin.cloud.address.client_secret, admin.cloud.address.token]
    keys = next(one.secret["keys"] for one in admin.cloud.cloud.resources.values() if one.secret)
    assert not any(secret in text for secret in (*secrets, *keys))


@pytest.mark.parametrize("steps", range(1, len(MADE) + 1))
def test_a_crash_after_any_step_is_mended_by_running_it_again(admin: Admin, steps: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        admin.lay("vision", crash_after=steps, **FULL)
    assert admin.lay("vision", **FULL) == MADE[steps:]
    kinds = [one.kind.rsplit("/", 1)[-1] for one in admin.cloud.cloud.resources.values()]
    once = ["storageAccounts", "containers", "budgets", "virtualNetworks", "proximityPlacementGroups"]
    assert {kind: kinds.count(kind) for kind in once} == dict.fromkeys(once, 1)
    assert [kinds.count(kind) for kind in ("resourceGroups", "roleDefinitions", "roleAssignments")] == [2, 4, 6]


@pytest.mark.parametrize("word", ["roleDefinitions", "storageAccounts", "budgets", "roleAssignments"])
def test_a_call_that_azure_refuses_is_repeated_by_running_it_again(admin: Admin, word: str) -> None:
    admin.cloud.order("fault", kind="error", method="PUT", path=word, status=400, code="Broken", message="not today")
    with pytest.raises(ProviderFailed, match="Broken:"):
        admin.lay("vision", **FULL)
    assert set(admin.lay("vision", **FULL)) <= set(MADE)
    assert set(admin.lay("vision", **FULL)) == set()


def test_a_role_that_azure_does_not_know_everywhere_yet_is_waited_for(admin: Admin) -> None:
    for method in ("PUT", "DELETE"):
        code = {"PUT": "RoleDefinitionDoesNotExist", "DELETE": "RoleDefinitionHasAssignments"}[method]
        words = {"status": 400, "code": code, "message": "not yet"}
        admin.cloud.order("fault", kind="error", method=method, path="Microsoft.Authorization/role", **words)
    assert admin.lay("vision", **FULL) == MADE
    assert admin.setup.remove(admin.asked("vision"), lambda _: None) == []


def test_an_answer_that_is_lost_after_the_work_was_done_makes_nothing_twice(admin: Admin) -> None:
    """The SDK retries, and gets the existing resource."""
    for word in ("roleDefinitions", "storageAccounts", "roleAssignments"):
        admin.cloud.order("fault", kind="lose", method="PUT", path=word)
    assert admin.lay("vision", **FULL) == MADE
    assert len(admin.there("/roledefinitions/")) == 4
    assert len(admin.there("/roleassignments/")) == 6


def test_only_what_differs_is_changed(admin: Admin) -> None:
    admin.lay("vision", **FULL)
    assert admin.lay("vision", budget="300", mail=("other@example.org",)) == ["budget"]
    (budget,) = admin.cloud.cloud.all("Microsoft.Consumption/budgets")
    assert budget.properties["amount"] == 300
    mails = {tuple(one["contactEmails"]) for one in budget.properties["notifications"].values()}
    assert mails == {("other@example.org",)}
    assert admin.lay("vision", practitioner=(BOB,)) == ["resource group", "placement group", *["role assignment"] * 5]


def test_a_role_that_somebody_has_already_is_not_assigned_again(admin: Admin) -> None:
    admin.lay("vision", **FULL)
    assigned = [one for one in admin.cloud.cloud.all(ASSIGNMENTS) if not one.group]
    there = next(one for one in assigned if not one.properties.get("condition"))
    place = open_cloud(admin.asked("vision"))
    place.delete(there.id, ROLES_API)
    given = {word: there.properties[word] for word in ("principalId", "roleDefinitionId")}
    place.put(wanted(f"{there.id.rsplit('/', 1)[0]}/{name_uuid('by hand')}", {"properties": given}))
    assert admin.lay("vision", **FULL) == []


def test_a_practitioner_has_rights_in_a_group_of_their_own_and_nowhere_else(admin: Admin) -> None:
    anna = admin.cloud.order("principal", name="anna", secret="hush")
    bob = admin.cloud.order("principal", name="bob", secret="hush")
    admin.lay("vision", **{**FULL, "practitioner": (anna["object_id"], bob["object_id"])})
    admin.until_roles_count()
    login = Admin(admin.cloud, client_id=anna["client_id"], client_secret="hush")
    hers, scope = open_cloud(login.asked("vision")), f"/subscriptions/{admin.cloud.address.subscription}"
    own, theirs = (f"{scope}/resourceGroups/stoker_vision_{one['object_id']}" for one in (anna, bob))
    address = {"location": "westeurope", "properties": {}}
    hers.put(wanted(f"{own}/providers/Microsoft.Network/publicIPAddresses/a", address))
    locks = f"{scope}/resourceGroups/stoker_vision/providers/Microsoft.Authorization/locks/stoker"
    acts: dict[str, Callable[[], object]] = {
        "publicIPAddresses/write": lambda: hers.put(
            wanted(f"{theirs}/providers/Microsoft.Network/publicIPAddresses/a", address)
        ),
        "resourceGroups/write": lambda: hers.put(wanted(f"{scope}/resourceGroups/stoker-r1", {"location": "eastus"})),
        "resourceGroups/delete": lambda: hers.delete(own, ROLES_API),
        "resourceGroups/delete ": lambda: hers.delete(theirs, ROLES_API),
        "locks/delete": lambda: hers.delete(locks, ROLES_API),
    }
    for action, act in acts.items():
        with pytest.raises(NotAllowed, match=f"Microsoft.*{action.strip()}"):
            act()
    with pytest.raises(ProviderFailed):
        hers.delete(f"{scope}/resourceGroups/stoker_vision", ROLES_API)
    assert {one.state for one in admin.setup.plan(admin.asked("vision"))} == {PieceState.THERE}


def test_a_practitioner_gives_the_role_of_nodes_to_machines_and_no_other_to_anybody(admin: Admin) -> None:
    anna = admin.cloud.order("principal", name="anna", secret="hush")
    admin.lay("vision", **{**FULL, "practitioner": (anna["object_id"],)})
    admin.until_roles_count()
    login = Admin(admin.cloud, client_id=anna["client_id"], client_secret="hush")
    hers, scope = open_cloud(login.asked("vision")), f"/subscriptions/{admin.cloud.address.subscription}"
    own = f"{scope}/resourceGroups/stoker_vision_{anna['object_id']}"
    account = admin.setup.lay(admin.asked("vision"), lambda _: None).accounts["azure"]
    machine = "33333333-3333-4333-8333-333333333333"

    def give(place: str, role: str, kind: str) -> None:
        properties = {"principalId": machine, "principalType": kind, "roleDefinitionId": f"{scope}/x/{role}"}
        hers.put(wanted(f"{place}/providers/{ASSIGNMENTS}/{role}", {"properties": properties}))

    give(own, str(account["role"]), "ServicePrincipal")
    assert admin.there(f"{own}/providers/{ASSIGNMENTS}/{account['role']}".lower())
    with suppress(NotAllowed):  # a lost response is requested again, and then there is none to decide by
        hers.delete(f"{own}/providers/{ASSIGNMENTS}/{account['role']}", ROLES_API)
    assert not admin.there(f"{own}/providers/{ASSIGNMENTS}/{account['role']}".lower())
    forbidden = [
        (own, account["role"], "User"),
        (own, account["practitioner"], "ServicePrincipal"),
        (own, READER, "ServicePrincipal"),
        (scope, account["role"], "ServicePrincipal"),
        (f"{scope}/resourceGroups/stoker_vision", account["role"], "ServicePrincipal"),
    ]
    for place, role, kind in forbidden:
        with pytest.raises(NotAllowed, match="roleAssignments/write"):
            give(place, str(role), kind)


def test_two_workspaces_in_one_subscription_share_nothing(admin: Admin) -> None:
    admin.lay("vision", **FULL)
    admin.lay("speech", region=("eastus",))
    assert not set(admin.there("speech")) & set(admin.there("vision"))
    assert admin.setup.remove(admin.asked("vision"), lambda _: None) == []
    kinds = {piece.kind: piece.state for piece in admin.setup.plan(admin.asked("speech"))}
    assert set(kinds.values()) == {PieceState.THERE}


def test_names_that_others_have_are_refused_before_anything_costs(admin: Admin) -> None:
    admin.lay("vision", region=("westeurope",), account="wantedbyboth")
    with pytest.raises(Conflict, match="wantedbyboth") as taken:
        admin.lay("speech", account="wantedbyboth")
    assert "--account" in taken.value.hint
    with pytest.raises(Conflict, match="stoker_vision"):
        admin.lay("sound", group="stoker_vision")
    with pytest.raises(Conflict, match="stoker_vision"):
        admin.lay("vision", group="other")
    with pytest.raises(Conflict, match="wantedbyboth"):
        admin.lay("vision", account="another1")


def test_a_subscription_that_the_login_does_not_see_is_reported(admin: Admin) -> None:
    with pytest.raises((NotFound, ProviderFailed), match="00000000-0000-0000-0000-000000000000") as caught:
        admin.setup.plan(admin.asked("vision", subscription="00000000-0000-0000-0000-000000000000"))
    assert "az account list" in caught.value.hint


def test_who_is_no_administrator_is_told_the_role_and_the_command(admin: Admin) -> None:
    bob = admin.cloud.order("principal", name="bob", secret="hush")
    login = Admin(admin.cloud, client_id=bob["client_id"], client_secret="hush")
    subscription = f"/subscriptions/{admin.cloud.address.subscription}"
    command = f"az role assignment create --role Owner --assignee {bob['object_id']} --scope {subscription}"
    with pytest.raises(NotAllowed, match="Owner") as caught:
        login.setup.plan(login.asked("vision"))
    assert caught.value.hint == f"an owner runs: {command}"
    with pytest.raises(ProviderFailed, match="the secret of the login is wrong"):
        wrong = Admin(admin.cloud, client_secret="wrong")
        wrong.setup.plan(wrong.asked("vision"))


def test_who_may_only_read_sees_the_plan_and_is_refused_with_nothing_made(admin: Admin) -> None:
    reader = admin.cloud.order("principal", name="reader", secret="hush")
    scope = f"/subscriptions/{admin.cloud.address.subscription}"
    role = f"{scope}/providers/Microsoft.Authorization/roleDefinitions/{READER}"
    body = {"properties": {"principalId": reader["object_id"], "roleDefinitionId": role}}
    place = open_cloud(admin.asked("vision"))
    place.put(wanted(f"{scope}/providers/Microsoft.Authorization/roleAssignments/{name_uuid('reader')}", body))
    admin.until_roles_count()
    login = Admin(admin.cloud, client_id=reader["client_id"], client_secret="hush")
    assert login.setup.plan(login.asked("vision"))
    with pytest.raises(NotAllowed, match=r"Microsoft[.]Authorization/roleDefinitions/write"):
        login.lay("vision")
    assert len(admin.there("")) == 1, "the reader's own role is all there is"


def test_a_teardown_shows_everything_and_leaves_nothing(admin: Admin) -> None:
    admin.lay("vision", **FULL)
    pieces = admin.setup.survey(admin.asked("vision"))
    assert [one.kind for one in pieces] == [
        *(*["role assignment"] * 3, "budget", "resource group", "placement group", "lock", "resource group"),
        *("storage account", "firewall", "network", *["role"] * 4),
    ]
    removed: list[GroundworkPiece] = []
    assert admin.setup.remove(admin.asked("vision"), removed.append) == []
    assert [one.name for one in removed] == [one.name for one in pieces]
    assert admin.there("") == []
    assert admin.setup.survey(admin.asked("vision")) == []


def test_a_teardown_tells_of_live_machines_and_of_what_others_keep_there(admin: Admin) -> None:
    admin.lay("vision", region=("westeurope",))
    place, scope = open_cloud(admin.asked("vision")), f"/subscriptions/{admin.cloud.address.subscription}"
    node = {"stoker-workspace": "vision", "stoker-node": "r1-1-0", "stoker-server": "annas"}
    place.put(wanted(f"{scope}/resourceGroups/stoker-vision-r1-1-0", {"location": "eastus", "tags": node}))
    kind = "Microsoft.Network/publicIPAddresses"
    place.put(
        wanted(
            f"{scope}/resourceGroups/stoker_vision/providers/{kind}/theirs", {"location": "eastus", "properties": {}}
        )
    )
    states = {one.name: one.state for one in admin.setup.survey(admin.asked("vision"))}
    assert states["stoker-vision-r1-1-0"] is PieceState.LIVE
    assert states["theirs"] is PieceState.FOREIGN
    assert admin.setup.remove(admin.asked("vision"), lambda _: None) == []
    assert admin.there("") == []


def wanted(id: str, body: dict[str, Any]) -> WantedResource:
    return WantedResource("thing", id, newest(id), body, "for this test")
