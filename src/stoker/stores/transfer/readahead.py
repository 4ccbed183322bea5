"""Many stored objects one after the other, with small ones read in advance: a remote store has latency."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

from stoker.stores import Store
from stoker.stores.pacing import NEAR, pacing
from stoker.stores.transfer.reader import open_object

SMALL_BYTES = 4 << 20
_AHEAD = 8  # so at most 32 MB wait in memory

Wanted = tuple[str, int]  # a key, and how many bytes it has


def open_in_order(store: Store, wanted: Iterable[Wanted]) -> Iterator[BinaryIO]:
    """Read each before requesting the next. Raises errors of the store at the turn of the object."""
    if pacing(store) is NEAR:
        for key, _ in wanted:
            yield open_object(store, key)
        return
    with ThreadPoolExecutor(_AHEAD, "ahead") as threads:
        waiting: deque[tuple[str, Future[bytes] | None]] = deque()
        for key, size in wanted:
            waiting.append((key, threads.submit(store.get, key, 0, size) if size <= SMALL_BYTES else None))
            if len(waiting) >= _AHEAD:
                yield _opened(store, *waiting.popleft())
        while waiting:
            yield _opened(store, *waiting.popleft())


def _opened(store: Store, key: str, fetched: Future[bytes] | None) -> BinaryIO:
    return io.BytesIO(fetched.result()) if fetched else open_object(store, key)
