"""The hashes of found files: those that did not change since last time are not read."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from stoker.client.data.folder import Found, Seen
from stoker.client.digest import digest, unchanged
from stoker.client.statindex import StatIndex
from stoker.errors import DatasetRefused

_TRIES = 3  # for a file that changes while it is read
_LARGE_BYTES = 256 * 1024  # from here on hashing gains from a second core; below, threads only get in each other's way
_AHEAD = 4  # large files that are hashed at once
_SAVE_S = 20.0  # what is lost at most of the work of hashing when the process is killed

Hashed = tuple[Found, str]


def hashes(found: Iterable[Found], index: StatIndex, told: Callable[[int, int], None]) -> Iterator[Hashed]:
    """Each file with its sha256, in no particular order; `told` hears of bytes and files that were read. A file that
    changed since it was found comes with what it is now. Raises DatasetRefused where one cannot be read, or never holds
    still."""
    save_at = time.monotonic() + _SAVE_S
    waiting: deque[Future[tuple[Found, str, int]]] = deque()
    with ThreadPoolExecutor(_AHEAD) as threads:
        for one in found:
            if sha256 := index.known(one.path, one.seen):
                yield one, sha256
                continue
            if one.seen.st_size >= _LARGE_BYTES:
                waiting.append(threads.submit(_hash, one))
                if len(waiting) < 2 * _AHEAD:
                    continue
                yield _learnt(*waiting.popleft().result(), index, told)
            else:
                yield _learnt(*_hash(one), index, told)
            if time.monotonic() > save_at:
                index.save(unfinished=True)
                save_at = time.monotonic() + _SAVE_S
        while waiting:
            yield _learnt(*waiting.popleft().result(), index, told)
    index.save()


def _learnt(one: Found, sha256: str, at_ns: int, index: StatIndex, told: Callable[[int, int], None]) -> Hashed:
    index.learn(one.path, one.seen, sha256, at_ns)
    told(one.seen.st_size, 1)
    return one, sha256


def _hash(one: Found) -> tuple[Found, str, int]:
    for _ in range(_TRIES):
        read_at_ns = time.time_ns()
        try:
            sha256, before, after = digest(one.place)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise DatasetRefused(
                f"`{one.path}` cannot be read: {reason}", hint="make it readable, or leave it out"
            ) from error
        if sha256 and unchanged(before, after):
            return one._replace(seen=Seen.of(after)), sha256, read_at_ns
    raise DatasetRefused(
        f"`{one.path}` changed each of the {_TRIES} times it was read", hint="try again once nothing writes to it"
    )
