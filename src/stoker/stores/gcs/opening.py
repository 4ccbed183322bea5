"""Google Cloud Storage for server and client, over obstore."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from obstore.store import GCSStore

from stoker.stores import Store
from stoker.stores.gcs.client import GcsBucket
from stoker.stores.gcs.tokens import Tokens
from stoker.stores.kinds import Location
from stoker.stores.objects.bucket import ObjectStore
from stoker.stores.objects.library import RETRY, ObstoreBucket, client_options


def open_gcs(location: Location, held: Tokens | str) -> Store:
    """`held` gives tokens, or is one; empty for what is public."""
    token = held.token if isinstance(held, Tokens) else lambda: held
    raw = GcsBucket(location, token)
    return ObjectStore(location.url, ObstoreBucket(location.url, _opened(location, held), raw))


def _opened(location: Location, held: Tokens | str) -> GCSStore:
    settings: dict[str, Any] = {"base_url": location.endpoint} if location.endpoint else {}
    if held == "" or (isinstance(held, Tokens) and held.public):
        settings["skip_signature"] = True
    else:
        settings["credential_provider"] = _token_of(held)
    return GCSStore(
        location.container,
        prefix=location.prefix.removesuffix("/") or None,
        client_options=client_options(location.endpoint),
        retry_config=RETRY,
        **settings,
    )


def _token_of(held: Tokens | str) -> Callable[[], dict[str, Any]]:
    def provide() -> dict[str, Any]:
        if isinstance(held, str):
            return {"token": held, "expires_at": None}
        token = held.token()
        return {"token": token, "expires_at": datetime.fromtimestamp(held.expires_at, UTC)}

    return provide
