"""Kinds of stores: their descriptions, and how they are found. Standard library only: agents carry this file.

A kind is a class behind an entry point of the group `stoker.stores`. An agent has the kinds that are packed with it.
"""

from __future__ import annotations

import json
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Protocol
from urllib.parse import parse_qs

from stoker.errors import BadInput, StokerError
from stoker.stores import Store
from stoker.stores.access import NONE, NOTHING, Access, Credential, MountProgram, Route

GROUP = "stoker.stores"
CARRIED = "carried.json"  # in a packed agent, next to this file: its kinds, by name


@dataclass(frozen=True, slots=True)
class Location:
    """Where a store is. `endpoint` is the address of the service, empty for the public one of the kind; `prefix` ends
    with `/` unless it is empty. For a folder only `prefix` is set: the path."""

    kind: str
    endpoint: str = ""
    account: str = ""
    container: str = ""
    prefix: str = ""
    region: str = ""

    @property
    def url(self) -> str:
        """The same location in canonical form, without a secret."""
        return named(self.kind).spell(self)

    @property
    def local(self) -> bool:
        """Whether it is on this computer, and needs neither a network nor a token."""
        return named(self.kind).local


@dataclass(frozen=True, slots=True)
class Grant:
    """A part of a store, for a limited time. `reads` and `writes` are prefixes of keys, such as `runs/<id>/`; what may
    be written may be read and listed too. A prefix that does not end with `/` is the key of one object, which can be
    read, not listed."""

    reads: Sequence[str]
    writes: Sequence[str]
    for_s: float

    @property
    def prefixes(self) -> list[str]:
        return sorted({*self.reads, *self.writes})


@dataclass(frozen=True, slots=True)
class CredentialForm:
    """One way to open stores of a kind. Value names after a `?` are optional. Where `asked` is empty, nothing is asked:
    the login of this machine is used. `read` parses a user's text, and `recognise` says whether a text has this form,
    for users who do not name one."""

    name: str
    values: tuple[str, ...] = ()
    flag: str = ""  # of `stoker store add`
    help: str = ""
    asked: str = ""
    read: Callable[[str], Mapping[str, str]] = field(default=lambda _text: {})
    recognise: Callable[[str], bool] = field(default=lambda _text: False)


class NodeKind(Protocol):
    """What a node needs of a kind, with only the standard library. `carried` names the modules for it, besides that of
    the class. Kinds inherit from `StoreKind`, and override what differs."""

    name: str
    schemes: tuple[str, ...]  # of its URLs; "" stands for text that is not a URL
    forms: tuple[str, ...]  # of its URLs, for messages
    local: bool = False  # on this computer
    carried: tuple[str, ...] = ()

    def locate(self, url: str) -> Location:
        """Raises ValueError with a message."""
        ...

    def spell(self, location: Location) -> str:
        """The URL that `locate` reads as this location."""
        ...

    def open_on_node(self, route: Route, place: Location) -> Store:
        """`place` is where the keys of the route are, without its prefix."""
        ...

    def mounts(self) -> Sequence[MountProgram]:
        """The programs that can mount it, best first; empty where mounts are not supported."""
        return ()


class StoreKind(NodeKind, Protocol):
    """What server and client need in addition. Import third-party packages inside these methods."""

    credentials: tuple[CredentialForm, ...] = ()  # besides none at all
    # Whether a token is for a prefix, so that one for the empty prefix would open the whole store.
    grants_prefixes: bool = False
    # What a user can do where `stoker store check` failed: to write, list, read, use a run folder or delete.
    advice: Mapping[str, str] = MappingProxyType({})

    def endpoint(self, location: Location) -> str:
        """The address of its service; empty on this computer."""
        ...

    def open(self, location: Location, credential: Credential) -> Store:
        """Sends no request. Raises BadInput for a credential of the wrong kind."""
        ...

    def open_route(self, route: Route, place: Location) -> Store:
        """As `open_on_node`, for a client, which has third-party packages."""
        ...

    def grant(self, location: Location, credential: Credential, part: Grant) -> Access:
        """Raises StoreDenied where the credential cannot be restricted."""
        ...

    def unsplit(self, location: Location, credential: Credential) -> str:
        """Empty where `grant` gives less than the credential itself; else what a user can do about it."""
        return ""

    def expires_at(self, credential: Credential) -> float:
        """When the credential expires, in unix seconds; 0 where it does not, or does not say."""
        return 0.0


@cache
def kinds() -> Mapping[str, StoreKind]:
    """Every installed kind, by name; in an agent, every kind that it carries."""
    found = _carried() or _installed()
    if not found:
        raise StokerError("no kind of store is installed", hint="reinstall Stoker: `pip install --force stoker`")
    made: list[StoreKind] = [pkgutil.resolve_name(value)() for value in found.values()]
    return {kind.name: kind for kind in made}


def named(name: str) -> StoreKind:
    return kinds()[name]


def kind_of(url: str) -> StoreKind:
    return named(locate(url).kind)


def locate(url: str) -> Location:
    """Raises BadInput for a URL that does not name a store. Text that is not a URL is the path of a folder."""
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    for kind in kinds().values():
        if scheme in kind.schemes:
            try:
                return kind.locate(url)
            except ValueError as error:
                why = f"`{without_secrets(url)}` is not the URL of a store: {error}"
                raise BadInput(why, hint=f"write {' or '.join(kind.forms)}") from None
    forms = [form for kind in kinds().values() for form in kind.forms]
    raise BadInput(f"no store has URLs with `{scheme}://`", hint=f"use one of {', '.join(forms)}")


def without_secrets(url: str) -> str:
    """A URL for messages: without signatures and passwords."""
    address, _, query = url.partition("?")
    kept = "&".join(part for part in query.split("&") if part.startswith(("endpoint=", "region=")))
    return re.sub(r"//[^/@]*@", "//", address) + (f"?{kept}" if kept else "")


def inner_prefix(path: str) -> str:
    """A path inside a container or bucket, in the form of `Location.prefix`. Raises ValueError."""
    names = path.strip("/").split("/") if path.strip("/") else []
    if any(name in ("", ".", "..") for name in names) or "\0" in path:
        raise ValueError(f"`{path}` is not a path inside it")
    return "".join(f"{name}/" for name in names)


def url_settings(query: str, *names: str) -> dict[str, str]:
    """The settings after the `?` of a bucket's URL; empty text for missing ones. Raises ValueError."""
    found = {name: values[-1] for name, values in parse_qs(query, strict_parsing=True).items()} if query else {}
    if unknown := set(found) - set(names):
        raise ValueError(f"unknown setting `{sorted(unknown)[0]}` of a bucket, expected {' or '.join(names)}")
    settings = {name: found.get(name, "") for name in names}
    settings["endpoint"] = settings["endpoint"].rstrip("/")
    if settings["endpoint"] and not re.fullmatch(r"https?://[^/@]+(/.*)?", settings["endpoint"]):
        raise ValueError(f"the endpoint `{settings['endpoint']}` is not an http address")
    return settings


def grant(
    store_url: str, credential: Credential | None, *, reads: Sequence[str], writes: Sequence[str], for_s: float
) -> Access:
    """Gives a node or a client access to a part of a store: only what it may read and write, never the credential."""
    location = locate(store_url)
    return named(location.kind).grant(location, credential or NOTHING, Grant(reads, writes, for_s))


def check_credential(location: Location, credential: Credential) -> None:
    """Raises BadInput where such a credential does not fit this kind of store, or lacks a value."""
    if credential.kind == NONE and not credential.values:
        return
    forms = {form.name: form for form in named(location.kind).credentials}
    if credential.kind not in forms:
        known = ", ".join(forms) or "none"
        raise BadInput(f"a credential of the kind `{credential.kind}` does not work for `{location.url}`; use {known}")
    values = forms[credential.kind].values
    for name in values:
        if not name.startswith("?") and not credential.values.get(name):
            raise BadInput(f"a credential of the kind `{credential.kind}` requires its {name}")
    if unknown := sorted(set(credential.values) - {name.lstrip("?") for name in values}):
        raise BadInput(f"a credential of the kind `{credential.kind}` has no `{unknown[0]}`")


def _carried() -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads(pkgutil.get_data("stoker.stores", CARRIED) or b"{}")
    except OSError:
        return {}
    return found


def _installed() -> dict[str, str]:
    from importlib.metadata import entry_points  # takes longer to load than a packed agent needs to begin

    return {entry.name: entry.value for entry in entry_points(group=GROUP)}
