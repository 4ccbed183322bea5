"""S3 with nothing but the standard library: agents carry this file."""

from __future__ import annotations

from stoker.errors import StoreFailed
from stoker.stores import Store
from stoker.stores.location import Location


def open_bucket(location: Location, token: str) -> Store:
    raise StoreFailed(f"cannot open `{location.url}` yet")
