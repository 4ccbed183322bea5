"""Access tokens: signed claims in the form of a JWT, valid until they expire."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Any

from stoker.twin.refusal import Refused
from stoker.twin.state import CloudState

LIFETIME_S = 3599


def issue(cloud: CloudState, client_id: str, object_id: str, audience: str, unix_now: float) -> dict[str, Any]:
    """The response of a token endpoint."""
    claims = {
        "aud": audience,
        "iss": f"https://sts.windows.net/{cloud.tenant}/",
        "tid": cloud.tenant,
        "appid": client_id,
        "oid": object_id,
        "sub": object_id,
        "iat": int(unix_now),
        "nbf": int(unix_now),
        "exp": int(unix_now) + LIFETIME_S,
        "ver": "1.0",
    }
    head = _text(json.dumps({"alg": "HS256", "typ": "JWT"}).encode())
    body = _text(json.dumps(claims).encode())
    return {
        "token_type": "Bearer",
        "expires_in": LIFETIME_S,
        "ext_expires_in": LIFETIME_S,
        "access_token": f"{head}.{body}.{_sign(cloud.key, f'{head}.{body}')}",
    }


def read(cloud: CloudState, authorization: str, unix_now: float) -> dict[str, Any]:
    """The claims of a request's token. Refused, as in Azure, where it is missing, foreign or expired."""
    kind, _, token = authorization.partition(" ")
    if kind.lower() != "bearer" or not token:
        raise _unauthorized(
            cloud, "AuthenticationFailed", "Authentication failed. The 'Authorization' header is missing."
        )
    signed, _, signature = token.rpartition(".")
    try:
        claims: dict[str, Any] = json.loads(_bytes(signed.split(".")[1]))
        good = hmac.compare_digest(signature, _sign(cloud.key, signed))
    except (IndexError, ValueError):
        good, claims = False, {}
    if not good:
        raise _unauthorized(cloud, "InvalidAuthenticationToken", "The access token is invalid.")
    if claims["exp"] < unix_now or claims["iat"] < int(cloud.tokens_from):
        message = f"The access token expiry UTC time is earlier than current UTC time: exp {claims['exp']}."
        raise _unauthorized(cloud, "ExpiredAuthenticationToken", message)
    return claims


def _unauthorized(cloud: CloudState, code: str, message: str) -> Refused:
    login = f'Bearer authorization_uri="https://login.windows.net/{cloud.tenant}", error="invalid_token"'
    return Refused(401, code, message, headers={"WWW-Authenticate": login})


def _sign(key: str, text: str) -> str:
    return _text(hmac.new(key.encode(), text.encode(), hashlib.sha256).digest())


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


# The twin's directory: created logins, and the identities of VMs and resources.

_ASSIGNMENTS = "Microsoft.Authorization/roleAssignments"


@dataclass(frozen=True, slots=True)
class Person:
    object_id: str
    client_id: str
    name: str
    since: float  # a new one takes a while to be known everywhere


def people(cloud: CloudState) -> list[Person]:
    found = [Person(one.object_id, one.client_id, one.name, float("-inf")) for one in cloud.principals.values()]
    for resource in cloud.resources.values():
        if resource.kind == _ASSIGNMENTS:
            continue
        own = resource.properties.get("principalId") or (resource.body.get("identity") or {}).get("principalId")
        if own:
            client = resource.properties.get("clientId") or own
            found.append(Person(str(own), str(client), resource.name, resource.created_at))
    return found
