"""Parts of an Azure store for a node: a SAS for each container that it needs, or for a single blob."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from stoker.errors import StoreDenied
from stoker.stores.access import Access, Route
from stoker.stores.azure.client import sas_expires_at
from stoker.stores.azure.containers import BlobContainers, check_room, container_of
from stoker.stores.azure.login import Login
from stoker.stores.azure.rights import (
    READ,
    READ_BLOB,
    WRITE,
    AzureRights,
    delegated_sas,
    rights,
    sas_writes,
    service_sas,
)
from stoker.stores.credential import Credential
from stoker.stores.kinds import Location

Sign = Callable[[Location, str, str], str]  # for a container: permissions, and one blob; empty: all


def grant_azure(
    location: Location, credential: Credential, *, reads: Sequence[str], writes: Sequence[str], for_s: float
) -> Access:
    place, held = rights(location, credential)
    prefixes = sorted({*reads, *writes})
    if not held.splits:
        return _as_it_is(place, held, prefixes, writes)
    check_room(place)
    sign = _signer(place, held, for_s)
    routes = []
    for prefix in prefixes:
        where, inside = container_of(place, prefix)
        token = sign(where, *_rights_for(prefix, inside, writes))
        routes.append(Route(prefix, _below(where, inside), token, prefix in writes))
    return Access(tuple(routes), time.time() + for_s)


def _rights_for(prefix: str, inside: str, writes: Sequence[str]) -> tuple[str, str]:
    """A prefix that does not end with `/` is one blob, and read-only."""
    if prefix in writes:
        return WRITE, ""
    return (READ_BLOB, inside) if prefix and not prefix.endswith("/") else (READ, "")


def _signer(place: Location, held: AzureRights, for_s: float) -> Sign:
    if held.key:
        return lambda where, permissions, blob: service_sas(where, held.key, permissions, for_s, blob)
    assert held.login
    delegation = _delegation(place, Login(held.login), for_s)
    return lambda where, permissions, blob: delegated_sas(where, delegation, permissions, for_s, blob)


def _delegation(place: Location, login: Login, for_s: float) -> dict[str, str]:
    """A key with which a login can sign, for at most seven days."""
    account = BlobContainers(place, lambda: ("", {"Authorization": f"Bearer {login.token()}"}))
    now = time.time()
    start, end = (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now + part)) for part in (-900, for_s + 900))
    body = f'<?xml version="1.0" encoding="utf-8"?><KeyInfo><Start>{start}</Start><Expiry>{end}</Expiry></KeyInfo>'
    answer = account.ask_xml("restype=service&comp=userdelegationkey", body.encode())
    return {one.tag: one.text or "" for one in answer}


def _as_it_is(place: Location, held: AzureRights, prefixes: Sequence[str], writes: Sequence[str]) -> Access:
    """A SAS cannot make another one: the node gets this one, whose end and rights its maker chose."""
    may_write = bool(held.sas) and sas_writes(held.sas)
    if not may_write and writes:
        raise StoreDenied(f"the credential for `{place.url}` only reads, and `{next(iter(writes))}` is to be written")
    routes = tuple(Route(prefix, _below(place, prefix), held.sas, prefix in writes) for prefix in prefixes)
    return Access(routes, sas_expires_at(held.sas))


def _below(location: Location, prefix: str) -> str:
    inside = location.prefix + prefix
    return Location(location.kind, location.endpoint, location.account, location.container, inside).url
