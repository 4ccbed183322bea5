"""What Azure's refusals mean, in words, with what to do about them: the one place that knows its error codes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from stoker.errors import NoCapacity, NotAllowed, NotSetUp, ProviderFailed, QuotaReached

_CAPACITY = {"AllocationFailed", "ZonalAllocationFailed", "OverconstrainedAllocationRequest", "SkuNotAvailable"}
_CAPACITY |= {"OverconstrainedZonalAllocationRequest", "SpotAllocationFailed", "NotAvailableForSubscription"}
_QUOTA = {"QuotaExceeded", "OperationNotAllowed"}
_RIGHTS = {"AuthorizationFailed", "LinkedAuthorizationFailed", "InvalidAuthenticationTokenTenant"}
_LOCKED = {"ScopeLocked"}
_LIMIT = re.compile(r"Current Limit: (\d+), Current Usage: (\d+), Additional Required: (\d+)", re.IGNORECASE)
_FAMILY = re.compile(r"(?:approved )?(\w[\w ]*?(?:Family|family|Spot|LowPriority|Regional))\s*(?:vCPUs|Cores)", re.I)
_ACTION = re.compile(r"perform action '([^']+)' over scope '([^']+)'")
_WHO = re.compile(r"object id '([^']+)'")


def translated(error: Exception, doing: str) -> ProviderFailed:
    """One of ours for one of the SDK's. `doing` begins the message: `starting ants-7`."""
    named = dict(_causes(error))
    for codes, speak in _SPEAK:
        if found := next((code for code in named if code in codes), None):
            return speak(f"{doing}: {found}", named[found])
    kind = type(error).__name__
    if kind in ("CredentialUnavailableError", "ClientAuthenticationError"):
        return NotSetUp(f"{doing}: the login to Azure does not work: {_first_line(error)}", hint="az login")
    if kind in ("ServiceRequestError", "ServiceResponseError", "ConnectTimeout"):
        return ProviderFailed(f"{doing}: Azure cannot be reached: {_first_line(error)}", hint="look at the network")
    code, message = next(iter(named.items()), (kind, _first_line(error)))
    return ProviderFailed(f"{doing}: {code}: {message}")


def _capacity(doing: str, message: str) -> ProviderFailed:
    hint = "name other regions or sizes: stoker plan shows those that fit"
    return NoCapacity(f"{doing}: Azure has no such machine there now: {message}", hint=hint)


def _quota(doing: str, message: str) -> ProviderFailed:
    """Azure says OperationNotAllowed of other things too; only with the figures is it about the quota."""
    limit, family = _LIMIT.search(message), _FAMILY.search(message)
    if not limit:
        return ProviderFailed(f"{doing}: {message}")
    most, used, asked = limit.groups()
    what = family[1].strip() if family else "cores"
    return QuotaReached(
        f"{doing}: the quota of {what} allows {most} vCPUs; {used} are in use and {asked} more were asked for",
        hint=f"release something (stoker sweep), or ask for more {what} vCPUs in the portal under Quotas",
    )


def _rights(doing: str, message: str) -> ProviderFailed:
    found = _ACTION.search(message)
    if not found:
        return NotAllowed(f"{doing}: {message}", hint="ask an administrator")
    action, scope = found.groups()
    named = _WHO.search(message)
    who = named[1] if named else "YOU"
    role = "'User Access Administrator'" if action.startswith("Microsoft.Authorization/") else "Contributor"
    return NotAllowed(
        f"{doing}: this login may not do {action}",
        hint=f"an administrator runs: az role assignment create --role {role} --assignee {who} --scope {scope}",
    )


def _locked(doing: str, message: str) -> ProviderFailed:
    return ProviderFailed(f"{doing}: it is locked: {message}", hint="remove the lock: az lock list; az lock delete")


def _no_subscription(doing: str, message: str) -> ProviderFailed:
    return NotSetUp(f"{doing}: {message}", hint="az account list shows yours; name one of them in azure.json")


_SPEAK = (
    (_CAPACITY, _capacity),
    (_QUOTA, _quota),
    (_RIGHTS, _rights),
    (_LOCKED, _locked),
    ({"SubscriptionNotFound", "InvalidSubscriptionId"}, _no_subscription),
)


def _causes(error: Exception) -> Iterator[tuple[str, str]]:
    """Codes and messages, the innermost first: a deployment that failed wraps the reason in its own words."""
    yield from _inner(getattr(error, "error", None))


def _inner(found: Any) -> Iterator[tuple[str, str]]:
    for one in getattr(found, "details", None) or ():
        yield from _inner(one)
    if code := getattr(found, "code", None):
        yield code, str(getattr(found, "message", "") or "")


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
