"""Puts a store to the test, one that is known or one that somebody is about to add."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from stoker.errors import AlreadyThere, StokerError
from stoker.model.workspace import layout
from stoker.model.workspace.finding import Verdict
from stoker.model.workspace.store import StoreFinding
from stoker.server.removals.removals import remove_run
from stoker.server.stores.reach import Reach, reach
from stoker.server.stores.stores import Stores
from stoker.stores import Store
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


# Tries a store for everything Stoker asks of one, and says in words what works, what does not, and what to do.

SKEW_WARN_S = 60.0
SKEW_FAIL_S = 300.0  # Azure and S3 refuse at 15 minutes; tokens begin and end by the store's clock long before
_ADVICE = {
    "conditional write": "the store must know `If-None-Match`: use another one",
    "append": "look at the finding above",
}
_TRIALS = ("write", "list", "read", "conditional write", "append", "run folder", "delete")


@dataclass(frozen=True, slots=True)
class Subject:
    """What is tried. `open` may fail, as for a credential that is gone; `token` says what a node would be given."""

    open: Callable[[], Store]
    reach: Callable[[], Reach | None]  # None: it is on this computer
    token: Callable[[], StoreFinding]
    advice: Mapping[str, str] = field(default_factory=dict)  # of its kind, by the name of what failed


def check(subject: Subject) -> list[StoreFinding]:
    """Nothing stays behind, but for a container that was not there: writing comes first, and makes it where it may.
    What follows from a failure is not tried, and says so."""
    findings = _reached(subject)
    if findings[0].verdict is Verdict.FAIL:
        return [*findings, *_skipped(_TRIALS)]
    try:
        store = subject.open()
    except StokerError as error:
        opened = StoreFinding("credential", Verdict.FAIL, error.message, error.hint)
        return [
            *findings,
            opened,
            *_skipped(_TRIALS),
        ]
    return [*findings, *_tried(store, subject)]


def _reached(subject: Subject) -> list[StoreFinding]:
    try:
        reach = subject.reach()
    except StokerError as error:
        return [StoreFinding("reach", Verdict.FAIL, error.message, error.hint)]
    if reach is None:
        return [StoreFinding("reach", Verdict.OK, "it is a folder of this computer")]
    found = [StoreFinding("reach", Verdict.OK, f"{reach.host} answered in {reach.took_s * 1000:.0f} ms")]
    return [*found, clock(reach.skew_s)] if reach.skew_s is not None else found


def clock(skew_s: float) -> StoreFinding:
    """`skew_s`: how far this computer's clock is ahead of the store's."""
    off = abs(skew_s)
    if off < 2:
        return StoreFinding("clock", Verdict.OK, "this computer's clock agrees with the store's")
    text = f"this computer's clock is {off:.0f} s {'ahead of' if skew_s > 0 else 'behind'} the store's"
    if off < SKEW_WARN_S:
        return StoreFinding("clock", Verdict.OK, text)
    advice = "set the clock by the network: `sudo timedatectl set-ntp true`"
    return StoreFinding("clock", Verdict.FAIL if off > SKEW_FAIL_S else Verdict.WARN, text, advice)


def _tried(store: Store, subject: Subject) -> list[StoreFinding]:
    probe = _Probe(store)
    findings: list[StoreFinding] = []
    failed: set[str] = set()
    advice = {**_ADVICE, **subject.advice}
    for name, needs, work in (
        ("write", (), probe.write),
        ("list", (), probe.list),
        ("read", ("write",), probe.read),
        ("conditional write", ("write",), probe.write_new),
        ("append", ("write", "read"), probe.append),
        ("run folder", ("write",), probe.run_folder),
        ("delete", ("write",), probe.delete),
    ):
        if failed & set(needs):
            findings += _skipped((name,))
            failed.add(name)
            continue
        findings.append(_try(name, work, advice.get(name, "")))
        if findings[-1].verdict is Verdict.FAIL:
            failed.add(name)
    probe.clear()
    return [*findings, subject.token()]


def _try(name: str, work: Callable[[], str], advice: str) -> StoreFinding:
    try:
        return StoreFinding(name, Verdict.OK, work())
    except StokerError as error:
        return StoreFinding(name, Verdict.FAIL, error.message, error.hint or advice)


def _skipped(names: tuple[str, ...]) -> list[StoreFinding]:
    return [StoreFinding(name, Verdict.SKIP, "not tried, because of what failed before") for name in names]


class _Probe:
    """Objects of its own, under a name that nobody else has."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._top = f"checks/{secrets.token_hex(8)}"
        self._key = f"{self._top}/probe"
        self._data = secrets.token_bytes(64)

    def list(self) -> str:
        start = time.monotonic()
        for _ in self._store.list(self._top):
            pass
        return f"what lies in it can be listed ({_ms(start)})"

    def write(self) -> str:
        start = time.monotonic()
        self._store.put(self._key, self._data)
        return f"an object was written ({_ms(start)})"

    def read(self) -> str:
        start = time.monotonic()
        if self._store.get(self._key) != self._data:
            raise StokerError("what came back is not what was written")
        if self._store.get(self._key, 8, 8) != self._data[8:16]:
            raise StokerError("a part of an object came back wrong")
        return f"it came back whole and in part ({_ms(start)})"

    def write_new(self) -> str:
        try:
            self._store.put(self._key, b"another", only_new=True)
        except AlreadyThere:
            return "of two writers of one name, one wins"
        raise StokerError("an object that was there was replaced, although it should not have been")

    def append(self) -> str:
        key = f"{self._top}/grows"
        for offset, data in ((0, b"one"), (0, b"one"), (3, b"two")):
            self._store.append(key, offset, data)
        if self._store.get(key) != b"onetwo":
            raise StokerError("an object that grew came back wrong")
        return "an object can grow"

    def run_folder(self) -> str:
        """What a run has for itself, under a name as long as that of any run."""
        run = secrets.token_hex(10)
        key = f"{layout.run(run)}probe"
        try:
            self._store.put(key, self._data)
            if self._store.get(key) != self._data:
                raise StokerError("what a run wrote did not come back")
        finally:
            with suppress(StokerError):
                remove_run(self._store, run)
        return "a run has a place of its own"

    def delete(self) -> str:
        self.clear(patient=False)
        left = [one.key for one in self._store.list(self._top)]
        if left:
            raise StokerError(f"`{left[0]}` is still there after it was deleted")
        return "nothing of the check stayed behind"

    def clear(self, *, patient: bool = True) -> None:
        with suppress(*((StokerError,) if patient else ())):
            for one in list(self._store.list(self._top)):
                self._store.delete(one.key)


def _ms(since: float) -> str:
    return f"{(time.monotonic() - since) * 1000:.0f} ms"
