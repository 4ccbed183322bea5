"""Shared access signatures of Azure Blob."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.errors import StoreDenied
from stoker.stores.access import Access
from stoker.stores.credential import Credential
from stoker.stores.location import Location


def grant_azure(
    location: Location, credential: Credential, *, reads: Sequence[str], writes: Sequence[str], for_s: float
) -> Access:
    raise StoreDenied(f"`{location.url}` cannot be shared yet")
