"""A named store: where it is and how it is opened, without what opens it; and what a check found."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from stoker.errors import BadInput


class CheckResult(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"  # could not be tried, because of what failed before


@dataclass(frozen=True, slots=True)
class Finding:
    """`advice` says what to do; empty where all is well."""

    name: str
    verdict: CheckResult
    found: str
    advice: str = ""


def failed(findings: Iterable[Finding]) -> bool:
    return any(one.verdict is CheckResult.FAIL for one in findings)


FOLDER = "folder"  # the name of the store that is always there: a folder of this computer
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class KnownStore:
    """`credential` is its kind, never its value: that is in the keychain, under the store's name."""

    name: str
    url: str
    credential: str = "none"
    workspace: bool = False  # new runs are kept there
    added_at: datetime | None = None  # None: it was always there
    shared: bool = False  # nodes elsewhere may be given its credential where that cannot be split


@dataclass(frozen=True, slots=True)
class StoreFinding:
    """One thing that a store was tried for. `advice` says what to do; empty where all is well."""

    name: str
    verdict: CheckResult
    found: str
    advice: str = ""


def checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadInput(
            f"`{name}` cannot name a store", hint="use up to 40 lower-case letters, digits and `-`, such as `blob`"
        )
    return name


def works(findings: Iterable[StoreFinding]) -> bool:
    """It can keep runs."""
    return all(one.verdict in (CheckResult.OK, CheckResult.WARN) for one in findings)


# Rehearsals: the twin of a provider is another one, called `<provider>-twin`.

_SUFFIX = "-twin"


def twin_of(provider: str) -> str:
    return provider if is_twin(provider) else f"{provider}{_SUFFIX}"


def is_twin(provider: str) -> bool:
    return provider.endswith(_SUFFIX)


def original(twin: str) -> str:
    return twin.removesuffix(_SUFFIX)
