"""Tests a store: whether its address is reachable, and whether it does what runs need."""

from __future__ import annotations

import http.client
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from stoker.errors import AlreadyThere, StokerError, StoreFailed
from stoker.model.workspace import layout
from stoker.model.workspace.store import CheckResult, StoreFinding
from stoker.server.removals import remove_run
from stoker.server.stores.stores import StoreDirectory
from stoker.stores import Store
from stoker.stores.access import Credential
from stoker.stores.kinds import grant, kind_of, locate, named
from stoker.stores.opening import open_store

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Reach:
    """`skew_s` is how far this computer's clock is ahead; None where the store sends no Date header."""

    host: str
    took_s: float
    skew_s: float | None


def reach(url: str) -> Reach | None:
    """None for a folder of this computer. Raises StoreFailed without a response."""
    address = endpoint(url)
    if address is None:
        return None
    parts = urlsplit(address)
    host, port = parts.hostname or "", parts.port
    secured = parts.scheme == "https"
    line = (http.client.HTTPSConnection if secured else http.client.HTTPConnection)(host, port, timeout=TIMEOUT_S)
    start = time.monotonic()
    try:
        line.request("GET", parts.path or "/")
        answer = line.getresponse()
        took_s = time.monotonic() - start
        return Reach(parts.netloc, took_s, _skew_s(answer.getheader("Date"), datetime.now(UTC)))
    except (OSError, http.client.HTTPException) as error:
        raise _unreached(parts.netloc, error) from error
    finally:
        line.close()


def endpoint(url: str) -> str | None:
    """The address of a store URL's service."""
    location = locate(url)
    return named(location.kind).endpoint(location) or None


def _skew_s(date: str | None, now: datetime) -> float | None:
    """The header has whole seconds: half a second is the best estimate."""
    if not date:
        return None
    try:
        return (now - parsedate_to_datetime(date)).total_seconds() - 0.5
    except (TypeError, ValueError):
        return None


def _unreached(host: str, error: Exception) -> StoreFailed:
    match error:
        case socket.gaierror():
            return StoreFailed(f"could not resolve {host}", hint="check the spelling and the network connection")
        case ssl.SSLError():
            return StoreFailed(
                f"could not verify the certificate of {host}: {error.reason}",
                hint="check the URL, or the computer's CA",
            )
        case ConnectionRefusedError():
            return StoreFailed(f"connection refused by {host}", hint="check the port, and that the service is running")
        case TimeoutError():
            return StoreFailed(f"{host} timed out after {TIMEOUT_S:.0f} s", hint="check the firewall and the proxy")
        case _:
            return StoreFailed(f"{host} is unreachable: {error}", hint="check the URL, the firewall and the proxy")


_TOKENS = "node tokens"
_END = "end of the credential"
_SOON_S = 7 * 86400.0
_ID = "0" * 64  # as long as any snapshot's; its prefix, as long as any run's


def try_known(stores: StoreDirectory, name: str, access_s: float) -> list[StoreFinding]:
    known = stores.named(name)
    token = _token(known.url, lambda: stores.credential(name), access_s, shared=known.shared)
    findings = check(
        CheckedStore(lambda: stores.open(name), lambda: reach(known.url), token, kind_of(known.url).advice)
    )
    try:
        return [*findings, *_end_of(known.url, stores.credential(name))]
    except StokerError:
        return findings  # which say so


def try_new(url: str, credential: Credential, access_s: float, shared: bool | None = None) -> list[StoreFinding]:
    token = _token(url, lambda: credential, access_s, shared=bool(shared))
    findings = check(CheckedStore(lambda: open_store(url, credential), lambda: reach(url), token, kind_of(url).advice))
    return [*findings, *_end_of(url, credential)]


def _end_of(url: str, credential: Credential) -> list[StoreFinding]:
    """Some credentials, such as a SAS, contain their expiry."""
    ends_at = kind_of(url).expires_at(credential)
    if not ends_at:
        return []
    left_s, day = ends_at - time.time(), f"{datetime.fromtimestamp(ends_at, UTC):%Y-%m-%d %H:%M} UTC"
    advice = "create a new one, and add it with `stoker store add` under the same name"
    if left_s <= 0:
        return [StoreFinding(_END, CheckResult.FAIL, f"the {credential.kind} expired on {day}", advice)]
    if left_s < _SOON_S:
        return [StoreFinding(_END, CheckResult.WARN, f"the {credential.kind} expires soon, on {day}", advice)]
    return [StoreFinding(_END, CheckResult.OK, f"the {credential.kind} expires on {day}")]


def _token(url: str, credential: Callable[[], Credential], for_s: float, *, shared: bool) -> Callable[[], StoreFinding]:
    def find() -> StoreFinding:
        if locate(url).local:
            return StoreFinding(_TOKENS, CheckResult.OK, "not needed: runs on this computer use the folder directly")
        try:
            held = credential()
            grant(url, held, reads=[layout.code(_ID)], writes=[layout.run(_ID[:20])], for_s=for_s)
        except StokerError as error:
            advice = error.hint or "runs elsewhere require it; those on this computer too"
            return StoreFinding(_TOKENS, CheckResult.FAIL, error.message, advice)
        if advice := kind_of(url).unsplit(locate(url), held):
            return _unsplit(held.kind, advice, shared=shared)
        hours = for_s / 3600
        return StoreFinding(
            _TOKENS,
            CheckResult.OK,
            f"a node gets a token for its own run, renewed before its {hours:g} h are over",
        )

    return find


def _unsplit(credential: str, advice: str, *, shared: bool) -> StoreFinding:
    if shared:
        found = f"every node gets this {credential} itself: it can read and change every run in the store"
        return StoreFinding(_TOKENS, CheckResult.WARN, found, advice)
    found = f"a {credential} cannot be restricted: only nodes on this computer can use the store"
    return StoreFinding(
        _TOKENS, CheckResult.WARN, found, f"{advice}; `--shared-with-nodes` gives nodes the {credential}"
    )


# Tests everything that Stoker requires of a store, and reports what works, what does not, and what to do.

SKEW_WARN_S = 60.0
SKEW_FAIL_S = 300.0  # Azure and S3 refuse at 15 minutes; the validity of tokens goes by the store's clock
_ADVICE = {
    "conditional write": "the store must support `If-None-Match`: use another one",
    "append": "see the finding above",
}
_TRIALS = ("write", "list", "read", "conditional write", "append", "run folder", "delete")


@dataclass(frozen=True, slots=True)
class CheckedStore:
    """The subject of the test. `open` may fail, for example for a missing credential; `token` reports what a node
    gets."""

    open: Callable[[], Store]
    reach: Callable[[], Reach | None]  # None: it is on this computer
    token: Callable[[], StoreFinding]
    advice: Mapping[str, str] = field(default_factory=dict)  # of its kind, by the name of the failed check


def check(subject: CheckedStore) -> list[StoreFinding]:
    """Leaves nothing behind, except for a new container: the first write creates it where that is permitted. Checks
    that depend on a failed one are skipped, and say so."""
    findings = _reached(subject)
    if findings[0].verdict is CheckResult.FAIL:
        return [*findings, *_skipped(_TRIALS)]
    try:
        store = subject.open()
    except StokerError as error:
        opened = StoreFinding("credential", CheckResult.FAIL, error.message, error.hint)
        return [
            *findings,
            opened,
            *_skipped(_TRIALS),
        ]
    return [*findings, *_tried(store, subject)]


def _reached(subject: CheckedStore) -> list[StoreFinding]:
    try:
        reach = subject.reach()
    except StokerError as error:
        return [StoreFinding("reach", CheckResult.FAIL, error.message, error.hint)]
    if reach is None:
        return [StoreFinding("reach", CheckResult.OK, "it is a folder of this computer")]
    found = [StoreFinding("reach", CheckResult.OK, f"{reach.host} answered in {reach.took_s * 1000:.0f} ms")]
    return [*found, clock(reach.skew_s)] if reach.skew_s is not None else found


def clock(skew_s: float) -> StoreFinding:
    """`skew_s`: how far this computer's clock is ahead of the store's."""
    off = abs(skew_s)
    if off < 2:
        return StoreFinding("clock", CheckResult.OK, "this computer's clock agrees with the store's")
    text = f"this computer's clock is {off:.0f} s {'ahead of' if skew_s > 0 else 'behind'} the store's"
    if off < SKEW_WARN_S:
        return StoreFinding("clock", CheckResult.OK, text)
    advice = "set the clock by the network: `sudo timedatectl set-ntp true`"
    return StoreFinding("clock", CheckResult.FAIL if off > SKEW_FAIL_S else CheckResult.WARN, text, advice)


def _tried(store: Store, subject: CheckedStore) -> list[StoreFinding]:
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
        if findings[-1].verdict is CheckResult.FAIL:
            failed.add(name)
    probe.clear()
    return [*findings, subject.token()]


def _try(name: str, work: Callable[[], str], advice: str) -> StoreFinding:
    try:
        return StoreFinding(name, CheckResult.OK, work())
    except StokerError as error:
        return StoreFinding(name, CheckResult.FAIL, error.message, error.hint or advice)


def _skipped(names: tuple[str, ...]) -> list[StoreFinding]:
    return [StoreFinding(name, CheckResult.SKIP, "not checked, because an earlier check failed") for name in names]


class _Probe:
    """Its own objects, under a unique name."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._top = f"checks/{secrets.token_hex(8)}"
        self._key = f"{self._top}/probe"
        self._data = secrets.token_bytes(64)

    def list(self) -> str:
        start = time.monotonic()
        for _ in self._store.list(self._top):
            pass
        return f"objects can be listed ({_ms(start)})"

    def write(self) -> str:
        start = time.monotonic()
        self._store.put(self._key, self._data)
        return f"an object was written ({_ms(start)})"

    def read(self) -> str:
        start = time.monotonic()
        if self._store.get(self._key) != self._data:
            raise StokerError("the data read is not the data written")
        if self._store.get(self._key, 8, 8) != self._data[8:16]:
            raise StokerError("a range read returned wrong data")
        return f"read whole and in part ({_ms(start)})"

    def write_new(self) -> str:
        try:
            self._store.put(self._key, b"another", only_new=True)
        except AlreadyThere:
            return "of two writers of one name, one succeeds"
        raise StokerError("a conditional write replaced an existing object")

    def append(self) -> str:
        key = f"{self._top}/grows"
        for offset, data in ((0, b"one"), (0, b"one"), (3, b"two")):
            self._store.append(key, offset, data)
        if self._store.get(key) != b"onetwo":
            raise StokerError("an appended object was read back wrong")
        return "objects can be appended to"

    def run_folder(self) -> str:
        """A run's own prefix, under a name as long as any run's."""
        run = secrets.token_hex(10)
        key = f"{layout.run(run)}probe"
        try:
            self._store.put(key, self._data)
            if self._store.get(key) != self._data:
                raise StokerError("an object of a run could not be read back")
        finally:
            with suppress(StokerError):
                remove_run(self._store, run)
        return "a run can use its own prefix"

    def delete(self) -> str:
        self.clear(patient=False)
        left = [one.key for one in self._store.list(self._top)]
        if left:
            raise StokerError(f"`{left[0]}` still exists after it was deleted")
        return "all test objects were deleted"

    def clear(self, *, patient: bool = True) -> None:
        with suppress(*((StokerError,) if patient else ())):
            for one in list(self._store.list(self._top)):
                self._store.delete(one.key)


def _ms(since: float) -> str:
    return f"{(time.monotonic() - since) * 1000:.0f} ms"
