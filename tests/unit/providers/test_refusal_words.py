"""What Azure's refusals become: the right class, what happened, and what to do about it."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.errors import (
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
    StokerError,
)
from stoker.providers.azure.refusals import translated
from stoker.twin.refusal import throttled

SCOPE = "/subscriptions/0000-11"
GROUP = f"{SCOPE}/resourceGroups/stoker-default-ab12-1"


class ClientAuthenticationError(Exception):
    """The SDK's, by its name."""


def refused(code: str, message: str) -> StokerError:
    error: Any = Exception(message)
    error.error = SimpleNamespace(code=code, message=message, details=())
    return translated(error, "starting ants-7")


def login(message: str) -> StokerError:
    return translated(ClientAuthenticationError(message), "listing VMs")


def test_a_price_above_the_maximum_is_told_with_both_as_the_job_knows_them() -> None:
    """The maximum that Azure repeats is that of the VM alone, without its disk and address."""
    said = (
        "Unable to perform operation 'Create VM' since the provided max price '0.028 USD' is lower than the current "
        "spot price '0.5 USD' for Azure Spot VM size 'Standard_D2as_v5'."
    )
    error = refused("SpotPriceGreaterThanProvidedMaxPrice", said)
    assert isinstance(error, PriceTooHigh)
    assert {"Standard_D2as_v5", "$0.5", "$0.028", "`spot.max_price`"} <= set(error.message.split())


@pytest.mark.parametrize(
    ("said", "words", "hint"),
    [
        ("DefaultAzureCredential failed to retrieve a token\nfrom", "not logged in to Azure", "az login"),
        (
            "AADSTS700082: The refresh token has expired",
            "has expired (AADSTS700082: The refresh token has expired)",
            "az login",
        ),
        ("AADSTS7000222: The provided client secret keys are expired", "the secret of the login has expired", "reset"),
        (
            "AADSTS7000215: Invalid client secret provided. Trace ID: 12 Correlation ID: 34",
            "the secret of the login is wrong (AADSTS7000215: Invalid client secret provided.)",
            "secret_file",
        ),
        ("AADSTS90002: Tenant 'x' not found.", "unknown directory", "tenant"),
        ("AADSTS999: something new", "the login to Azure failed: AADSTS999: something new", "az login"),
        (
            "DefaultAzureCredential failed to retrieve a token from the included credentials.\nAttempted credentials:\n"
            "\tAzureCliCredential: ERROR: AADSTS53003: Access has been blocked by Conditional Access policies. "
            "Trace ID: 12",
            "failed: AADSTS53003: Access has been blocked by Conditional Access policies.",
            "az login",
        ),
    ],
)
def test_a_login_that_does_not_work_says_why(said: str, words: str, hint: str) -> None:
    error = login(said)
    assert isinstance(error, LoginFailed)
    assert words in error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    "said",
    [
        "ERROR: HTTPSConnectionPool(host='login.microsoftonline.com', port=443): Max retries exceeded with url: "
        "/t/oauth2/v2.0/token (Caused by NameResolutionError(\"Failed to resolve 'login.microsoftonline.com'\"))",
        "Failed to invoke the Azure CLI",
    ],
)
def test_a_login_without_a_network_is_not_one_that_somebody_has_to_repair(said: str) -> None:
    tried = f"DefaultAzureCredential failed to retrieve a token from the included credentials.\n\tAzureCli: {said}"
    assert type(login(tried)) is ProviderUnavailable


def test_a_token_that_has_expired_is_a_login_that_does_not_work() -> None:
    error = refused("ExpiredAuthenticationToken", "The access token expiry UTC time is earlier than current time.")
    assert (type(error), error.hint) == (LoginFailed, "az login")


@pytest.mark.parametrize(
    ("title", "family"),
    [
        ("standardNCADSA100v4Family Cores", "standardNCADSA100v4Family"),
        ("LowPriorityCores", "spot machines"),
        ("Total Regional Cores", "all sizes together"),
        ("Standard NCADSA100v4 Family vCPUs", "Standard NCADSA100v4 Family"),
    ],
)
def test_a_quota_that_is_used_up_names_family_region_figures_and_where_to_request_more(title: str, family: str) -> None:
    said = (
        f"Operation could not be completed as it results in exceeding approved {title} quota. Additional details - "
        "Deployment Model: Resource Manager, Location: eastus, Current Limit: 24, Current Usage: 12, Additional "
        "Required: 24, (Minimum) New Limit Required: 36. Setup Alerts when Quota reaches threshold. Learn more at "
        "https://aka.ms/quotamonitoringalerting . Submit a request for Quota increase at "
        "https://aka.ms/ProdportalCRP/#blade/x/Parameters/%7B%22y%22%7D by specifying parameters listed in 'Details'"
    )
    error = refused("OperationNotAllowed", said)
    assert isinstance(error, QuotaReached)
    figures = "limit 24, in use 12, requested 24 more"
    said = f"vCPU quota exceeded for {family} in eastus: {figures}"
    assert error.message == f"starting ants-7: OperationNotAllowed: {said}"
    assert "az vm list-usage --location eastus" in error.hint
    assert error.hint.endswith("https://aka.ms/ProdportalCRP/#blade/x/Parameters/%7B%22y%22%7D")


def test_a_quota_is_known_in_azures_older_words_too() -> None:
    error = refused(
        "OperationNotAllowed",
        "Operation results in exceeding quota limits of Core. Maximum allowed: 20, Current in use: 18, Additional "
        'requested: 4. Please read more about quota increase at https://aka.ms/ProdportalCRP/?#create/{"subId":"0"}.',
    )
    assert isinstance(error, QuotaReached)
    said = "vCPU quota exceeded for these sizes: limit 20, in use 18, requested 4 more"
    assert error.message == f"starting ants-7: OperationNotAllowed: {said}"
    assert error.hint.endswith('https://aka.ms/ProdportalCRP/?#create/{"subId":"0"}')


def test_a_missing_right_names_the_action_the_role_and_the_administrators_command() -> None:
    said = (
        "The client 'c1' with object id 'o1' does not have authorization to perform action "
        f"'Microsoft.Resources/subscriptions/resourceGroups/write' over scope '{GROUP}' or the scope is invalid."
    )
    error = refused("AuthorizationFailed", said)
    assert isinstance(error, NotAllowed)
    assert "may not perform Microsoft.Resources/subscriptions/resourceGroups/write" in error.message
    assert error.message.endswith(": it requires the role Contributor")
    assert error.hint == (
        f"an administrator runs: az role assignment create --role Contributor --assignee o1 --scope {SCOPE} "
        "(a new role takes some minutes to apply)"
    ), "the node's own group is not there to assign anything at"


ALLOCATION = {"code": "AllocationFailed", "message": "Allocation failed."}
TERMINAL = {"code": "ResourceDeploymentFailure", "message": "It ended as 'Failed'.", "details": [ALLOCATION]}


@pytest.mark.parametrize(
    ("message", "of"),
    [
        ({"error": ALLOCATION}, NoCapacity),
        ({"status": "Failed", "error": TERMINAL}, NoCapacity),
        ({"error": {"code": "SpotPriceGreaterThanProvidedMaxPrice", "message": "It is higher."}}, PriceTooHigh),
        ({"error": {"code": "StaticPublicIPCountLimitReached", "message": "Not more than 20."}}, QuotaReached),
    ],
)
def test_a_reason_that_a_deployment_wraps_in_a_text_is_found(message: Any, of: type[StokerError]) -> None:
    part = SimpleNamespace(code="Conflict", message=json.dumps(message, indent=2), details=None)
    error: Any = Exception("it failed")
    error.error = SimpleNamespace(code="DeploymentFailed", message="At least one failed.", details=[part])
    assert type(translated(error, "starting ants-7")) is of


@pytest.mark.parametrize("message", ["{", "{}", "[]", '{"error": 1}', '{"error": {"details": 3}}', "{" * 100_000])
def test_a_text_that_wraps_nothing_is_reported_as_it_is(message: str) -> None:
    error = refused("Conflict", message)
    assert type(error) is ProviderFailed
    assert error.message == f"starting ants-7: Conflict: {message}"


@pytest.mark.parametrize(
    ("code", "of", "hint"),
    [
        ("PublicIPCountLimitReached", QuotaReached, "az network list-usages"),
        ("IPv4StandardSkuPublicIpCountLimitReached", QuotaReached, "az network list-usages"),
        ("RoleAssignmentLimitExceeded", QuotaReached, "stoker cleanup"),
        ("ResourceGroupQuotaExceeded", QuotaReached, "stoker cleanup"),
        ("ScopeLocked", Locked, "az lock delete"),
        ("SubscriptionNotFound", NotSetUp, "az account list"),
        ("InvalidAuthenticationTokenTenant", LoginFailed, "az login --tenant"),
        ("LocationNotAvailableForResourceGroup", ProviderFailed, "list-locations"),
        ("NoRegisteredProviderFound", ProviderFailed, "list-locations"),
        ("DeploymentQuotaExceeded", QuotaReached, "stoker cleanup"),
        ("NetworkSecurityGroupCountLimitReached", QuotaReached, "stoker cleanup"),
        ("SubnetIsFull", QuotaReached, "stoker cleanup"),
        ("QuotaExceeded", QuotaReached, "stoker cleanup"),
        ("MarketplacePurchaseEligibilityFailed", NotSetUp, "az vm image terms accept"),
        ("InvalidResourceGroupLocation", NameTaken, "az group show"),
        ("RequestDisallowedByAzure", ProviderFailed, "name other regions in azure.json"),
    ],
)
def test_each_refusal_has_its_class_its_words_and_a_command(code: str, of: type[StokerError], hint: str) -> None:
    error = refused(code, "as Azure says it")
    assert type(error) is of
    assert error.message.startswith(f"starting ants-7: {code}: ")
    assert "as Azure says it" in error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    "code",
    ["ResourceGroupBeingDeleted", "ResourceGroupNotFound", "AnotherOperationInProgress", "DiskServiceInternalError"],
)
def test_what_passes_by_itself_is_waited_for(code: str) -> None:
    error = refused(code, "as Azure says it")
    assert type(error) is ProviderUnavailable
    assert f"{code}: as Azure says it" in error.message


@pytest.mark.parametrize("code", ["AcrossTheBoard", "NeverSeenBefore", "LimitOfPatience", "OSProvisioningTimedOut"])
def test_an_unknown_code_closes_the_offer_and_nothing_else(code: str) -> None:
    assert type(refused(code, "as Azure says it")) is ProviderFailed


MFA = (
    "Resource 'stoker-1' was disallowed by policy. Reasons: MFA is required. See error details for policy IDs.",
    "Users must authenticate with multi-factor authentication to create or update resources.",
)


@pytest.mark.parametrize("said", MFA)
def test_a_login_without_a_second_factor_is_no_policy_about_one_size(said: str) -> None:
    """Every change is refused until the person logs in again, so no offer is closed for it."""
    error = refused("RequestDisallowedByPolicy", said)
    assert type(error) is LoginFailed
    assert said in error.message
    assert "az login" in error.hint


def test_a_deployment_that_is_refused_as_a_whole_for_want_of_machines_is_the_weather() -> None:
    said = (
        "The template deployment failed with error: 'The resource with id: '/x' failed validation with message: 'The "
        "requested size for resource '/x' is currently not available in location 'eastus' zones '' for subscription "
        "'s'. Please try another size. See https://aka.ms/azureskunotavailable for details.'.'."
    )
    assert type(refused("InvalidTemplateDeployment", said)) is NoCapacity


def test_a_quota_without_figures_is_a_quota_and_another_refusal_under_its_code_is_none() -> None:
    said = "Operation could not be completed as it results in exceeding approved LowPriorityCores quota."
    assert type(refused("OperationNotAllowed", said)) is QuotaReached
    assert type(refused("OperationNotAllowed", "The VM is being deallocated.")) is ProviderFailed


@pytest.mark.parametrize("service", ["Microsoft.Compute/virtualMachines", "Microsoft.Network/virtualNetworks", ""])
def test_every_form_of_throttling_is_waited_for(service: str) -> None:
    """As the twin answers, and as the SDK reads it."""
    from azure.mgmt.core.exceptions import ARMErrorFormat

    error: Any = Exception("Operation returned an invalid status")
    error.error = ARMErrorFormat({"error": throttled(3, f"{SCOPE}/providers/{service}").body()})
    told = translated(error, "listing VMs")
    assert type(told) is ProviderUnavailable
    assert told.message.startswith("listing VMs: Azure is throttling requests: ")
