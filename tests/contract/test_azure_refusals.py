"""What Azure refuses, over the wire of the twin: distinguished, with messages, and nothing is forgotten."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from test_azure_provider import CloseWatch

from services import Azurite
from stoker.errors import (
    JobInvalid,
    Locked,
    LoginFailed,
    NameTaken,
    NoCapacity,
    NotAllowed,
    NotSetUp,
    PriceTooHigh,
    ProviderFailed,
    ProviderUnavailable,
    QuotaReached,
)
from stoker.model.job.job import Job, Spot
from stoker.model.node import Need, NodeRequest, NodeSight, NodeState, Offer
from stoker.model.workspace import layout
from stoker.model.workspace.home import Home
from stoker.providers import Setup
from stoker.providers.azure import AzureProvider
from stoker.server.admission import admit
from stoker.stores.kinds import grant
from stoker.stores.opening import open_store
from stoker.testing.twin import TwinHandle, twin

OWNER, READER = "8e3af657-a8ff-443c-a75c-2fe8c4bcb635", "acdd72a7-3385-48ef-bd42-f606fba81ae7"
NOWHERE = "00000000-0000-0000-0000-000000000000"
SIZE = "Standard_D2s_v5"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwinHandle]:
    with twin(tmp_path_factory.mktemp("twin"), speed=10) as handle:
        yield handle


class Team:
    """The administrator, and people with logins and roles of their own."""

    def __init__(self, cloud: TwinHandle, azurite: Azurite, folder: Path) -> None:
        self.cloud = cloud
        self._azurite = azurite
        self._folder = folder
        self._context = ssl.create_default_context(cafile=cloud.address.authority)

    def provider(self, **more: Any) -> AzureProvider:
        address = self.cloud.address
        (self._folder / "secret").write_text(address.client_secret)
        account = {
            "subscription": address.subscription,
            "workspace": "team",
            "tenant": address.tenant,
            "client": address.client_id,
            "secret_file": str(self._folder / "secret"),
            "arm": address.url,
            "login": address.url,
            "prices": f"{address.url}/api/retail/prices",
            "ca_file": address.authority,
            "regions": ["eastus"],
            **more,
        }
        (self._folder / "azure.json").write_text(json.dumps(account))
        return CloseWatch(Setup(Home(self._folder), server="mine"))

    def request(self, key: str) -> NodeRequest:
        place, credential = self._azurite.new_container(), self._azurite.account_key
        open_store(place, credential).put(layout.orders("r", 1), b"{}")
        access = grant(place, credential, reads=["blobs/"], writes=[layout.run("r")], for_s=3600).to_text()
        offer = Offer("azure", SIZE, "eastus", Decimal("0.004"))
        return NodeRequest(key, layout.orders("r", 1), place, offer=offer, access=access, seal="00")

    def arm(self, method: str, path: str, body: Any = None, version: str = "2024-03-01") -> Any:
        """As the administrator; the path is below the subscription."""
        address = self.cloud.address
        login = {"client_id": address.client_id, "client_secret": address.client_secret}
        form = {"grant_type": "client_credentials", "scope": f"{address.url}/.default", **login}
        asked = Request(f"{address.url}/{address.tenant}/oauth2/v2.0/token", urlencode(form).encode())
        with urlopen(asked, context=self._context, timeout=30) as answer:
            headers = {"Authorization": f"Bearer {json.load(answer)['access_token']}"}
        data = None if body is None else json.dumps(body).encode()
        url = f"{address.url}/subscriptions/{address.subscription}{path}?api-version={version}"
        request = Request(url, data, {**headers, "Content-Type": "application/json"}, method=method)
        with urlopen(request, context=self._context, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def login(self, name: str, role: str = "") -> dict[str, str]:
        """Fields of an account."""
        made = self.cloud.order("principal", name=name, secret=f"{name}-secret")
        if role:
            given = f"/providers/Microsoft.Authorization/roleDefinitions/{role}"
            body = {"properties": {"principalId": made["object_id"], "roleDefinitionId": given}}
            place = f"/providers/Microsoft.Authorization/roleAssignments/{made['object_id']}"
            self.arm("PUT", place, body, "2022-04-01")
        file = self._folder / f"{name}.secret"
        file.write_text(f"{name}-secret")
        return {"client": made["client_id"], "secret_file": str(file)}


@pytest.fixture
def team(cloud: TwinHandle, azurite: Azurite, tmp_path: Path) -> Iterator[Team]:
    made = Team(cloud, azurite, tmp_path)
    yield made
    provider = made.provider()
    for one in provider.look():
        provider.stop(one.key)
    cloud.order("calm")
    cloud.wait(lambda now: not [one for one in now.resources.values() if "/stoker-team-" in one.id.lower()])


def test_nobody_is_logged_in(team: Team) -> None:
    with pytest.raises(LoginFailed, match="not logged in to Azure on this computer") as error:
        team.provider(secret_file="", client="", tenant="").offers(Need())
    assert error.value.hint == "az login"


def test_a_wrong_secret_a_wrong_directory_and_a_wrong_subscription_are_distinguished(team: Team) -> None:
    wrong = team.login("wrong", OWNER)
    Path(wrong["secret_file"]).write_text("another")
    with pytest.raises(LoginFailed, match="the secret of the login is wrong"):
        team.provider(**wrong).offers(Need())
    with pytest.raises(LoginFailed, match="unknown directory"):
        team.provider(tenant=NOWHERE).offers(Need())
    with pytest.raises(NotSetUp, match="SubscriptionNotFound") as error:
        team.provider(subscription=NOWHERE).offers(Need())
    assert error.value.hint.startswith("az account list")


def test_a_missing_right_names_the_role_and_the_command(team: Team) -> None:
    with pytest.raises(
        NotAllowed, match=r"may not perform Microsoft\.Compute/skus/read: it requires the role Contributor"
    ):
        team.provider(**team.login("nobody")).offers(Need())
    reader = team.provider(**team.login("reader", READER))
    assert reader.offers(Need(size=SIZE))
    with pytest.raises(NotAllowed, match="/resourceGroups/write") as error:
        reader.start(team.request("r-1"))
    scope = f"/subscriptions/{team.cloud.address.subscription}"
    assert error.value.hint.startswith(
        "an administrator runs: az role assignment create --role Contributor --assignee "
    )
    assert f"--scope {scope} (a new role takes" in error.value.hint


def test_a_login_that_expires_is_no_sign_that_nothing_is_there_and_the_next_look_takes_up_the_new_one(
    team: Team,
) -> None:
    anna = team.login("anna", OWNER)
    provider = team.provider(**anna)
    provider.start(team.request("r-1"))
    team.cloud.wait(lambda _: [one.state for one in provider.look()] == [NodeState.UP])
    team.cloud.order("principal", name="anna", secret="rotated")
    team.cloud.order("logout")
    with pytest.raises(LoginFailed, match="has expired or is not accepted"):
        provider.look()
    with pytest.raises(LoginFailed, match="the secret of the login is wrong"):
        provider.look()
    Path(anna["secret_file"]).write_text("rotated")
    assert [one.state for one in provider.look()] == [NodeState.UP]


def test_a_role_that_no_longer_exists_is_told_before_anything_is_made(team: Team) -> None:
    provider = team.provider(role=NOWHERE)
    with pytest.raises(NotSetUp):
        provider.start(team.request("r-1"))
    assert not team.cloud.cloud.instances and not provider.look()


def test_a_name_that_is_taken_by_somebody_else_is_not_touched(team: Team) -> None:
    place = "/resourceGroups/stoker-team-r-9"
    team.arm("PUT", place, {"location": "eastus", "tags": {"owner": "somebody else"}})
    provider = team.provider()
    with pytest.raises(NameTaken, match="stoker-team-r-9"):
        provider.start(team.request("r-9"))
    provider.stop("r-9")
    assert team.arm("GET", place)["tags"] == {"owner": "somebody else"}
    team.arm("DELETE", place)


def test_a_node_that_was_interrupted_before_its_vm_was_requested_is_resumed(team: Team) -> None:
    """The group exists and is ours: requested again, it gets its VM."""
    provider = team.provider()
    team.cloud.order("fault", kind="error", method="PUT", path="/deployments/", times=9)
    with pytest.raises(Exception, match="internal server error"):
        provider.start(team.request("r-1"))
    team.cloud.order("calm")
    provider.start(team.request("r-1"))
    team.cloud.wait(lambda _: [one.state for one in provider.look()] == [NodeState.UP])


@pytest.mark.parametrize("gateway", [True, False])
def test_a_spot_machine_has_a_public_address_and_its_price_unless_its_network_has_another_way_out(
    team: Team, gateway: bool
) -> None:
    team.arm("PUT", "/resourceGroups/net", {"location": "eastus"})
    within = {"addressPrefix": "10.0.0.0/24", "defaultOutboundAccess": False}
    within |= {"natGateway": {"id": f"/subscriptions/{team.cloud.address.subscription}/nat"}} if gateway else {}
    space = {"addressPrefixes": ["10.0.0.0/16"]}
    network = {"addressSpace": space, "subnets": [{"name": "nodes", "properties": within}]}
    place = "/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/net"
    team.arm("PUT", place, {"location": "eastus", "properties": network}, "2024-05-01")
    subnet = f"/subscriptions/{team.cloud.address.subscription}{place}/subnets/nodes"
    provider = team.provider(subnet=subnet, public_address=not gateway)
    (offer,) = provider.offers(Need(size=SIZE, region="eastus", spot=True))
    (plain,) = team.provider(subnet=subnet, public_address=False).offers(Need(size=SIZE, region="eastus", spot=True))
    assert offer.usd_per_hour - plain.usd_per_hour == (0 if gateway else Decimal("0.005"))
    provider.start(replace(team.request("r-1"), offer=offer))
    team.cloud.wait(lambda _: [one.state for one in provider.look()] == [NodeState.UP])
    (seen,) = provider.look()
    assert seen.usd_per_hour == offer.usd_per_hour, "what is billed is what was offered"
    kinds = [one.kind for one in team.cloud.cloud.resources.values()]
    assert kinds.count("Microsoft.Network/publicIPAddresses") == (0 if gateway else 1)
    provider.stop("r-1")
    team.cloud.wait(lambda now: not now.instances)


def test_without_a_public_address_and_a_network_of_ones_own_nothing_is_started(team: Team) -> None:
    with pytest.raises(NotSetUp, match="`subnet`"):
        team.provider(public_address=False).start(team.request("r-1"))


def test_what_is_locked_is_switched_off_and_removed_when_the_lock_is_gone(team: Team) -> None:
    provider = team.provider()
    provider.start(team.request("r-1"))
    team.cloud.wait(lambda _: [one.state for one in provider.look()] == [NodeState.UP])
    lock = "/resourceGroups/stoker-team-r-1/providers/Microsoft.Authorization/locks/keep"
    team.arm("PUT", lock, {"properties": {"level": "CanNotDelete"}}, "2020-05-01")
    with pytest.raises(Locked) as error:
        provider.stop("r-1")
    assert "az lock delete" in error.value.hint
    team.cloud.wait(lambda now: [str(one.power) for one in now.instances.values()] == ["deallocated"])
    (sight,) = provider.look()
    assert sight.state is NodeState.GONE
    team.arm("DELETE", lock, version="2020-05-01")
    provider.stop("r-1")
    team.cloud.wait(lambda now: not now.instances)


def test_a_region_without_the_size_names_those_that_have_it_and_a_size_that_is_none_the_nearest(team: Team) -> None:
    providers = {"azure": team.provider(regions=["eastus", "westus2"])}
    with pytest.raises(JobInvalid) as error:
        admit(Job(name="ants", run="true", on="azure", size=SIZE, region="mars"), providers)
    (problem,) = error.value.problems
    assert (problem.field, problem.found) == ("region", "`mars`")
    assert problem.expected == f"a region that has the size {SIZE}, such as eastus, westus2"
    with pytest.raises(JobInvalid) as error:
        admit(Job(name="ants", run="true", on="azure", size=f"{SIZE}x"), providers)
    (problem,) = error.value.problems
    assert (problem.field, problem.nearest) == ("size", SIZE)


def test_a_confidential_size_is_refused_before_anything_is_asked_of_azure(team: Team) -> None:
    job = Job(name="ants", run="true", on="azure", size="Standard_DC2as_v5", spot=Spot())
    with pytest.raises(JobInvalid, match="a size that is not confidential"):
        admit(job, {"azure": team.provider()})


def test_a_size_that_a_region_has_none_of_and_a_quota_are_the_weather(team: Team) -> None:
    provider = team.provider()
    team.cloud.order("restrict", region="eastus", size=SIZE)
    with pytest.raises(NoCapacity, match="SkuNotAvailable"):
        _until_refused(team, provider, "r-1")
    team.cloud.order("calm")
    team.cloud.order("quota", region="eastus", family="cores", limit=0)
    with pytest.raises(QuotaReached) as refused:
        _until_refused(team, provider, "r-2")
    said = "vCPU quota exceeded for all sizes together in eastus: limit 0, in use 0, requested 2 more"
    assert refused.value.message == f"starting stoker-team-r-2: OperationNotAllowed: {said}"
    team.cloud.order("quota", region="eastus", family="cores", limit=100)


def test_a_spot_price_above_the_limit_is_the_weather(team: Team) -> None:
    provider = team.provider()
    team.cloud.order("price", size=SIZE, region="eastus", usd_per_hour=0.5)
    request = team.request("r-3")
    assert request.offer
    dear = replace(request, offer=replace(request.offer, spot=True), max_price=Decimal("0.1"))
    provider.start(dear)
    found = team.cloud.wait(lambda _: [one for one in provider.look() if one.key == "r-3" and one.trouble])[0]
    assert (found.trouble, found.still) == ("price-too-high", True)
    assert "$0.5 an hour" in found.reason
    team.cloud.order("price", size=SIZE, region="eastus", usd_per_hour=None)


def test_a_restart_above_the_maximum_price_is_the_weather_and_the_machine_keeps_its_disk(team: Team) -> None:
    """Azure refuses the restart itself: the maximum price is that of the VM's creation."""
    provider, request = team.provider(eviction="Deallocate"), team.request("r-4")
    assert request.offer
    request = replace(request, offer=replace(request.offer, spot=True), max_price=Decimal("0.1"))

    def seen(key: str) -> NodeSight | None:
        return next((one for one in provider.look() if one.key == key), None)

    provider.start(request)
    team.cloud.wait(lambda _: (one := seen("r-4")) and one.state is NodeState.UP)
    (machine,) = team.cloud.cloud.instances.values()
    team.cloud.order("evict", vm=machine.vm, notice_s=0)
    team.cloud.wait(lambda _: (one := seen("r-4")) and one.still)
    team.cloud.order("price", size=SIZE, region="eastus", usd_per_hour=0.5)
    assert request.offer
    again = replace(request, key="r-5", offer=replace(request.offer, again="r-4"))
    with pytest.raises(PriceTooHigh):
        provider.start(again)
    team.cloud.wait(lambda _: (one := seen("r-5")) and one.still)
    team.cloud.order("price", size=SIZE, region="eastus", usd_per_hour=None)
    provider.start(again)
    team.cloud.wait(lambda _: (one := seen("r-5")) and one.state is NodeState.UP)


@pytest.mark.parametrize(
    ("status", "code", "message", "of"),
    [
        (
            403,
            "RequestDisallowedByPolicy",
            "Resource 'x' was disallowed by policy. Reasons: MFA is required.",
            LoginFailed,
        ),
        (409, "ResourceGroupBeingDeleted", "The resource group is in deprovisioning state.", ProviderUnavailable),
        (404, "ResourceGroupNotFound", "Resource group 'x' could not be found.", ProviderUnavailable),
        (409, "DeploymentQuotaExceeded", "The limit of 800 deployments was reached.", QuotaReached),
        (400, "LocationNotAvailableForResourceType", "The provided location is not available.", ProviderFailed),
        (400, "NeverSeenBefore", "This is new.", ProviderFailed),
        (418, "", "", ProviderFailed),
    ],
)
def test_what_azure_says_to_a_deployment_closes_an_offer_only_where_it_is_about_the_offer(
    team: Team, status: int, code: str, message: str, of: type[ProviderFailed]
) -> None:
    provider = team.provider()
    fault = {"kind": "error", "method": "PUT", "path": "deployments", "times": 1}
    team.cloud.order("fault", **fault, status=status, code=code, message=message)
    with pytest.raises(ProviderFailed) as refused:
        provider.start(team.request("r-6"))
    assert type(refused.value) is of, refused.value.message
    provider.start(team.request("r-6"))  # nothing is in the way of the next request
    team.cloud.wait(lambda _: [one.state for one in provider.look() if one.key == "r-6"] == [NodeState.UP])


def _until_refused(team: Team, provider: AzureProvider, key: str) -> None:
    """Some refusals come with the answer, others when the deployment has been looked at."""
    provider.start(team.request(key))
    found = team.cloud.wait(lambda _: [one for one in provider.look() if one.key == key and one.trouble])[0]
    raise {"no-capacity": NoCapacity, "quota-reached": QuotaReached}[found.trouble](found.reason)
