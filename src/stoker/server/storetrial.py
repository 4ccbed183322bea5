"""Puts a store to the test, one that is known or one that somebody is about to add."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from stoker.errors import StokerError
from stoker.model import layout
from stoker.model.finding import Verdict
from stoker.model.store import StoreFinding
from stoker.server.reach import reach
from stoker.server.storecheck import Subject, check
from stoker.server.stores import Stores
from stoker.stores.credential import Credential
from stoker.stores.kinds import grant, kind_of, locate
from stoker.stores.opening import open_store

_TOKENS = "node tokens"
_END = "end of the credential"
_SOON_S = 7 * 86400.0
_ID = "0" * 64  # as long as that of any snapshot; its beginning, as that of any run


def try_known(stores: Stores, name: str, access_s: float) -> list[StoreFinding]:
    known = stores.named(name)
    token = _token(known.url, lambda: stores.credential(name), access_s, shared=known.shared)
    findings = check(Subject(lambda: stores.open(name), lambda: reach(known.url), token, kind_of(known.url).advice))
    try:
        return [*findings, *_end_of(known.url, stores.credential(name))]
    except StokerError:
        return findings  # which say so


def try_new(url: str, credential: Credential, access_s: float, shared: bool | None = None) -> list[StoreFinding]:
    token = _token(url, lambda: credential, access_s, shared=bool(shared))
    findings = check(Subject(lambda: open_store(url, credential), lambda: reach(url), token, kind_of(url).advice))
    return [*findings, *_end_of(url, credential)]


def _end_of(url: str, credential: Credential) -> list[StoreFinding]:
    """Some credentials, such as a SAS, say themselves when they end."""
    ends_at = kind_of(url).expires_at(credential)
    if not ends_at:
        return []
    left_s, day = ends_at - time.time(), f"{datetime.fromtimestamp(ends_at, UTC):%Y-%m-%d %H:%M} UTC"
    advice = "make a new one, and give it with `stoker store add` under the same name"
    if left_s <= 0:
        return [StoreFinding(_END, Verdict.FAIL, f"the {credential.kind} has expired: it ended on {day}", advice)]
    if left_s < _SOON_S:
        return [StoreFinding(_END, Verdict.WARN, f"the {credential.kind} ends soon, on {day}", advice)]
    return [StoreFinding(_END, Verdict.OK, f"the {credential.kind} ends on {day}")]


def _token(url: str, credential: Callable[[], Credential], for_s: float, *, shared: bool) -> Callable[[], StoreFinding]:
    def find() -> StoreFinding:
        if locate(url).local:
            return StoreFinding(_TOKENS, Verdict.OK, "none are needed: runs on this computer find the folder")
        try:
            held = credential()
            grant(url, held, reads=[layout.code(_ID)], writes=[layout.run(_ID[:20])], for_s=for_s)
        except StokerError as error:
            advice = error.hint or "runs elsewhere need it; those on this computer too"
            return StoreFinding(_TOKENS, Verdict.FAIL, error.message, advice)
        if advice := kind_of(url).unsplit(locate(url), held):
            return _unsplit(held.kind, advice, shared=shared)
        hours = for_s / 3600
        return StoreFinding(
            _TOKENS,
            Verdict.OK,
            f"a node gets a token for its own run, which is renewed before its {hours:g} h are over",
        )

    return find


def _unsplit(credential: str, advice: str, *, shared: bool) -> StoreFinding:
    if shared:
        found = f"every node gets this {credential} itself: it can read and change every run in the store"
        return StoreFinding(_TOKENS, Verdict.WARN, found, advice)
    found = f"a {credential} cannot be split: only nodes on this computer can use the store"
    return StoreFinding(_TOKENS, Verdict.WARN, found, f"{advice}; `--shared-with-nodes` gives nodes the {credential}")
