"""Gives a node or a client a part of a store, for a while: only what it may read and write, never the credential."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.stores.access import Access, Route
from stoker.stores.credential import NOTHING, Credential
from stoker.stores.location import StoreKind, locate


def grant(
    store_url: str, credential: Credential | None, *, reads: Sequence[str], writes: Sequence[str], for_s: float
) -> Access:
    """`reads` and `writes` are prefixes of keys, such as `runs/<id>/`; what may be written may be read and listed too.
    What does not end with `/` is the key of one object, to be read and not listed.

    On Azure a token is for one blob or for a container: `containers` says which keys share one.
    Raises StoreDenied, in words, where the credential cannot be split into something narrower.
    """
    location = locate(store_url)
    if location.kind is StoreKind.FOLDER:
        return Access(tuple(_folder_route(location.prefix, prefix, prefix in writes) for prefix in _all(reads, writes)))
    if location.kind is StoreKind.AZURE:
        from stoker.stores.azure.sas import grant_azure

        return grant_azure(location, credential or NOTHING, reads=reads, writes=writes, for_s=for_s)
    from stoker.stores.s3.sts import grant_s3

    return grant_s3(location, credential or NOTHING, reads=reads, writes=writes, for_s=for_s)


def splits(store_url: str, credential: Credential) -> bool:
    """Whether a part of the store can be given, rather than the credential itself."""
    location = locate(store_url)
    if location.kind is not StoreKind.AZURE:
        return True
    from stoker.stores.azure.rights import rights

    return rights(location, credential)[1].splits


def _all(reads: Sequence[str], writes: Sequence[str]) -> list[str]:
    return sorted({*reads, *writes})


def _folder_route(root: str, prefix: str, writes: bool) -> Route:
    place = f"{root.rstrip('/')}/{prefix}".rstrip("/") or "/"
    return Route(prefix, locate(place).url, "", writes)
