"""The stores of a workspace, for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from stoker.client.api.connection import Connection
from stoker.model import wire
from stoker.model.workspace.store import KnownStore, StoreFinding
from stoker.stores.access import Access
from stoker.stores.kinds import CredentialForm, kind_of, kinds

__all__ = ["Added", "CredentialForm", "Stores", "credential_forms"]

_CHECK_S = 120.0  # requests to an unavailable store are retried


@dataclass(frozen=True, slots=True)
class Added:
    """`store` is None if the test failed: then nothing was saved."""

    store: KnownStore | None
    findings: tuple[StoreFinding, ...] = ()


class Stores:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[KnownStore]:
        """The folder first, then the others by name."""
        return [wire.from_plain(KnownStore, row) for row in self._connection.get("/v1/stores")["stores"]]

    def add(
        self,
        name: str,
        url: str,
        kind: str = "none",
        values: Mapping[str, str] | None = None,
        *,
        check: bool = True,
        use: bool = False,
        moved_from: str = "",
        shared: bool | None = None,
    ) -> Added:
        """Tests it first, unless `check` is off. The same name and URL again replaces the credential. For a store that
        has moved, give its old URL. With `shared`, remote nodes may get a SAS that cannot be restricted."""
        asked = {"name": name, "url": url, "credential": kind, "values": dict(values or {}), "check": check, "use": use}
        asked |= {"moved_from": moved_from, "shared": shared}
        return wire.from_plain(Added, self._connection.post("/v1/stores", asked, timeout_s=_CHECK_S))

    def check(self, name: str) -> list[StoreFinding]:
        """What works and what does not."""
        told = self._connection.post(f"{_path(name)}/check", timeout_s=_CHECK_S)
        return [wire.from_plain(StoreFinding, one) for one in told["findings"]]

    def use(self, name: str) -> KnownStore:
        """New runs are stored there from now on."""
        return wire.from_plain(KnownStore, self._connection.post(f"{_path(name)}/use"))

    def remove(self, name: str) -> None:
        """Removes it and its credential; its content stays."""
        self._connection.delete(_path(name))

    def access(self, name: str, *, reads: Sequence[str] = (), writes: Sequence[str] = ()) -> Access:
        """Temporary access to a part of a store, for `stoker.stores.opening.open_access`."""
        asked = {"reads": list(reads), "writes": list(writes)}
        return Access.from_text(self._connection.post(f"{_path(name)}/access", asked)["access"])


def credential_forms(url: str = "") -> list[CredentialForm]:
    """The credentials that a store with this URL supports; without a URL, those of every kind of store."""
    return [form for kind in ([kind_of(url)] if url else kinds().values()) for form in kind.credentials]


def _path(name: str) -> str:
    return f"/v1/stores/{quote(name, safe='')}"
