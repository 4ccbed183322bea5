"""Puts a store to the test, one that is known or one that somebody is about to add."""

from __future__ import annotations

from collections.abc import Callable

from stoker.errors import StokerError
from stoker.model.store import StoreFinding, Verdict
from stoker.server.reach import reach
from stoker.server.storecheck import Subject, check
from stoker.server.stores import Stores
from stoker.stores.credential import Credential
from stoker.stores.granting import grant
from stoker.stores.location import StoreKind, locate
from stoker.stores.opening import open_store

_TOKENS = "node tokens"


def try_known(stores: Stores, name: str, access_s: float) -> list[StoreFinding]:
    known = stores.named(name)
    token = _token(known.url, lambda: stores.credential(name), access_s)
    return check(Subject(lambda: stores.open(name), lambda: reach(known.url), token))


def try_new(url: str, credential: Credential, access_s: float) -> list[StoreFinding]:
    token = _token(url, lambda: credential, access_s)
    return check(Subject(lambda: open_store(url, credential), lambda: reach(url), token))


def _token(url: str, credential: Callable[[], Credential], for_s: float) -> Callable[[], StoreFinding]:
    def find() -> StoreFinding:
        if locate(url).kind is StoreKind.FOLDER:
            return StoreFinding(_TOKENS, Verdict.OK, "none are needed: runs on this computer find the folder")
        try:
            access = grant(url, credential(), reads=["blobs/"], writes=["runs/check/"], for_s=for_s)
        except StokerError as error:
            advice = error.hint or "runs elsewhere need it; those on this computer too"
            return StoreFinding(_TOKENS, Verdict.FAIL, error.message, advice)
        tokens = {route.token for route in access.routes}
        if len(tokens) == 1 and len(access.routes) > 1:
            return StoreFinding(
                _TOKENS,
                Verdict.WARN,
                "a node gets this SAS itself, which reaches the runs of others in the container",
                "give the account's key or log in, and each node gets a token for its own run",
            )
        hours = for_s / 3600
        return StoreFinding(
            _TOKENS,
            Verdict.OK,
            f"a node gets a token for its own run, which is renewed before its {hours:g} h are over",
        )

    return find
