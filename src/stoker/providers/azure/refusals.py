"""Translates Azure's errors into ours, with what to do: the one place that knows its error codes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

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
)

_CAPACITY = {"AllocationFailed", "ZonalAllocationFailed", "OverconstrainedAllocationRequest", "SkuNotAvailable"}
_CAPACITY |= {"OverconstrainedZonalAllocationRequest", "SpotAllocationFailed", "NotAvailableForSubscription"}
_PRICE = {"SpotPriceGreaterThanProvidedMaxPrice"}
_QUOTA = {"QuotaExceeded", "OperationNotAllowed"}
# Limits of a subscription besides vCPUs: every VM that Azure restores has an address, and every node a role.
# Services have codes of their own for it, such as PublicIPCountLimitReached and DeploymentQuotaExceeded.
_COUNTS = re.compile(r"SubnetIsFull|\w+(?:Limit|Quota)(?:Reached|Exceeded)")
_RIGHTS = {"AuthorizationFailed", "LinkedAuthorizationFailed"}
_TOKEN = {"ExpiredAuthenticationToken", "InvalidAuthenticationToken", "AuthenticationFailed"}
_PLACE = {"LocationNotAvailableForResourceGroup", "LocationNotAvailableForResourceType", "NoRegisteredProviderFound"}
_TAKEN = {"InvalidResourceGroupLocation"}
_LOCKED = {"ScopeLocked"}
_WRAPPERS = {"InvalidTemplateDeployment", "DeploymentFailed"}  # ignored where they contain another error
_POLICY = {"RequestDisallowedByPolicy"}
# The compute service has OperationNotAllowed around it, which is the code of a quota, too.
_THROTTLED = {"TooManyRequests", "SubscriptionRequestsThrottled", "ResourceRequestsThrottled"}
_BUSY = {"InternalServerError", "RetryableError", "ServerTimeout", "ServiceUnavailable", "GatewayTimeout"}
# Something of the same name is being deleted or changed, or something new is not known everywhere yet.
_BUSY |= {"ResourceGroupBeingDeleted", "ResourceGroupNotFound", "ReferencedResourceNotProvisioned"}
_BUSY |= {"RoleDefinitionDoesNotExist", "PrincipalNotFound"}
_BUSY |= {"AnotherOperationInProgress", "RetryableErrorDueToAnotherOperation", "OperationPreempted"}
# Faults of Azure's own, for which its documents say to try again.
_BUSY |= {"NetworkingInternalOperationError", "DiskServiceInternalError", "InternalExecutionError"}
# Of an image of one's own, for every size and in every region.
_TERMS = {"MarketplacePurchaseEligibilityFailed", "ResourcePurchaseValidationFailed"}
_UNANSWERED = {"ServiceRequestError", "ServiceResponseError", "DecodeError", "ConnectTimeout"}  # and their kinds
# Azure has an older and a newer wording.
_LIMIT = re.compile(
    r"(?:Current Limit|Maximum allowed): (\d+), (?:Current Usage|Current in use): (\d+), "
    r"Additional (?:Required|requested): (\d+)",
    re.IGNORECASE,
)
_FAMILY = re.compile(r"approved ([\w .-]+?) ?(?:vCPUs|Cores) quota", re.IGNORECASE)
_WHERE = re.compile(r"Location: ([\w ]+)", re.IGNORECASE)
_PRICES = re.compile(r"max price '([\d.]+) USD' .*current spot price '([\d.]+) USD' .*VM size '([\w-]+)'", re.DOTALL)
_REQUEST = re.compile(r"increase at (https://\S+)", re.IGNORECASE)
_FAMILIES = {"lowpriority": "spot machines", "total regional": "all sizes together"}  # as Azure names them
_QUOTAS = "https://portal.azure.com/#view/Microsoft_Azure_Capacity/QuotaMenuBlade/~/myQuotas"
_ACTION = re.compile(r"perform action '([^']+)' (?:over|at) scope '([^']+)'")
_WHO = re.compile(r"object id '([^']+)'")
_DIRECTORY = re.compile(r"AADSTS(\d+)(?:: [^\r\n]*?(?=\s*Trace ID|\s*Correlation ID|[\r\n]|$))?")  # a refused login
# Of a login of the Azure CLI, where this computer has no network: its words are those of its HTTP library.
_OFFLINE = re.compile(r"Max retries exceeded|Failed to establish a new connection|Failed to invoke the Azure CLI")
_SECOND_FACTOR = re.compile(r"\bMFA is required|multi-?factor authentication", re.IGNORECASE)
_UNAVAILABLE = re.compile(r"azureskunotavailable|currently not available in location", re.IGNORECASE)
_ASSIGNMENT = re.compile(r'"policyAssignment":\s*\{"name":\s*"([^"]*)",\s*"id":\s*"([^"]*)"')
_LONGEST_TEXT = 50_000  # of a message that is read as JSON
_NAMESPACE = re.compile(r"namespace '([\w.]+)'")
_OWN_GROUP = re.compile(r"/resourceGroups/stoker-.*", re.IGNORECASE)  # created for one node


def translated(error: Exception, doing: str) -> ProviderFailed:
    """Our error for one of the SDK's. `doing` starts the message: `starting ants-7`."""
    named, status = dict(_causes(error)), int(getattr(error, "status_code", 0) or 0)
    if status == 429 or _THROTTLED & named.keys():
        code, message = list(named.items())[-1] if named else (type(error).__name__, _first_line(error))
        return ProviderUnavailable(f"{doing}: Azure is throttling requests: {code}: {message}")
    for codes, speak in _SPEAK:
        if found := next((code for code in named if _is_one(code, codes)), None):
            return speak(f"{doing}: {found}", named[found])
    kind = type(error).__name__
    if kind in ("CredentialUnavailableError", "ClientAuthenticationError"):
        return _login(doing, error)
    if _UNANSWERED & {one.__name__ for one in type(error).__mro__}:
        why = f"{doing}: Azure is unreachable: {_first_line(error)}"
        return ProviderUnavailable(why, hint="check the network connection")
    code, message = next(iter(named.items()), (kind, _first_line(error)))
    if status == 408 or status >= 500 or _BUSY & named.keys():
        return ProviderUnavailable(f"{doing}: Azure could not handle the request: {code}: {message}")
    return ProviderFailed(f"{doing}: {code}: {message}")


def _is_one(code: str, codes: Collection[str] | re.Pattern[str]) -> bool:
    return bool(codes.fullmatch(code)) if isinstance(codes, re.Pattern) else code in codes


# Login errors of the directory, by number: our message, and what to do.
_LOGINS = {
    "7000215": ("the secret of the login is wrong", "put the right one into the `secret_file` of azure.json"),
    "7000222": (
        "the secret of the login has expired",
        "an administrator runs: az ad app credential reset --id CLIENT; put the new one into the `secret_file`",
    ),
    "700016": ("the directory does not know this login", "set the right `client` and `tenant` in azure.json"),
    "90002": ("unknown directory", "set the right `tenant` in azure.json"),
    **dict.fromkeys(("700082", "70043", "70008", "50173", "50132"), ("your login to Azure has expired", "az login")),
    **dict.fromkeys(("50076", "50078", "50079"), ("Azure requires multi-factor authentication", "az login")),
}


def _login(doing: str, error: Exception) -> ProviderFailed:
    found = _DIRECTORY.search(str(error))
    number = found[1] if found else "90002" if "get authority configuration" in str(error) else ""  # as the SDK says it
    if number in _LOGINS:
        words, hint = _LOGINS[number]
        return LoginFailed(f"{doing}: {words} ({found[0] if found else f'AADSTS{number}'})", hint=hint)
    if not found and (offline := _OFFLINE.search(str(error))):
        return ProviderUnavailable(
            f"{doing}: no answer to the login: {offline[0]}", hint="check the network connection"
        )
    if found or "failed to retrieve a token" not in str(error):
        why = found[0] if found else _first_line(error)
        return LoginFailed(f"{doing}: the login to Azure failed: {why}", hint="az login")
    return LoginFailed(f"{doing}: not logged in to Azure on this computer", hint="az login")


def _expired(doing: str, message: str) -> ProviderFailed:
    return LoginFailed(f"{doing}: your login to Azure has expired or is not accepted: {message}", hint="az login")


def _tenant(doing: str, message: str) -> ProviderFailed:
    hint = "log in to its directory: az login --tenant TENANT"
    return LoginFailed(f"{doing}: the subscription belongs to another directory: {message}", hint=hint)


def _no_place(doing: str, message: str) -> ProviderFailed:
    """Other regions may have it, so this one is closed and the next one tried."""
    hint = "az account list-locations --output table lists the regions"
    return ProviderFailed(f"{doing}: unavailable in this Azure region: {message}", hint=hint)


def _taken(doing: str, message: str) -> ProviderFailed:
    return NameTaken(f"{doing}: the name is taken: {message}", hint=TAKEN_HINT)


TAKEN_HINT = "find its owner: az group show --name NAME; another workspace name in azure.json gives other names"


def _capacity(doing: str, message: str) -> ProviderFailed:
    hint = "name other regions or sizes: stoker plan shows those that fit"
    return NoCapacity(f"{doing}: Azure has no capacity for this size now: {message}", hint=hint)


def _price(doing: str, message: str) -> ProviderFailed:
    hint = "raise `spot.max_price`, name other sizes or regions, or allow on-demand: stoker plan shows prices"
    if found := _PRICES.search(message):
        most, price, size = found.groups()
        message = f"{size} costs ${price} an hour now, and `spot.max_price` leaves ${most} beside its disk and address"
    return PriceTooHigh(f"{doing}: the spot price is above the run's maximum: {message}", hint=hint)


def _quota(doing: str, message: str) -> ProviderFailed:
    """Azure uses OperationNotAllowed for other errors too; it is about the quota only if it says so."""
    limit, family = _LIMIT.search(message), _FAMILY.search(message)
    if not limit:
        told = family or doing.endswith("QuotaExceeded")
        return _count(doing, message) if told else ProviderFailed(f"{doing}: {message}")
    most, used, asked = limit.groups()
    named = family[1].strip() if family else "these sizes"
    what = _FAMILIES.get(named.lower(), named)
    where, url = _WHERE.search(message), _REQUEST.search(message)
    region = where[1].strip() if where else ""
    usage = f"az vm list-usage --location {region} --output table" if region else "az vm list-usage"
    figures = f"limit {most}, in use {used}, requested {asked} more"
    return QuotaReached(
        f"{doing}: vCPU quota exceeded for {what}{f' in {region}' if region else ''}: {figures}",
        hint=f"check it with `{usage}`, release VMs (`stoker cleanup`), or request more at "
        f"{url[1].rstrip('.') if url else _QUOTAS}",
    )


def _count(doing: str, message: str) -> ProviderFailed:
    """The end of another run may free some, so the run waits."""
    return QuotaReached(
        f"{doing}: quota of the subscription exceeded: {message}",
        hint="release VMs (`stoker cleanup`); `az network list-usages --location REGION` shows addresses; "
        f"request more at {_QUOTAS}",
    )


def _rights(doing: str, message: str) -> ProviderFailed:
    found = _ACTION.search(message)
    if not found:
        return NotAllowed(f"{doing}: {message}", hint="ask an administrator")
    action, scope = found.groups()
    named = _WHO.search(message)
    who = named[1] if named else "YOU"
    scope = _OWN_GROUP.sub("", scope)
    role = "'User Access Administrator'" if action.startswith("Microsoft.Authorization/") else "Contributor"
    return NotAllowed(
        f"{doing}: this login may not perform {action}: it requires the role {role}",
        hint=f"an administrator runs: az role assignment create --role {role} --assignee {who} --scope {scope} (a new "
        "role takes some minutes to apply)",
    )


def _template(doing: str, message: str) -> ProviderFailed:
    """Azure may refuse the whole deployment, in other words, for lack of the right to one of its parts, or of VMs."""
    if _UNAVAILABLE.search(message):
        return _capacity(doing, message)
    return _rights(doing, message) if _ACTION.search(message) else ProviderFailed(f"{doing}: {message}")


def _locked(doing: str, message: str) -> ProviderFailed:
    hint = "remove the lock: az lock list, then az lock delete; then: stoker cleanup"
    return Locked(f"{doing}: the resource has a lock: {message}", hint=hint)


def _policy(doing: str, message: str) -> ProviderFailed:
    """Another size or region may be allowed, so this offer is closed and the next one tried. That changes require a
    second factor is a rule of Azure's about the login, under the same code."""
    if _SECOND_FACTOR.search(message):
        return LoginFailed(f"{doing}: Azure requires multi-factor authentication for changes: {message}", hint=_FACTOR)
    found = _ASSIGNMENT.search(message)
    if not found:
        return ProviderFailed(f"{doing}: a policy of your organisation refuses it: {message}", hint=_POLICIES)
    title, id = found.groups()
    scope, name = id.partition("/providers/")[0], id.rpartition("/")[2]
    what = message.partition(". ")[0].partition(" Policy identifiers")[0].rstrip(".")
    return ProviderFailed(
        f"{doing}: the policy `{title}` refuses it: {what}",
        hint=f"az policy assignment show --name {name} --scope {scope}; its owner can allow it, or name other regions "
        "or sizes in azure.json",
    )


_FACTOR = "az logout, then az login with a second factor (Azure CLI 2.76 or newer); or use a service principal"
_POLICIES = "az policy assignment list --output table lists them; name other regions or sizes in azure.json"


def _region(doing: str, message: str) -> ProviderFailed:
    """Azure closes regions to new subscriptions, and to those of students; the next offer may be in another one."""
    return ProviderFailed(f"{doing}: this subscription may not use the region: {message}", hint=_OTHER_REGIONS)


_OTHER_REGIONS = (
    "name other regions in azure.json; where Azure allows some only, this lists them: az policy assignment list "
    "--query \"[?name=='sys.regionrestriction'].parameters\""
)


def _disabled(doing: str, message: str) -> ProviderFailed:
    return NotSetUp(f"{doing}: the subscription is disabled: {message}", hint="check its billing: az account show")


def _unregistered(doing: str, message: str) -> ProviderFailed:
    found = _NAMESPACE.search(message)
    name = found[1] if found else "Microsoft.Compute"
    return NotSetUp(
        f"{doing}: the subscription is not registered for {name}",
        hint=f"az provider register --namespace {name} --wait",
    )


def _terms(doing: str, message: str) -> ProviderFailed:
    hint = "az vm image terms accept --urn PUBLISHER:OFFER:SKU:VERSION, or name another `image` in azure.json"
    return NotSetUp(f"{doing}: the terms of the image are not accepted in this subscription: {message}", hint=hint)


def _no_subscription(doing: str, message: str) -> ProviderFailed:
    return NotSetUp(f"{doing}: {message}", hint="az account list shows yours; name one of them in azure.json")


_SPEAK: tuple[tuple[Collection[str] | re.Pattern[str], Callable[[str, str], ProviderFailed]], ...] = (
    (_POLICY, _policy),
    ({"RequestDisallowedByAzure"}, _region),
    (_CAPACITY, _capacity),
    (_PRICE, _price),
    (_QUOTA, _quota),
    (_COUNTS, _count),
    (_RIGHTS, _rights),
    (_LOCKED, _locked),
    (_TOKEN, _expired),
    ({"InvalidAuthenticationTokenTenant"}, _tenant),
    (_PLACE, _no_place),
    (_TAKEN, _taken),
    (_TERMS, _terms),
    ({"InvalidTemplateDeployment"}, _template),
    ({"ReadOnlyDisabledSubscription"}, _disabled),
    ({"MissingSubscriptionRegistration"}, _unregistered),
    ({"SubscriptionNotFound", "InvalidSubscriptionId"}, _no_subscription),
)


def _causes(error: Exception) -> Iterator[tuple[str, str]]:
    """Codes and messages, the innermost first: a failed deployment wraps the cause in its own error."""
    found = list(_inner(getattr(error, "error", None)))
    told = [one for one in found if one[0] not in _WRAPPERS]
    yield from told or found


def _inner(found: Any) -> Iterator[tuple[str, str]]:
    for one in getattr(found, "details", None) or ():
        yield from _inner(one)
    if code := getattr(found, "code", None):
        message = str(getattr(found, "message", "") or "")
        yield from _wrapped(message)
        yield code, message


def _wrapped(message: str) -> Iterator[tuple[str, str]]:
    """A deployment may report the error of one of its parts as JSON text, under a code such as `Conflict`."""
    if not message.lstrip().startswith("{") or len(message) > _LONGEST_TEXT:
        return
    try:
        told = json.loads(message)
    except (ValueError, RecursionError):
        return
    yield from _told(told.get("error", told))


def _told(error: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(error, Mapping):
        return
    details = error.get("details")
    for one in details if isinstance(details, list) else ():
        yield from _told(one)
    if isinstance(code := error.get("code"), str):
        message = str(error.get("message") or "")
        yield from _wrapped(message)
        yield code, message


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
