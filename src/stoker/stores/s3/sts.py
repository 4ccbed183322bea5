"""Parts of an S3 bucket for a node: temporary keys with a policy for its prefixes, from the store's token service."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import urlencode, urlsplit

from stoker.errors import StoreDenied, StoreFailed
from stoker.stores.access import NONE, Access, Credential, Route
from stoker.stores.kinds import Location
from stoker.stores.objects.wire import Request, Wire, within
from stoker.stores.s3.client import DEFAULT_REGION, Keys, Signer, keys_text, payload_hash

_SHORTEST_S = 900
_LONGEST_S = 12 * 3600
_ANY_ROLE = "arn:aws:iam::000000000000:role/stoker"  # services without roles still require one


def grant_s3(
    location: Location, credential: Credential, *, reads: Sequence[str], writes: Sequence[str], for_s: float
) -> Access:
    prefixes = sorted({*reads, *writes})
    if credential.kind == NONE:
        raise StoreDenied(f"`{location.url}` has no credential, so a node cannot get a part of it")
    if "id" not in credential.values:
        raise StoreDenied(
            f"a `{credential.kind}` for S3 cannot be restricted for a node", hint="stoker store add --s3-key"
        )
    lasting_s = min(max(int(for_s), _SHORTEST_S), _LONGEST_S)
    keys, expires_at = _temporary(location, credential, policy(location, reads, writes), lasting_s)
    token = keys_text(keys)
    routes = [Route(one, replace(location, prefix=location.prefix + one).url, token, one in writes) for one in prefixes]
    return Access(tuple(routes), expires_at)


def policy(location: Location, reads: Sequence[str], writes: Sequence[str]) -> dict[str, Any]:
    """The rights of the temporary keys: never more than those of the keys they are made from. A prefix that does not
    end with `/` is one object, which can be read, not listed."""
    bucket = f"arn:aws:s3:::{location.container}"
    asked = {*reads, *writes}
    folders = sorted(f"{location.prefix}{one}*" for one in asked if not one or one.endswith("/"))
    objects = sorted(f"{location.prefix}{one}" for one in asked if one and not one.endswith("/"))
    statements: list[dict[str, Any]] = [
        {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": [f"{bucket}/{one}" for one in folders + objects]}
    ]
    if folders:
        only = {"StringLike": {"s3:prefix": folders}}
        listing = {"Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": [bucket], "Condition": only}
        statements.append(listing)
    if writes:
        resources = sorted(f"{bucket}/{location.prefix}{one}*" for one in writes)
        actions = ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
        statements.append({"Effect": "Allow", "Action": actions, "Resource": resources})
    return {"Version": "2012-10-17", "Statement": statements}


def _temporary(location: Location, credential: Credential, limits: dict[str, Any], for_s: int) -> tuple[Keys, float]:
    values = credential.values
    region = location.region or DEFAULT_REGION
    endpoint = location.endpoint or f"https://sts.{region}.amazonaws.com"
    asked = {"Version": "2011-06-15", "DurationSeconds": str(for_s), "Policy": json.dumps(limits)}
    if location.endpoint or values.get("role"):
        role = values.get("role") or _ANY_ROLE
        asked |= {"Action": "AssumeRole", "RoleArn": role, "RoleSessionName": "stoker"}
    else:  # keys of a user, who needs no role for it
        asked |= {"Action": "GetFederationToken", "Name": "stoker"}
    body = urlencode(asked).encode()
    signer = Signer(Keys(values["id"], values["secret"], values.get("session", "")), region, "sts")
    form = {"content-type": "application/x-www-form-urlencoded"}
    host = urlsplit(endpoint).netloc

    def make() -> Request:
        signed = signer.headers("POST", host, "/", {}, form, payload_hash(body, secure=False))
        return Request("POST", "/", signed, body)

    try:
        reply = Wire(endpoint).ask(make)
    except StoreFailed as error:
        raise StoreDenied(f"the token service of `{location.url}` does not answer: {error.message}") from error
    found = {
        name: within(reply.body, name) for name in ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")
    }
    if reply.status != 200 or not all(found.values()):
        said = " ".join((within(reply.body, "Code"), within(reply.body, "Message"))).strip() or f"status {reply.status}"
        raise StoreDenied(
            f"`{location.url}` refused temporary keys for a part of it: {said}",
            hint="nodes elsewhere require a store with a token service (STS); runs on this computer do not",
        )
    keys = Keys(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])
    return keys, _moment(found["Expiration"], for_s)


def _moment(text: str, for_s: int) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return time.time() + for_s
