"""Downloads contents from a store into the cache: concurrently, verified on the way, resuming partial downloads."""

from __future__ import annotations

import errno
import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

from stoker.agent.data.cache import Cache
from stoker.errors import Corrupt, Missing, StokerError, StoreFailed
from stoker.stores.transfer.disk import disk_failed

if TYPE_CHECKING:
    from stoker.agent.data.sharing import Peers

AT_ONCE = 8  # contents that are downloaded concurrently
PIECES_AT_ONCE = 8  # pieces of large contents, in total
AHEAD = 3  # pieces of one content that are requested in advance
PIECE_BYTES = 4 << 20
TRY_FOR_S = 60.0  # while the store does not answer
_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 5.0
_BUSY_S = 0.05  # between two looks at a download of another process

Get = Callable[[str, int, int], bytes]  # key, start, size
Tell = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class WantedContent:
    """One content to download. Without a hash, `name` identifies it, and the hash is computed on the way."""

    name: str  # the hash, or that of its pin
    size_bytes: int
    key: str
    path: str  # of a file that has it, for messages
    sha256: str = ""


@dataclass
class Tally:
    """The progress. Read by other threads."""

    size_bytes: int = 0  # to download in total
    files: int = 0
    done_bytes: int = 0  # read from the store so far
    passed_bytes: int = 0  # received from other nodes so far
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, size_bytes: int, *, passed: bool = False) -> None:
        with self.lock:
            if passed:
                self.passed_bytes += size_bytes
            else:
                self.done_bytes += size_bytes


class Download:
    """`get` reads the store; `peers` are other nodes that may have the same. `check` raises to stop everything. Use it
    once."""

    def __init__(
        self,
        cache: Cache,
        get: Get,
        check: Callable[[], None],
        tell: Tell,
        tally: Tally,
        peers: Peers | None = None,
    ) -> None:
        self._cache = cache
        self._ask = get
        self._check = check
        self._tell = tell
        self._tally = tally
        self._peers = peers
        self._distrusted: set[str] = set()  # names of contents that other nodes sent wrongly
        self._told = False
        self._failure: Exception | None = None
        self._waiting: deque[WantedContent] = deque()
        self._lock = threading.Lock()
        self.found: dict[str, str] = {}  # hashes by name, as they complete
        self.fetched: list[str] = []  # hashes that this process downloaded

    def run(self, wanted: Iterable[WantedContent]) -> None:
        """Returns when all of it is in the cache. Raises StoreFailed, or what `check` raises; partial downloads then
        stay."""
        self._waiting.extend(sorted(wanted, key=self._turn))
        if self._peers:
            self._peers.begin(one.sha256 for one in self._waiting if one.sha256)
        with ThreadPoolExecutor(PIECES_AT_ONCE) as self._pieces:
            threads = [
                threading.Thread(target=self._work, daemon=True) for _ in range(min(AT_ONCE, len(self._waiting)))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if self._failure:
            raise self._failure

    def _turn(self, one: WantedContent) -> tuple[bool, int]:
        """First what other nodes will ask this one for; and no large one comes last."""
        return bool(self._peers and one.sha256 and not self._peers.is_mine(one.sha256)), -one.size_bytes

    def _work(self) -> None:
        while not self._failure:
            with self._lock:
                if not self._waiting:
                    return
                one = self._waiting.popleft()
            try:
                self._check()
                if not self._fetch(one):
                    with self._lock:
                        self._waiting.append(one)
                    time.sleep(_BUSY_S)
            except Exception as error:  # raised again by `run`, in the waiting thread
                self._failure = self._failure or error
                return

    def _fetch(self, one: WantedContent) -> bool:
        """False where another process is downloading it."""
        known = (one.sha256, one.size_bytes) if one.sha256 else self._cache.pinned(one.name)
        if known and known[1] == one.size_bytes and self._cache.has(*known):
            self.found[one.name] = known[0]
            return True
        with self._cache.fetching(one.name) as part:
            if part is None:
                return False
            try:
                sha256 = self._fill(part, one) or self._fill_again(part, one)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    self._cache.drop_part(one.name)  # frees space for others
                raise disk_failed("fetch", one.path, error) from error
            if not sha256:
                self._cache.drop_part(one.name)
                raise Corrupt(
                    f"`{one.path}` is damaged in the store: its hash is not {one.sha256[:12]}",
                    hint="find other damaged files with `stoker data verify`",
                )
            self._cache.commit(one.name, sha256)
        if not one.sha256:
            self._cache.pin(one.name, sha256, one.size_bytes)
        self.fetched.append(sha256)
        self.found[one.name] = sha256
        return True

    def _fill_again(self, part: BinaryIO, one: WantedContent) -> str:
        """From the store alone."""
        self._distrusted.add(one.name)
        if self._peers:
            self._peers.blame(one.sha256)
        return self._fill(part, one)

    def _fill(self, part: BinaryIO, one: WantedContent) -> str:
        """Downloads what is missing; returns the hash, or an empty text where it is wrong: then the part is empty
        again."""
        digest = hashlib.sha256()
        at = 0
        part.seek(0)
        while at < one.size_bytes and (piece := part.read(min(PIECE_BYTES, one.size_bytes - at))):
            digest.update(piece)
            at += len(piece)
        part.truncate(at)
        for piece in self._rest(one, at):
            digest.update(piece)
            rest = memoryview(piece)
            while rest:
                rest = rest[part.write(rest) :]
        if one.sha256 and digest.hexdigest() != one.sha256:
            part.truncate(0)
            return ""
        return digest.hexdigest()

    def _rest(self, one: WantedContent, at: int) -> Iterable[bytes]:
        """The pieces from `at` on, in order; some pieces of a large content are requested in advance."""
        if one.size_bytes - at <= PIECE_BYTES:
            if at < one.size_bytes:
                yield self._piece(one, at, one.size_bytes - at)
            return
        coming: deque[Future[bytes]] = deque()
        try:
            while at < one.size_bytes or coming:
                while at < one.size_bytes and len(coming) <= AHEAD:
                    size = min(PIECE_BYTES, one.size_bytes - at)
                    coming.append(self._pieces.submit(self._piece, one, at, size))
                    at += size
                yield coming.popleft().result()
        finally:
            for piece in coming:
                piece.cancel()

    def _piece(self, one: WantedContent, at: int, size: int) -> bytes:
        if self._peers and one.sha256 and one.name not in self._distrusted:
            data = self._peers.get(one.sha256, at, size)
            if data is not None:
                self._tally.add(size, passed=True)
                return data
        began = time.monotonic()
        data = self._get(one, at, size)
        self._tally.add(size)
        if self._peers:
            self._peers.read(size, time.monotonic() - began)
        return data

    def _get(self, one: WantedContent, at: int, size: int) -> bytes:
        """All bytes, with retries. While the store is unreachable, or refuses the current token, it is retried for a
        while."""
        until, pause_s = time.monotonic() + TRY_FOR_S, _PAUSE_S
        while True:
            if self._failure:
                raise StoreFailed("cancelled, because another download failed")
            self._check()
            try:
                data = self._ask(one.key, at, size)
                if len(data) == size:
                    return data
                raise Corrupt(f"`{one.path}` has {at + len(data)} bytes in the store, expected {one.size_bytes}")
            except (Missing, Corrupt) as error:
                raise _lost(error, one) from error
            except StoreFailed as error:
                if time.monotonic() >= until:
                    raise
                self._tell_once(error)
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _tell_once(self, error: StokerError) -> None:
        with self._lock:
            told, self._told = self._told, True
        if not told:
            self._tell("data-waits", f"could not read the data, retrying: {error.message}")


def _lost(error: StoreFailed, one: WantedContent) -> StoreFailed:
    hint = "find other damaged files with `stoker data verify`"
    if isinstance(error, Missing):
        return Missing(f"`{one.path}` is missing in the store: {error.message}", hint=hint)
    return Corrupt(error.message, hint=hint)
