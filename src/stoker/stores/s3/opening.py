"""S3 for server and client, over obstore."""

from __future__ import annotations

from typing import Any

from obstore.store import S3Store

from stoker.stores import Store
from stoker.stores.access import NONE, Credential
from stoker.stores.kinds import Location
from stoker.stores.objects.bucket import ObjectStore
from stoker.stores.objects.library import RETRY, ObstoreBucket, client_options
from stoker.stores.s3.client import DEFAULT_REGION, Keys, S3Bucket


def open_s3(location: Location, credential: Credential) -> Store:
    raw = S3Bucket(location, _keys(credential)) if "id" in credential.values else None
    return ObjectStore(location.url, ObstoreBucket(location.url, _opened(location, credential), raw))


def _keys(credential: Credential) -> Keys:
    return Keys(credential.values["id"], credential.values["secret"], credential.values.get("session", ""))


def _opened(location: Location, credential: Credential) -> S3Store:
    """A login comes from the machine's environment."""
    settings: dict[str, Any] = {"region": location.region or DEFAULT_REGION}
    if location.endpoint:
        settings["endpoint"] = location.endpoint
    if credential.kind == NONE:
        settings["skip_signature"] = True
    elif "id" in credential.values:
        keys = _keys(credential)
        settings |= {"access_key_id": keys.id, "secret_access_key": keys.secret}
        settings |= {"session_token": keys.session} if keys.session else {}
    return S3Store(
        location.container,
        prefix=location.prefix.removesuffix("/") or None,
        client_options=client_options(location.endpoint),
        retry_config=RETRY,
        **settings,
    )
