"""Azure's error responses: its own codes and messages, as an exception."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


class Refused(Exception):
    """A response with an error body. `details` are the inner errors of a deployment; `more` are further fields."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        details: Sequence[Mapping[str, Any]] = (),
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})
        self.details = tuple(details)
        self.more = dict(more or {})

    def body(self) -> dict[str, Any]:
        error: dict[str, Any] = {"code": self.code, "message": self.message, **self.more}
        return {**error, "details": list(self.details)} if self.details else error


def group_not_found(name: str) -> Refused:
    return Refused(404, "ResourceGroupNotFound", f"Resource group '{name}' could not be found.")


def not_found(kind: str, name: str, group: str) -> Refused:
    return Refused(
        404,
        "ResourceNotFound",
        f"The Resource '{kind}/{name}' under resource group '{group}' was not found. "
        "For more details please go to https://aka.ms/ARMResourceNotFoundFix",
    )


def parent_not_found(parent: str) -> Refused:
    return Refused(
        404,
        "ParentResourceNotFound",
        f"Failed to perform 'write' on resource(s) because the parent resource '{parent}' could not be found.",
    )


def invalid(message: str, code: str = "InvalidParameter") -> Refused:
    return Refused(400, code, message)


def unreadable(message: str) -> Refused:
    """A malformed body."""
    return invalid(
        f"The request content was invalid and could not be deserialized: '{message}'.", "InvalidRequestContent"
    )


def conflict(message: str, code: str = "Conflict") -> Refused:
    return Refused(409, code, message)


def allocation_failed(size: str, region: str) -> Refused:
    return Refused(
        409,
        "AllocationFailed",
        f"Allocation failed. We do not have sufficient capacity for the requested VM size {size} in region {region}. "
        "Read more about improving likelihood of allocation success at http://aka.ms/allocation-guidance",
    )


def overconstrained(size: str, near: str) -> Refused:
    """There may be capacity in the region, but none where the others of the placement group are."""
    return Refused(
        409,
        "OverconstrainedAllocationRequest",
        "Allocation failed. VM(s) with the following constraints cannot be allocated, because the condition is too "
        "restrictive. Please remove some constraints and try again. Constraints applied are: - VM Size: "
        f"{size} - Proximity placement group: {near.rsplit('/', 1)[-1]}",
    )


def sku_not_available(size: str, region: str) -> Refused:
    return Refused(
        409,
        "SkuNotAvailable",
        f"The requested VM size for resource 'Following SKUs have failed for Capacity Restrictions: {size}' is "
        f"currently not available in location '{region}'. Please try another size or deploy to a different location "
        "or different zone. See https://aka.ms/azureskunotavailable for details.",
    )


def deployment_failed(details: Sequence[Mapping[str, Any]], *, as_text: bool) -> dict[str, Any]:
    """`as_text`: the error of a part is given as JSON text, as Azure does at times."""
    message = (
        "At least one resource deployment operation failed. Please list deployment operations for details. "
        "Please see https://aka.ms/arm-deployment-operations for usage details."
    )
    if as_text:
        details = [{"code": "Conflict", "message": json.dumps({"error": one}, indent=2)} for one in details]
    return {"code": "DeploymentFailed", "message": message, "details": list(details)}


_COUNTED = '{"operationGroup":"HighCostGet3Min","allowedRequestCount":190,"measuredRequestCount":233}'


def throttled(retry_after_s: int, path: str = "") -> Refused:
    """The compute service counts requests by itself, and refuses them with the code of a quota."""
    if "/microsoft.compute/" in path.lower():
        return Refused(
            429,
            "OperationNotAllowed",
            "The server rejected the request because too many requests have been received for this subscription.",
            headers={"Retry-After": str(retry_after_s)},
            details=[{"code": "TooManyRequests", "target": "HighCostGet3Min", "message": _COUNTED}],
        )
    return Refused(
        429,
        "TooManyRequests",
        "The request is being throttled as the limit has been reached for operation type. "
        f"Please retry after {retry_after_s} seconds.",
        headers={"Retry-After": str(retry_after_s)},
    )


def locked(scope: str, lock_scope: str, verb: str) -> Refused:
    return Refused(
        409,
        "ScopeLocked",
        f"The scope '{scope}' cannot perform {verb} operation because following scope(s) are locked: "
        f"'{lock_scope}'. Please remove the lock and try again.",
    )
