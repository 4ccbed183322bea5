"""How fast a store is from here: measured by reading a little of what is going to be read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from stoker.agent.data.downloading import Get, Wanted

PIECE_BYTES = 2 << 20
_STREAMS = 4
_LOOKS = 3


def probe(get: Get, wanted: Sequence[Wanted]) -> tuple[float, float]:
    """Bytes per second over several streams, and seconds for the shortest answer. Reads 8 MB at most."""
    largest = max(wanted, key=lambda one: one.size_bytes)
    latency_s = min(_timed(get, largest.key, 0, 1) for _ in range(_LOOKS))
    size = min(PIECE_BYTES, max(largest.size_bytes // _STREAMS, 1))
    start = time.monotonic()
    with ThreadPoolExecutor(_STREAMS) as pool:
        pieces = pool.map(lambda number: get(largest.key, number * size, size), range(_STREAMS))
        total = sum(len(piece) for piece in pieces)
    seconds = max(time.monotonic() - start, 1e-6)
    # What a small file takes is nearly all latency, and says nothing about large ones.
    return total / max(seconds - latency_s, seconds / 10), latency_s


def _timed(get: Get, key: str, start: int, size: int) -> float:
    begun = time.monotonic()
    get(key, start, size)
    return time.monotonic() - begun
