"""Stages the inputs of a run on its node before the script starts, downloads those that are URLs, and removes them when
it has ended."""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import unquote, urlsplit

from stoker.agent.attempt.endings import AttemptBroken
from stoker.agent.data import source
from stoker.agent.data.bringing import bring
from stoker.agent.data.cache import Cache, Hold
from stoker.agent.data.downloading import TRY_FOR_S, Tally, Tell
from stoker.agent.data.mounts import WaitWatch
from stoker.agent.data.source import DataSite, Input, cache_settings
from stoker.agent.machine.machine import NodeMachine
from stoker.agent.notice.stopping import Stopping
from stoker.errors import Corrupt, Missing, StoreDenied, StoreFailed, StoreUnavailable
from stoker.model.orders import Orders
from stoker.model.run.report import DataFigures
from stoker.stores import Store
from stoker.stores.kinds import without_secrets
from stoker.stores.transfer.disk import disk_failed

if TYPE_CHECKING:
    from stoker.agent.data.sharing import Peers

KEEP_EVERY_S = 2.0  # between checks of the mounts
_TRIES = 5


def at_node(store: Store, orders: Orders, machine: NodeMachine, stopping: Stopping, tell: Tell) -> Staging:
    """Raises Broken where the settings of the cache are invalid."""
    settings = cache_settings(machine.variables, machine.environments.with_name("cache"))
    cache = Cache(settings.root)
    shim = machine.agent_command("fusermount")
    hold = Hold(cache, orders.key)
    limit_bytes, check = settings.limit_bytes, stopping.check
    peers = _peers(store, orders, cache, check)
    return Staging(DataSite(store, orders, cache, hold, limit_bytes, machine.variables, shim, check, tell, peers))


def _peers(store: Store, orders: Orders, cache: Cache, check: Callable[[], None]) -> Peers | None:
    """None: it is the only node, or all of them are on this computer and have one cache."""
    if orders.nodes == 1 or store.near:
        return None
    from stoker.agent.attempt.gang import Channel  # here, because most runs have one node
    from stoker.agent.data.sharing import Peers  # likewise

    return Peers(Channel(store, orders), cache, check)


class Staging:
    """`stage`, then `watch` once the script runs, then `finish`; `release` in any case."""

    def __init__(self, site: DataSite) -> None:
        self._site = site
        self._inputs: list[Input] = []
        self._watch: WaitWatch | None = None
        self._keeper: threading.Thread | None = None
        self._begun = time.monotonic()
        self._ended = 0.0
        self._last: dict[str, DataFigures] = {}
        self._done = threading.Event()

    @property
    def folder(self) -> Path:
        """What must be cleared if this process dies."""
        return self._site.hold.folder

    def stage(self) -> dict[str, str]:
        """Where each input is, by name. Raises Broken or StoreFailed; these folders never contain partial files."""
        try:
            self._site.hold.take()
        except OSError as error:
            raise disk_failed("use the cache in", str(self._site.cache.root), error) from error
        places = {}
        for name, order in self._site.orders.inputs.items():
            self._site.check()
            one = Input(name, order, self._site.hold.trees / name)
            self._inputs.append(one)
            start = time.monotonic()
            places[name] = str(self._bring(one))
            one.stage_s = time.monotonic() - start
            self._tell(one)
        new = [sha256 for one in self._inputs for sha256 in one.fetched]
        # In a thread: a script need not wait until its data is flushed to disk.
        threading.Thread(target=self._site.cache.settle, args=(new,), name="settle", daemon=True).start()
        return places

    def watch(self, pids: Callable[[], set[int]]) -> None:
        """From here on, maintains the mounts and measures whether the script waits for them. The other nodes have their
        data, too."""
        self._stop_sharing()
        if any(one.mounts for one in self._inputs):
            self._watch = WaitWatch(pids)
            self._watch.start()
            self._keeper = threading.Thread(target=self._keep, name="mounts", daemon=True)
            self._keeper.start()

    @property
    def helpers(self) -> set[int]:
        """Processes that serve the mounts, which do not belong to the script."""
        return {pid for one in self._inputs for mount, _ in one.mounts for pid in mount.pids}

    def figures(self) -> dict[str, DataFigures]:
        """The current figures, or those at the end of the script."""
        if self._last:
            return self._last
        waited_s = self._watch.waited_s if self._watch else 0.0
        passed_s = (self._ended or time.monotonic()) - self._begun
        return {one.name: one.figures(waited_s, passed_s) for one in list(self._inputs)}

    def finish(self) -> None:
        """The script has ended: takes the last figures. Calling it twice is fine."""
        self._ended = self._ended or time.monotonic()
        self._done.set()
        if self._keeper:
            self._keeper.join()
        if self._watch:
            self._watch.finish()
        self._last = self.figures()

    def release(self) -> None:
        """Unmounts and releases everything. Calling it twice is fine."""
        self._stop_sharing()
        self.finish()
        for one in self._inputs:
            for mount, _ in one.mounts:
                mount.stop()
        self._site.hold.release()

    def _stop_sharing(self) -> None:
        if self._site.peers:
            self._site.peers.close()

    def _bring(self, one: Input) -> Path:
        if not one.order.url:
            bring(self._site, one)
            return one.top
        return self._bring_url(one)

    def _bring_url(self, one: Input) -> Path:
        """A single file, so the path is that of the file."""
        one.way, one.files = "download", 1
        one.top.mkdir()
        place = one.top / name_of(one.order.url)
        work = UrlFetch(self._site.cache, self._site.check, self._site.tell, one.tally)
        for _ in range(_TRIES):
            sha256, one.size_bytes = work.fetch(one.order.url, one.order.sha256, partial(self._make_room, one))
            one.fetched += [sha256] if work.fetched else []
            one.cached_bytes = 0 if work.fetched else one.size_bytes
            with suppress(FileNotFoundError):
                self._site.cache.use(sha256, str(place))
                source.protect(one.top)
                return place
        raise StoreFailed(f"the cache of this node is too small for `{one.name}`", hint="raise STOKER_CACHE_LIMIT")

    def _make_room(self, one: Input, name: str, size_bytes: int) -> None:
        one.size_bytes = size_bytes
        self._site.hold.reserve({name: size_bytes}, self._site.limit_bytes)

    def _keep(self) -> None:
        while not self._done.wait(KEEP_EVERY_S):
            for one in self._inputs:
                for mount, key in one.mounts:
                    try:
                        done = mount.keep(self._site.store.route(key))
                    except (AttemptBroken, OSError) as error:
                        done = f"became unreadable: {error}"
                    if done:
                        self._site.tell("data", f"`{one.name}` {done}")

    def _tell(self, one: Input) -> None:
        repaired = self._site.cache.repaired
        if repaired:
            what = "1 file" if len(repaired) == 1 else f"{len(repaired)} files"
            self._site.tell("data-repaired", f"{what} in the cache had been damaged, and were downloaded again")
            repaired.clear()
        self._site.tell("data", one.words())


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
