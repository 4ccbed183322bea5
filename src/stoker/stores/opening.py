"""Opens a store by its URL, for server and client. Agents use `nodeaccess`, which needs no third party."""

from __future__ import annotations

from pathlib import Path

from stoker.stores import Store
from stoker.stores.credential import NOTHING, Credential
from stoker.stores.folder import FolderStore
from stoker.stores.location import StoreKind, locate


def open_store(url: str, credential: Credential | None = None) -> Store:
    """Nothing is asked of the store yet. Raises BadInput where URL and credential do not go together."""
    location = locate(url)
    if location.kind is StoreKind.FOLDER:
        return FolderStore(Path(location.prefix))
    from stoker.stores.objects import open_objects  # obstore takes longer to load than most commands may

    return open_objects(location, credential or NOTHING)
