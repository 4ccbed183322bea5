"""The one file that an administrator hands to practitioners: a workspace's accounts, by an allow-list of fields, and
its stores."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.errors import BadInput
from stoker.model import wire
from stoker.model.cause import Cause
from stoker.model.job.fields import nearest

_LONGEST = 300
# Strict on purpose: two readers of such an address cannot disagree about which host it names.
_ADDRESS = re.compile(
    r"https://((?:[a-z0-9-]{1,63}\.){0,9}[a-z0-9-]{1,63}(?::[0-9]{1,5})?)(?:/[A-Za-z0-9/._~-]{0,200})?"
)


@dataclass(frozen=True, slots=True)
class TextField:
    """`many`: a list of up to so many such texts instead of one."""

    pattern: str
    expected: str
    many: int = 0

    def fits(self, value: object) -> bool:
        if self.many:
            return isinstance(value, list) and len(value) <= self.many and all(map(self._one, value))
        return self._one(value)

    def _one(self, value: object) -> bool:
        return isinstance(value, str) and len(value) <= _LONGEST and bool(re.fullmatch(self.pattern, value, re.ASCII))


@dataclass(frozen=True, slots=True)
class NumberField:
    least: float
    most: float
    whole: bool = False

    @property
    def expected(self) -> str:
        return f"a{' whole' if self.whole else ''} number from {self.least:g} to {self.most:g}"

    def fits(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        return self.least <= value <= self.most


@dataclass(frozen=True, slots=True)
class FlagField:
    expected: str = "true or false"

    def fits(self, value: object) -> bool:
        return isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class AddressField:
    """Where requests, and what proves who sends them, go. `own` are the hosts of the provider itself: any other host
    needs the user's consent."""

    own: tuple[str, ...]
    expected: str = "an https address"

    def fits(self, value: object) -> bool:
        return isinstance(value, str) and bool(_ADDRESS.fullmatch(value))

    def foreign(self, value: str) -> str:
        """The host with its port, unless it is one of the provider's own."""
        found = _ADDRESS.fullmatch(value)
        host = found[1] if found else value
        return "" if host in self.own else host


@dataclass(frozen=True, slots=True)
class AccountForm:
    """`stores` matches the hosts of the provider's own storage; `login` and `admission` the commands that users are
    shown: a file from somebody else must not put other commands into their mouths."""

    fields: Mapping[str, TextField | NumberField | FlagField | AddressField]
    required: tuple[str, ...]
    stores: str
    login: str
    admission: str

    def own_store(self, host: str) -> bool:
        return bool(re.fullmatch(self.stores, host, re.ASCII))


VERSION = 1
MOST_BYTES = 64 << 10
_MARK = "stoker-workspace"
_ASK_AGAIN = "ask your administrator for the file again"
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,28}[a-z0-9])?")
_NAMED = TextField(_NAME.pattern, "up to 30 lower-case letters, digits and `-`")
_PEM = re.compile(
    r"(?:-----BEGIN CERTIFICATE-----\n(?:[A-Za-z0-9+/=]{1,76}\n){1,100}-----END CERTIFICATE-----\n?){1,4}"
)
_STORE: dict[str, TextField | FlagField] = {
    "name": _NAMED,
    "url": TextField(r"[!-~]+", "the URL of a store"),
    "credential": TextField(r"login|none", "`login` or `none`: others need a secret"),
    "default": FlagField(),
}
_STORE_VALUES: dict[str, TextField | AddressField] = {
    "tenant": TextField(r"[A-Za-z0-9.-]{0,64}", "a tenant's id"),
    "authority": AddressField(own=()),
}
# Words that name a secret. Whoever adds one to a file by hand is told, before it travels.
_SECRET = re.compile(r"(?i)^(secret|password|passwd|key|account_?key|sas|token|connection_?string|client_secret)$")


@dataclass(frozen=True, slots=True)
class TeamStore:
    """`credential` is a kind that needs no secret in a file, and `values` what that kind has to know."""

    name: str
    url: str
    credential: str = "login"
    values: Mapping[str, str] = field(default_factory=dict)
    default: bool = True  # new runs are kept there


@dataclass(frozen=True, slots=True)
class Handover:
    """`accounts` has what each provider reads, by the provider's name; `login` says in commands how to log in, and
    `admission` what an administrator runs for somebody who may not do enough yet. `certificate` is the text of the
    authority that vouches for the hosts of a cloud of one's own."""

    name: str
    accounts: Mapping[str, Mapping[str, Any]]
    store: TeamStore | None = None
    login: tuple[str, ...] = ()
    admission: str = ""
    certificate: str = ""

    def to_text(self) -> str:
        """Readable, and the same for the same workspace."""
        facts = {"file": _MARK, "version": VERSION, **wire.to_plain(self)}
        return json.dumps(facts, indent=2, ensure_ascii=False) + "\n"


def read_handover(text: str, place: str, forms: Mapping[str, AccountForm]) -> Handover:
    """`forms` say what each provider's account may hold. Raises BadInput, naming the field, for a file that is damaged,
    newer, hostile or something else."""
    found = _parsed(text, place)
    version = found.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise BadInput(
            f"{place} is damaged: its version is {_shown(version)}", hint=_ASK_AGAIN, cause=Cause.HANDOVER_INVALID
        )
    if version > VERSION:
        raise BadInput(
            f"{place} was written by a newer Stoker: its version is {_shown(version)}, this one reads {VERSION}",
            hint="pip install --upgrade stoker",
            cause=Cause.HANDOVER_INVALID,
        )
    return _HandoverReader(place, forms).handover(found)


def checked_workspace(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadInput(
            f"`{name}` cannot name a workspace",
            hint="use up to 30 lower-case letters, digits and `-`: `vision-team`",
            cause=Cause.HANDOVER_INVALID,
        )
    return name


def _parsed(text: str, place: str) -> dict[str, Any]:
    if len(text) > MOST_BYTES:
        raise BadInput(
            f"{place} is not the file of a workspace: it is too large", hint=_ASK_AGAIN, cause=Cause.HANDOVER_INVALID
        )
    try:
        found = json.loads(text)
    except RecursionError:
        raise BadInput(
            f"{place} is damaged: it is nested too deeply", hint=_ASK_AGAIN, cause=Cause.HANDOVER_INVALID
        ) from None
    except ValueError as error:
        raise BadInput(f"{place} is damaged: {error}", hint=_ASK_AGAIN, cause=Cause.HANDOVER_INVALID) from None
    if not isinstance(found, dict) or found.get("file") != _MARK:
        raise BadInput(
            f"{place} is not the file of a workspace",
            hint="`stoker admin setup` writes one",
            cause=Cause.HANDOVER_INVALID,
        )
    return found


class _HandoverReader:
    """Goes through one file, field by field."""

    def __init__(self, place: str, forms: Mapping[str, AccountForm]) -> None:
        self._place = place
        self._forms = forms

    def handover(self, found: dict[str, Any]) -> Handover:
        self._only(found, ("file", "version", *Handover.__slots__), "")
        self._fits("name", found.get("name"), _NAMED)
        accounts = self._mapping(found.get("accounts"), "accounts", self._forms)
        login, admission = found.get("login", []), found.get("admission", "")
        known = [self._forms[provider] for provider in accounts] or list(self._forms.values())
        commands = TextField("|".join(form.login for form in known), "the commands that a set-up writes", many=5)
        self._fits("login", login, commands)
        told = TextField("|".join(("", *(form.admission for form in known))), "the command that a set-up writes")
        self._fits("admission", admission, told)
        return Handover(
            found["name"],
            {provider: self._account(provider, account) for provider, account in accounts.items()},
            self._store(found.get("store")),
            tuple(login),
            admission,
            self._certificate(found.get("certificate", "")),
        )

    def _account(self, provider: str, found: object) -> Mapping[str, Any]:
        form, where = self._forms[provider], f"accounts.{provider}"
        account = self._mapping(found, where, form.fields)
        for name in form.required:
            if name not in account:
                raise self._wrong(f"{where}.{name}", "nothing", form.fields[name].expected)
        for name, value in account.items():
            self._fits(f"{where}.{name}", value, form.fields[name])
        return account

    def _store(self, found: object) -> TeamStore | None:
        if found is None:
            return None
        store: dict[str, Any] = {"credential": "login", "values": {}, "default": True}
        store |= self._mapping(found, "store", TeamStore.__slots__)
        for name, form in _STORE.items():
            self._fits(f"store.{name}", store.get(name), form)
        values = self._mapping(store["values"], "store.values", _STORE_VALUES)
        for name, value in values.items():
            self._fits(f"store.values.{name}", value, _STORE_VALUES[name])
        return TeamStore(**store)

    def _certificate(self, found: object) -> str:
        if not isinstance(found, str) or (found and not _PEM.fullmatch(found)):
            raise self._wrong("certificate", "something else", "certificates in PEM form, and nothing else")
        return found

    def _mapping(self, found: object, where: str, known: Iterable[str]) -> dict[str, Any]:
        if not isinstance(found, dict):
            raise self._wrong(where, _shown(found), "an object")
        self._only(found, known, f"{where}.")
        return found

    def _only(self, found: Mapping[str, Any], known: Iterable[str], where: str) -> None:
        unknown = next((name for name in found if name not in known), None)
        if unknown is None:
            return
        if _SECRET.match(unknown):
            raise BadInput(
                f"{self._place} holds a secret, `{where}{unknown}`, and a file that is handed around must not",
                hint="take it out, and have it replaced where it came from",
                cause=Cause.HANDOVER_INVALID,
            )
        near = nearest(unknown[:60], known)
        raise BadInput(
            f"{self._place} has a field that a hand-over must not have: `{where}{unknown[:60]}`",
            hint=f"did you mean `{near}`?"
            if near
            else "a setting of your own belongs into the account's file in Stoker's home folder",
            cause=Cause.HANDOVER_INVALID,
        )

    def _fits(self, field: str, value: object, form: Any) -> None:
        if not form.fits(value):
            raise self._wrong(field, _shown(value), form.expected)

    def _wrong(self, field: str, found: str, expected: str) -> BadInput:
        return BadInput(
            f"{self._place} is damaged: {field} is {found}, expected {expected}",
            hint=_ASK_AGAIN,
            cause=Cause.HANDOVER_INVALID,
        )


def _shown(value: object) -> str:
    """A value in a message: short, and of lists and objects only that they are some."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return f"`{value[:60]}`" if isinstance(value, str) else str(value)[:60]
