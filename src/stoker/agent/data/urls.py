"""Downloads a URL into the cache: resumes partial downloads, and skips what has not changed."""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from stoker.agent.data.cache import Cache
from stoker.agent.data.downloading import TRY_FOR_S, Tally, Tell
from stoker.errors import Corrupt, Missing, StoreDenied, StoreFailed, StoreUnavailable
from stoker.stores.kinds import without_secrets
from stoker.stores.transfer.disk import disk_failed

_PIECE_BYTES = 1 << 20
_TIMEOUT_S = 30.0
_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 5.0
_LATER = (408, 425, 429, 500, 502, 503, 504)  # worth a retry

MakeRoom = Callable[[str, int], None]  # for a partial download of this name and size


@dataclass(frozen=True, slots=True)
class UrlAnswer:
    """The server's headers for a file. `size_bytes` is -1 where it is unknown."""

    size_bytes: int
    etag: str
    changed: str

    @property
    def lasting(self) -> bool:
        """The server sends a validator that changes with the content."""
        return bool(self.etag or self.changed)


def name_of(url: str) -> str:
    """The name of the file on the node."""
    name = PurePosixPath(unquote(urlsplit(url).path)).name
    return name.replace("\0", "") if name not in ("", ".", "..") else "data"


class UrlFetch:
    """`check` raises to stop."""

    def __init__(self, cache: Cache, check: Callable[[], None], tell: Tell, tally: Tally) -> None:
        self._cache = cache
        self._check = check
        self._tell = tell
        self._tally = tally
        self.fetched = False  # bytes came over the network, not from the cache

    def fetch(self, url: str, sha256: str = "", make_room: MakeRoom = lambda _name, _size: None) -> tuple[str, int]:
        """Hash and size of the content at the URL, which is then in the cache. Raises StoreFailed."""
        if sha256 and (size := self._size_of(sha256)) >= 0 and self._cache.has(sha256, size):
            return sha256, size
        until, pause_s, told = time.monotonic() + TRY_FOR_S, _PAUSE_S, False
        while True:
            before = self._tally.done_bytes
            try:
                return self._try(url, sha256, make_room)
            except StoreUnavailable as error:
                if self._tally.done_bytes > before:  # slow progress is progress
                    until, pause_s = time.monotonic() + TRY_FOR_S, _PAUSE_S
                if time.monotonic() >= until:
                    raise
                if not told:
                    self._tell("data-waits", f"could not read the data, retrying: {error.message}")
                told = True
            self._check()
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _try(self, url: str, sha256: str, make_room: MakeRoom) -> tuple[str, int]:
        with _opened(url, {}) as answer:
            found = _found(answer)
            name = _pin(url, found)
            known = self._cache.pinned(name) if found.lasting else None
            if known and (not sha256 or known[0] == sha256) and self._cache.has(*known):
                return known
            if found.size_bytes > 0:
                make_room(name, found.size_bytes)
            while True:
                with self._cache.fetching(name) as part:
                    if part:
                        return self._fill(part, name, url, found, sha256, answer)
                self._check()  # another process is downloading the same
                time.sleep(_PAUSE_S)
                if found.lasting and (known := self._cache.pinned(name)) and self._cache.has(*known):
                    return known

    def _fill(self, part: BinaryIO, name: str, url: str, found: UrlAnswer, sha256: str, first: Any) -> tuple[str, int]:
        digest = hashlib.sha256()
        at = _read_again(part, digest) if found.lasting else 0
        try:
            if at:
                with _opened(url, {"Range": f"bytes={at}-", "If-Range": found.etag or found.changed}) as answer:
                    if answer.status != 206:  # cannot resume, or the content has changed: restart
                        at, digest = 0, hashlib.sha256()
                    at = self._copy(answer, part, digest, at)
            else:
                at = self._copy(first, part, digest, 0)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                self._cache.drop_part(name)
                raise disk_failed("fetch", without_secrets(url), error) from error
            raise _cut_off(url, error) from error
        if found.size_bytes >= 0 and at != found.size_bytes:
            raise StoreUnavailable(f"{without_secrets(url)}: connection lost after {at} of {found.size_bytes} bytes")
        self.fetched = True
        is_ = digest.hexdigest()
        if sha256 and is_ != sha256:
            self._cache.drop_part(name)
            raise Corrupt(
                f"{without_secrets(url)} has the hash {is_}, but the job expects {sha256}",
                hint="if the file was changed on purpose, correct `sha256` in the job",
            )
        self._cache.commit(name, is_)
        if found.lasting:
            self._cache.pin(name, is_, at)
        return is_, at

    def _copy(self, answer: Any, part: BinaryIO, digest: Any, at: int) -> int:
        part.seek(at)
        part.truncate(at)
        while piece := answer.read(_PIECE_BYTES):
            self._check()
            digest.update(piece)
            rest = memoryview(piece)
            while rest:
                rest = rest[part.write(rest) :]
            at += len(piece)
            self._tally.add(len(piece))
        return at

    def _size_of(self, sha256: str) -> int:
        try:
            return os.stat(self._cache.object(sha256)).st_size  # noqa: PTH116  # text is what there is
        except FileNotFoundError:
            return -1


def _opened(url: str, headers: dict[str, str]) -> Any:
    """The response, once its headers have arrived. Raises StoreUnavailable where a retry may help, else StoreFailed."""
    shown = without_secrets(url)
    try:
        request = urllib.request.Request(
            url, headers={"User-Agent": "stoker", "Accept-Encoding": "identity", **headers}
        )
        return urllib.request.urlopen(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        with error:
            text = f"{shown} returned {error.code} {error.reason}"
        if error.code == 416:  # the file is shorter than what was downloaded before
            return _opened(url, {})
        if error.code in (404, 410):
            raise Missing(text, hint="open it in a browser to check whether it still exists") from None
        if error.code in (401, 403):
            raise StoreDenied(text, hint="a URL must be public; for anything else, use `stoker store add`") from None
        raise (StoreUnavailable if error.code in _LATER else StoreFailed)(text) from None
    except (OSError, http.client.HTTPException) as error:
        raise _cut_off(url, error) from error
    except ValueError as error:
        raise StoreFailed(f"`{shown}` is not a URL that can be downloaded: {error}") from None


def _cut_off(url: str, error: Exception) -> StoreUnavailable:
    reason = getattr(error, "reason", None) or error
    return StoreUnavailable(f"could not read {without_secrets(url)}: {reason}")


def _found(answer: Any) -> UrlAnswer:
    length = answer.headers.get("Content-Length") or ""
    etag = answer.headers.get("ETag") or ""
    return UrlAnswer(
        int(length) if length.isdecimal() else -1,
        "" if etag.startswith("W/") else etag,  # a weak etag does not guarantee equal bytes
        answer.headers.get("Last-Modified") or "",
    )


def _pin(url: str, found: UrlAnswer) -> str:
    which = "\0".join(("url", url, str(found.size_bytes), found.etag, found.changed))
    return hashlib.sha256(which.encode()).hexdigest()


def _read_again(part: BinaryIO, digest: Any) -> int:
    at = 0
    part.seek(0)
    while piece := part.read(_PIECE_BYTES):
        digest.update(piece)
        at += len(piece)
    return at
