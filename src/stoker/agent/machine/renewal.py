"""The agent's store: its access token expires, and the next one is fetched before."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

from stoker.errors import NoCipher, StokerError, StoreDenied
from stoker.files import write_whole
from stoker.stores import Stored
from stoker.stores.access import Access
from stoker.stores.opening import AccessStore
from stoker.stores.signing import opened
from stoker.stores.unsealing import unseal

T = TypeVar("T")

LOOK_AT = 0.55  # of a token's lifetime; the server renews it after half of that
LOOKS = 20  # for the next one, in the remaining time
LEAST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 60.0


class RenewedStore(AccessStore):
    """Used like any store, from several threads. `file` contains the newest token, for cleaning up after a dead
    agent."""

    def __init__(self, access: Access, seal: str, key: str, file: Path) -> None:
        super().__init__(access)
        self._seal = seal
        self._key = key  # of the next token
        self._file = file
        self._lock = threading.Lock()
        self._pause_s = LONGEST_PAUSE_S
        self._note(access)

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        return self._with_access(lambda: AccessStore.get(self, key, start, size))

    def heard(self, key: str) -> bytes:
        """The server's message under this key. Raises Corrupt for one that another writer of the store has forged."""
        return opened(self._seal, self.get(key), key)

    def put(self, key: str, data: bytes | BinaryIO, *, only_new: bool = False) -> None:
        """A stream that started with an expired token is not restarted here: the caller has it."""
        again = isinstance(data, bytes)
        self._with_access(lambda: AccessStore.put(self, key, data, only_new=only_new), again=again)

    def append(self, key: str, offset: int, data: bytes) -> int:
        return self._with_access(lambda: AccessStore.append(self, key, offset, data))

    def list(self, prefix: str) -> Iterator[Stored]:
        return iter(self._with_access(lambda: tuple(AccessStore.list(self, prefix))))

    def delete(self, key: str) -> None:
        self._with_access(lambda: AccessStore.delete(self, key))

    def _with_access(self, work: Callable[[], T], *, again: bool = True) -> T:
        if time.monotonic() >= self._due:
            with suppress(StokerError):  # there is still time
                self._renew()
        try:
            return work()
        except StoreDenied:
            if not self._renew_at_once() or not again:
                raise
        return work()

    def _renew_at_once(self) -> bool:
        """After a refusal. True if the token has changed since."""
        refused = self.access
        if time.monotonic() >= self._may_ask:
            with suppress(StokerError):
                self._renew()
        return self.access is not refused

    def _renew(self) -> None:
        if not self._lock.acquire(blocking=False):
            return  # another thread is renewing it
        try:
            self._may_ask = time.monotonic() + LEAST_PAUSE_S
            self._due = time.monotonic() + self._pause_s
            access = Access.from_text(unseal(self._seal, AccessStore.get(self, self._key), self._key))
            if access.expires_at > self.access.expires_at:
                self.renew(access)
                self._note(access)
        except NoCipher as error:
            self._due = float("inf")  # nothing will come of asking again
            print(f"{error.message}. {error.hint}", file=sys.stderr, flush=True)  # noqa: T201  # the agent's log
            raise
        finally:
            self._lock.release()

    def _note(self, access: Access) -> None:
        now, life_s = time.monotonic(), max(access.expires_at - time.time(), 0.0)
        self._may_ask = now
        self._due = now + LOOK_AT * life_s if access.expires_at else float("inf")
        self._pause_s = min(max((1 - LOOK_AT) * life_s / LOOKS, LEAST_PAUSE_S), LONGEST_PAUSE_S)
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(self._file, access.to_text(), mode=0o600)
