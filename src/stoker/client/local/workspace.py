"""The workspaces of this computer: those whose hand-over files were added, and the one in use."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stoker.client.api.client import Client
from stoker.client.api.resources import Stores
from stoker.client.local import launch, rehearsal, twin
from stoker.client.settings import ClientSettings
from stoker.errors import BadInput, Conflict, NotFound
from stoker.files import write_whole
from stoker.model.cause import Cause
from stoker.model.job.fields import nearest
from stoker.model.workspace.handover import (
    MOST_BYTES,
    AccountForm,
    AddressField,
    Handover,
    TeamStore,
    checked_workspace,
    read_handover,
)
from stoker.model.workspace.home import Home
from stoker.model.workspace.store import StoreFinding, works
from stoker.stores.kinds import locate


@dataclass(frozen=True, slots=True)
class Joined:
    """`findings` are the checks of its store; if one failed, nothing has changed. `kept` are the user's own files that
    were renamed, under their new names."""

    handover: Handover
    works: bool
    findings: tuple[StoreFinding, ...] = ()
    kept: tuple[str, ...] = ()


class Workspaces:
    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._home: Home = settings.home

    def all(self) -> list[Handover]:
        """By name. A file that cannot be read is reported when it is used."""
        found = []
        for path in sorted(self._home.workspaces.glob("*.json")):
            try:
                found.append(self._read(path))
            except BadInput:
                continue
        return found

    @property
    def in_use(self) -> str:
        """The name of the one in use; empty if none is."""
        try:
            return str(json.loads(self._home.workspace.read_bytes())["name"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def named(self, name: str) -> Handover:
        path = self._home.workspaces / f"{name}.json"
        if not _is_name(name) or not path.is_file():
            near = nearest(name, [one.name for one in self.all()])
            hint = f"did you mean `{near}`?" if near else "list them with `stoker workspace ls`"
            raise NotFound(f"no file or workspace named `{name}`", hint=hint, cause=Cause.NO_WORKSPACE)
        return self._read(path)

    def read(self, word: str) -> Handover:
        """A hand-over file, or the name of a known workspace."""
        path = Path(word).expanduser()
        return self._read(path) if _is_file(path) else self.named(word)

    def strange(self, handover: Handover) -> list[TrustedPlace]:
        """Hosts and folders of the file that are neither a provider's own, nor of this user's own twin, nor trusted
        when this workspace was last used. Raises BadInput for a file that impersonates a provider."""
        known = {one.where for one in self._known_places(handover.name)}
        own = of_own_twin(self._settings)
        found = places(handover, self._forms)
        return [one for one in found if one.where not in known and not one.trusted(own)]

    def use(self, handover: Handover, trusted: Collection[str] = ()) -> Joined:
        """This computer's server uses the accounts and the store of the workspace, if the store works. `trusted` are
        hosts and folders that the user has agreed to: any other that is `strange` is refused."""
        settings = self._settings
        if not settings.local:
            raise BadInput(
                f"the administrator of the server at {settings.server} chooses its workspace",
                hint="unset STOKER_SERVER",
                cause=Cause.ELSEWHERE,
            )
        _refuse_strange([one for one in self.strange(handover) if not one.trusted(trusted)])
        new = [name for name in handover.accounts if self._account(name) != self._wanted(handover, name)]
        self._refuse_live(new)
        launch.stop(settings)  # the next one has the current user's login
        if handover.certificate:
            _write(self._certificate(handover), handover.certificate)
        findings = self._add(handover, handover.store) if handover.store else ()
        if not works(findings):
            return Joined(handover, works=False, findings=findings)
        _write(self._home.workspaces / f"{handover.name}.json", handover.to_text())
        kept = tuple(filter(None, (self._give(handover, name) for name in new)))
        _write(self._home.workspace, json.dumps({"name": handover.name}))
        if new:
            launch.stop(settings)  # a server reads its accounts once
        return Joined(handover, works=True, findings=findings, kept=kept)

    def _refuse_live(self, providers: list[str]) -> None:
        """A server with another account would count the machines of these runs as lost."""
        if not providers or launch.find(self._home) is None:
            return
        runs = Client.connect(self._settings).runs(state="active", limit=1000)
        live = [run.name for run in runs if run.job.on in providers]
        if live:
            more = f", and {len(live) - 1} more" if live[1:] else ""
            raise Conflict(
                f"{live[0]} is active{more}: another workspace could not see its machine",
                hint=f"wait for it, or stoker cancel {live[0]}",
                cause=Cause.RUN_ACTIVE,
            )

    def _add(self, handover: Handover, store: TeamStore) -> tuple[StoreFinding, ...]:
        stores = Stores(Client.connect(self._settings).connection)
        values = {**store.values, **self._vouched(handover)} if store.credential == "login" else store.values
        added = stores.add(store.name, store.url, store.credential, values, use=store.default)
        return added.findings

    def _vouched(self, handover: Handover) -> dict[str, str]:
        """The certificate's file, as providers and stores name it. It is this computer's own, never a path from the
        hand-over."""
        return {"ca_file": str(self._certificate(handover))} if handover.certificate else {}

    def _certificate(self, handover: Handover) -> Path:
        return self._home.workspaces / f"{handover.name}.pem"

    def _account(self, provider: str) -> dict[str, Any] | None:
        try:
            found = json.loads(self._file(provider).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _wanted(self, handover: Handover, provider: str) -> Mapping[str, Any]:
        """The account, with what its user has added, such as an ssh key, while it was in this workspace."""
        there, given = self._account(provider) or {}, {**handover.accounts[provider], **self._vouched(handover)}
        if there.get("ca_file") == str(self._certificate(handover)):  # of an earlier file, not of its user
            there = {word: value for word, value in there.items() if word != "ca_file"}
        return {**there, **given} if _same(there, given) else given

    def _give(self, handover: Handover, provider: str) -> str:
        """Writes a provider's account. Returns the new name of the previous file, if it was written by hand."""
        path, before = self._file(provider), self._account(provider)
        wanted, aside = self._wanted(handover, provider), ""
        if before is not None and not any(_same(before, one.accounts.get(provider, {})) for one in self.all()):
            aside = str(path.replace(path.with_suffix(".json.before")))
        _write(path, json.dumps(dict(wanted), indent=2) + "\n")
        return aside

    @cached_property
    def _forms(self) -> dict[str, AccountForm]:
        return rehearsal.forms()

    def _known_places(self, name: str) -> list[TrustedPlace]:
        try:
            return places(self.named(name), self._forms)
        except (NotFound, BadInput):
            return []

    def _read(self, path: Path) -> Handover:
        try:
            with path.open("rb") as file:
                text = file.read(MOST_BYTES + 1).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(
                f"{path} cannot be read: {error}",
                hint="ask your administrator for the file again",
                cause=Cause.HANDOVER_INVALID,
            ) from None
        return read_handover(text, str(path), self._forms)

    def _file(self, provider: str) -> Path:
        """Where a provider reads its account."""
        return self._home.root / f"{provider}.json"


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """They are accounts of one workspace."""
    return bool(one) and all(one.get(word) == other.get(word) for word in ("workspace", "subscription"))


def _refuse_strange(places: list[TrustedPlace]) -> None:
    if not places:
        return
    lines = [f"{one.field}  {one.where}" for one in places]
    words = " ".join(f"--trust {where}" for where in dict.fromkeys(one.where for one in places))
    raise BadInput(
        "the file names hosts or folders that are not the provider's\n" + "\n".join(lines),
        hint=f"confirm them with your administrator; then add {words}",
        cause=Cause.NO_CONSENT,
    )


def _is_name(word: str) -> bool:
    try:
        return bool(checked_workspace(word))
    except BadInput:
        return False


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long for a path, or not a path
        return False


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, text)


# The hosts and folders in a hand-over file that are not its provider's own: the user has to agree to them.


@dataclass(frozen=True, slots=True)
class TrustedPlace:
    """`where` is a host with its port, a folder as `file:///…`, or a bucket of a public service as `s3://…`."""

    field: str
    where: str

    def trusted(self, words: Iterable[str]) -> bool:
        """A pattern is `where` itself, with or without `https://`, or a host for all of its ports."""
        here = _plain(self.where)
        host, _, port = here.rpartition(":")
        return bool({here, host if port.isdecimal() else here} & {_plain(word) for word in words})


def places(handover: Handover, forms: Mapping[str, AccountForm]) -> list[TrustedPlace]:
    """Those that are not a provider's own, in the order of the file.

    A certificate authenticates hosts that no public authority does. Together with the provider's own hosts it would let
    the author of the file impersonate them, so that is refused.
    """
    foreign = [*_of_accounts(handover, forms), *_of_store(handover, forms)]
    if handover.certificate:
        addresses = {
            f"accounts.{provider}.{name}" for provider in handover.accounts for name in _addresses(forms, provider)
        }
        store = {"store.url", "store.values.authority"} if handover.store else set()
        if own := sorted((addresses | store) - {one.field for one in foreign}):
            raise BadInput(
                f"the file contains a certificate but names {own[0]}, a public host",
                hint="ask your administrator for the file again",
                cause=Cause.HANDOVER_INVALID,
            )
    return foreign


def of_own_twin(settings: ClientSettings) -> list[str]:
    """The hosts of this user's own running twin: on this computer, and proven by the lock it holds."""
    told = twin.find(settings) or {}
    blob = told.get("blob") or {}
    return [urlsplit(str(url)).netloc for url in (told.get("url"), blob.get("url")) if url]


def _of_accounts(handover: Handover, forms: Mapping[str, AccountForm]) -> Iterator[TrustedPlace]:
    for provider, account in handover.accounts.items():
        for name, value in account.items():
            form = _addresses(forms, provider).get(name)
            if form and (host := form.foreign(value)):
                yield TrustedPlace(f"accounts.{provider}.{name}", host)


def _of_store(handover: Handover, forms: Mapping[str, AccountForm]) -> Iterator[TrustedPlace]:
    if not handover.store:
        return
    host = _host(handover.store.url)
    if not any(form.own_store(host) for form in forms.values()):
        yield TrustedPlace("store.url", host)
    addresses = [one for provider in forms for one in _addresses(forms, provider).values()]
    authority = handover.store.values.get("authority")
    if authority and all(one.foreign(authority) for one in addresses):
        yield TrustedPlace("store.values.authority", urlsplit(authority).netloc)


def _addresses(forms: Mapping[str, AccountForm], provider: str) -> dict[str, AddressField]:
    """Empty for a provider without a form, which no file can name."""
    fields = forms[provider].fields if provider in forms else {}
    return {name: form for name, form in fields.items() if isinstance(form, AddressField)}


def _host(url: str) -> str:
    """The place that a server would open, parsed the same way. Without TLS it is never the provider's own."""
    place = locate(url)
    if place.local:
        return place.url
    if not place.endpoint:  # a bucket of the public service
        return replace(place, prefix="", region="").url
    parts = urlsplit(place.endpoint)
    return parts.netloc if parts.scheme == "https" else f"{parts.scheme}://{parts.netloc}"


def _plain(word: str) -> str:
    return word.removeprefix("https://").removeprefix("http://").rstrip("/")
