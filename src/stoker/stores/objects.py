"""Object stores of server and client, over obstore."""

from __future__ import annotations

from stoker.errors import StoreFailed
from stoker.stores import Store
from stoker.stores.credential import Credential
from stoker.stores.location import Location


def open_objects(location: Location, credential: Credential) -> Store:
    raise StoreFailed(f"cannot open `{location.url}` yet")
