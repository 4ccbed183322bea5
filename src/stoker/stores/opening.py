"""Opens a store by its URL, for server and client. Agents use `nodeaccess`, which needs no third party."""

from __future__ import annotations

from pathlib import Path

from stoker.stores import Store
from stoker.stores.access import Access, Route
from stoker.stores.credential import NOTHING, Credential, CredentialKind
from stoker.stores.folder.store import FolderStore
from stoker.stores.location import StoreKind, locate
from stoker.stores.nodeaccess import AccessStore, folder_of, place_of


def open_store(url: str, credential: Credential | None = None) -> Store:
    """Nothing is asked of the store yet. Raises BadInput where URL and credential do not go together."""
    location = locate(url)
    if location.kind is StoreKind.FOLDER:
        return FolderStore(Path(location.prefix))
    from stoker.stores.objects.library import open_objects  # obstore takes longer to load than most commands may

    return open_objects(location, credential or NOTHING)


def open_granted(access: Access) -> AccessStore:
    """What `open_access` gives a node, for a client: over obstore, which needs less of the processor."""
    return AccessStore(access, _open_route)


def _open_route(route: Route) -> Store:
    location = place_of(route)
    if location.kind is StoreKind.FOLDER:
        return folder_of(route)
    from stoker.stores.objects.library import open_objects  # as above
    from stoker.stores.s3.client import keys_from_text

    if location.kind is StoreKind.AZURE:
        return open_objects(
            location, Credential(CredentialKind.SAS, {"token": route.token}) if route.token else NOTHING
        )
    keys = keys_from_text(route.token)
    values = {"id": keys.id, "secret": keys.secret, "session": keys.session}
    return open_objects(location, Credential(CredentialKind.S3_KEY, values))
