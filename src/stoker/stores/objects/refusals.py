"""Translates errors of object stores into ours. Standard library only: agents carry this file."""

from __future__ import annotations

import time

from stoker.errors import AlreadyThere, Missing, NoContainer, StoreDenied, StoreFailed, StoreUnavailable

TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_NO_CONTAINER = {"ContainerNotFound", "NoSuchBucket", "ContainerBeingDeleted", "ContainerDisabled"}
_CLOCK = (
    "RequestTimeTooSkewed",
    "not valid in the specified time frame",
    "Request date header too old",
    "Signed expiry",
)
_EXPIRED = ("ExpiredToken", "Lifetime validation failed", "token is expired", "TokenRefreshRequired", "InvalidToken")
_WRONG_KEY = (
    "SignatureDoesNotMatch",
    "InvalidAccessKeyId",
    "Signature did not match",
    "MAC signature",
    "InvalidAuthenticationInfo",
)
_RIGHTS = (
    "AuthorizationPermissionMismatch",
    "AuthorizationResourceTypeMismatch",
    "AccessDenied",
    "AuthorizationFailure",
)


def refusal(status: int, code: str, message: str, name: str, place: str) -> StoreFailed:
    """The error for a response of `place` (a URL without secrets) about the object `name`."""
    said = " ".join((code, message.split("\n")[0].strip())).strip() or f"status {status}"
    if status == 404 and (code in _NO_CONTAINER or not name):
        return NoContainer(f"`{place}` does not exist", hint="create the container or bucket, or check its name")
    if status == 404:
        return Missing(f"`{name}` not found in the store")
    if status in (401, 403):
        return _denied(said, code, message, place)
    if code in ("ContainerBeingDeleted", "ConditionalRequestConflict", "OperationAborted", "InvalidBlockList"):
        return StoreUnavailable(f"`{place}` is busy: {said}", hint="try again in a minute")
    if status in (409, 412):
        return AlreadyThere(f"`{name}` already exists in the store" if name else f"`{place}`: {said}")
    if status == 429 or code in ("ServerBusy", "SlowDown"):
        return StoreUnavailable(f"`{place}` is throttling requests: {said}", hint="try again in a minute")
    if status in TRANSIENT:
        return StoreUnavailable(f"`{place}` failed with status {status}: {said}", hint="try again in a minute")
    return StoreFailed(f"`{place}` refused `{name}` with status {status}: {said}")


def token_ended(at: float, place: str) -> StoreDenied:
    """Known without a request: not every service says why it refuses a token."""
    ended = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
    return StoreDenied(f"the token for `{place}` expired at {ended}", hint="add a new one: stoker store add")


def unreachable(place: str, error: BaseException | str) -> StoreUnavailable:
    why = str(error).strip() or type(error).__name__
    return StoreUnavailable(
        f"`{place}` is unreachable: {why}", hint="check the address and the network, then try again"
    )


def _denied(said: str, code: str, message: str, place: str) -> StoreDenied:
    text = f"{code} {message}"
    if any(word in text for word in _EXPIRED):
        return StoreDenied(f"the token for `{place}` has expired: {said}", hint="add a new one: stoker store add")
    if any(word in text for word in _CLOCK):
        return StoreDenied(
            f"the token for `{place}` is not valid at this time: {said}",
            hint="it has expired, or this computer's clock is wrong: see `date -u`",
        )
    if any(word in text for word in _WRONG_KEY):
        return StoreDenied(f"`{place}` does not accept the key: {said}", hint="add the right one: stoker store add")
    if any(word in text for word in _RIGHTS):
        return StoreDenied(f"the credential for `{place}` does not permit this: {said}")  # a check knows which right
    return StoreDenied(f"`{place}` refused the credential: {said}", hint="check it with: stoker store check")
