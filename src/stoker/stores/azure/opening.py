"""Azure Blob for server and client, over obstore."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from obstore.store import AzureStore

from stoker.stores import Store
from stoker.stores.access import Credential
from stoker.stores.azure.client import BlobBucket, sas_expires_at
from stoker.stores.azure.containers import BlobContainers, ManyContainers, check_room
from stoker.stores.azure.rights import AzureRights, Login, account_sas, rights
from stoker.stores.kinds import Location
from stoker.stores.objects.bucket import ObjectStore
from stoker.stores.objects.library import RETRY, ObstoreBucket, client_options

_HOUR_S = 3600.0


def open_azure(location: Location, credential: Credential) -> Store:
    place, held = rights(location, credential)
    login = Login(held.login) if held.login else None

    def open_container(one: Location) -> ObstoreBucket:
        raw = BlobBucket(one, _signing(one, held, login))
        # Large contents are sent in blocks named by their content, so that an upload can be resumed.
        large = raw if held.sas else None
        return ObstoreBucket(one.url, _opened(one, held, login), raw, sas_expires_at(held.sas), large)

    if not held.splits:
        return ObjectStore(location.url, open_container(place))
    check_room(place)
    account = BlobContainers(place, _signing(place, held, login))
    return ObjectStore(location.url, ManyContainers(place, account, open_container))


def _signing(location: Location, held: AzureRights, login: Login | None) -> Callable[[], tuple[str, dict[str, str]]]:
    def sign() -> tuple[str, dict[str, str]]:
        if login:
            return "", {"Authorization": f"Bearer {login.token()}"}
        return (account_sas(location, held.key, _HOUR_S) if held.key else held.sas), {}

    return sign


def _opened(location: Location, held: AzureRights, login: Login | None) -> AzureStore:
    settings: dict[str, Any] = {"account_name": location.account, "endpoint": location.endpoint}
    provider: Callable[[], Any] | None = None
    if held.key:
        settings["account_key"] = held.key
    elif held.sas:
        settings["sas_key"] = held.sas
    elif login:
        provider = _token_of(login)
    else:
        settings["skip_signature"] = True
    return AzureStore(
        location.container,
        prefix=location.prefix.removesuffix("/") or None,
        client_options=client_options(location.endpoint),
        retry_config=RETRY,
        credential_provider=provider,
        **settings,
    )


def _token_of(login: Login) -> Callable[[], dict[str, Any]]:
    def provide() -> dict[str, Any]:
        token = login.token()
        return {"token": token, "expires_at": datetime.fromtimestamp(login.expires_at, UTC)}

    return provide
