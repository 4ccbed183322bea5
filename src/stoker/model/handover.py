"""The one file that an administrator hands to practitioners: a workspace's accounts and its store, and no secret."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.errors import BadInput
from stoker.model import wire

VERSION = 1
_MARK = "stoker-workspace"
_ASK_AGAIN = "ask your administrator for the file again"
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,28}[a-z0-9])?")
_PROVIDER = re.compile(r"[a-z][a-z0-9-]*")
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
    `admission` what an administrator runs for somebody who may not do enough yet."""

    name: str
    accounts: Mapping[str, Mapping[str, Any]]
    store: TeamStore | None = None
    login: tuple[str, ...] = ()
    admission: str = ""

    def to_text(self) -> str:
        """Readable, and the same for the same workspace."""
        facts = {"file": _MARK, "version": VERSION, **wire.to_plain(self)}
        return json.dumps(facts, indent=2, ensure_ascii=False) + "\n"


def read_handover(text: str, place: str) -> Handover:
    """Raises BadInput, in words, for a file that is damaged, newer, or something else."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise BadInput(f"{place} is damaged: {error}", hint=_ASK_AGAIN) from None
    if not isinstance(found, dict) or found.get("file") != _MARK:
        raise BadInput(f"{place} is not the file of a workspace", hint="`stoker admin setup` writes one")
    version = found.get("version")
    if not isinstance(version, int) or version < 1:
        raise BadInput(f"{place} is damaged: its version is {version!r}", hint=_ASK_AGAIN)
    if version > VERSION:
        raise BadInput(
            f"{place} was written by a newer Stoker: its version is {version}, this one reads {VERSION}",
            hint="pip install --upgrade stoker",
        )
    try:
        handover = wire.from_plain(Handover, found)
    except (KeyError, TypeError, ValueError):
        raise BadInput(f"{place} is damaged: a part is missing or of another form", hint=_ASK_AGAIN) from None
    return _checked(handover, place)


def checked_workspace(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadInput(
            f"`{name}` cannot name a workspace", hint="use up to 30 lower-case letters, digits and `-`: `vision-team`"
        )
    return name


def _checked(handover: Handover, place: str) -> Handover:
    store = handover.store
    texts = (
        handover.name,
        *((store.name, store.url, store.credential) if store else ()),
        *handover.login,
        handover.admission,
    )
    if not all(isinstance(one, str) for one in texts):
        raise BadInput(f"{place} is damaged: a name in it is no text", hint=_ASK_AGAIN)
    checked_workspace(handover.name)
    for provider, account in handover.accounts.items():
        if not _PROVIDER.fullmatch(provider) or not isinstance(account, Mapping):
            raise BadInput(f"{place} is damaged: `{provider}` is no provider's account")
    for words in (*handover.accounts.values(), store.values if store else {}):
        if named := next((word for word in words if _SECRET.match(word)), ""):
            raise BadInput(
                f"{place} holds a secret, `{named}`, and a file that is handed around must not",
                hint="take it out, and have it replaced where it came from",
            )
    return handover
