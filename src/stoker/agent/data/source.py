"""What staging knows of the node and of each input, and where the files of an input are: in a store, some of them
perhaps on this computer, where they are linked if that is safe."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.agent.attempt.endings import AttemptBroken
from stoker.agent.data import cache
from stoker.agent.data.cache import Cache, Hold, gigabytes, hash_of
from stoker.agent.data.downloading import Tally, Tell, WantedContent
from stoker.agent.data.mounting import Mount
from stoker.agent.data.mounts import read_only
from stoker.errors import Corrupt, Missing
from stoker.model.cause import Cause
from stoker.model.dataset import DataFile, Manifest
from stoker.model.orders import DataOrder, Orders
from stoker.model.run.report import DataFigures
from stoker.stores import Store
from stoker.stores.access import Route

if TYPE_CHECKING:
    from stoker.agent.data.sharing import Peers


@dataclass(frozen=True, slots=True)
class DataSite:
    store: Store
    orders: Orders
    cache: Cache
    hold: Hold
    limit_bytes: int | None  # of the cache
    variables: Mapping[str, str]
    shim: Sequence[str]  # the command that replaces `fusermount3`
    check: Callable[[], None]  # raises to stop everything
    tell: Tell  # adds to the timeline
    peers: Peers | None = None  # the other nodes, which need the same contents


@dataclass
class Input:
    """One input during staging. The reporting thread reads it while another works on it."""

    name: str
    order: DataOrder
    top: Path  # the folder it is created in
    way: str = ""  # link, download or mount
    files: int = 0
    size_bytes: int = 0
    cached_bytes: int = 0
    stage_s: float = 0.0
    tally: Tally = field(default_factory=Tally)
    fetched: list[str] = field(default_factory=list)  # hashes that are new in the cache
    mounts: list[tuple[Mount, str]] = field(default_factory=list)  # each with a key that it serves

    def read_bytes(self) -> int:
        """Read from the store so far."""
        return sum(mount.read_bytes() for mount, _ in self.mounts) if self.mounts else self.tally.done_bytes

    def figures(self, waited_s: float, passed_s: float) -> DataFigures:
        """`waited_s` is how long the script waited for mounts, `passed_s` the time since staging started."""
        wait_s = self.stage_s + (waited_s if self.mounts else 0.0)
        return DataFigures(
            way=self.way,
            files=self.files,
            size_bytes=self.size_bytes,
            cached_bytes=self.cached_bytes,
            read_bytes=self.read_bytes(),
            stage_s=self.stage_s,
            wait_s=wait_s,
            wait_share=min(wait_s / passed_s, 1.0) if passed_s > 0 else 0.0,
        )

    def words(self) -> str:
        """How it got to the node."""
        files = "1 file" if self.files == 1 else f"{self.files:,} files"
        what = f"`{self.name}`: {self.order.label}, {files}, {gigabytes(self.size_bytes)}"
        took = f"in {self.stage_s:.2f} s"
        if self.way == "link":
            return f"{what}, linked {took}: nothing was copied"
        if self.way == "mount":
            return f"{what}, mounted {took}"
        read, passed = self.read_bytes(), self.tally.passed_bytes
        if not read and not passed:
            return f"{what}, from the cache of this node {took}"
        shared = f", of which {gigabytes(passed)} from other nodes" if passed else ""
        rest = ", the rest from the cache" if self.cached_bytes else ""
        rate = (read + passed) / max(self.stage_s, 1e-9) / 1e9
        return f"{what}, {gigabytes(read + passed)} downloaded {took} ({rate:.2f} GB/s){shared}{rest}"


# Where a node has its cache, and how large it may become. Pure, except for a look at the disks.

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


@dataclass(frozen=True, slots=True)
class CacheSettings:
    root: Path
    limit_bytes: int | None = None  # None: the whole disk, except for a part that is kept free


def cache_settings(variables: Mapping[str, str], default: Path) -> CacheSettings:
    """`STOKER_CACHE` may name several folders separated by `:`: the one on the fastest disk is used."""
    named = [Path(name).expanduser() for name in variables.get("STOKER_CACHE", "").split(os.pathsep) if name]
    if wrong := [str(folder) for folder in named if not folder.is_absolute()]:
        raise AttemptBroken(
            f"STOKER_CACHE is `{wrong[0]}`, expected a path that begins with `/`", cause=Cause.CACHE_SETTING
        )
    limit = variables.get("STOKER_CACHE_LIMIT", "")
    return CacheSettings(min(named, key=_slowness, default=default), size_of(limit) if limit else None)


def size_of(text: str) -> int:
    """`100GB`, `1.5TB`, `512MiB`, or bytes. Raises Broken."""
    found = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(found[2].upper()) if found else None
    if not found or unit is None:
        raise AttemptBroken(
            f"STOKER_CACHE_LIMIT is `{text}`, expected a size such as `100GB`", cause=Cause.CACHE_SETTING
        )
    return int(float(found[1]) * unit)


def _slowness(folder: Path) -> int:
    """By the kernel's disk information: memory, NVMe, other flash, unknown, and last rotating disks."""
    while not folder.exists():
        folder = folder.parent
    number = folder.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not device.exists():
        return 0 if os.major(number) == 0 and _is_memory(folder) else 3
    real = device.resolve()
    disk = real if (real / "queue").is_dir() else real.parent  # a partition is part of its disk
    try:
        turns = (disk / "queue" / "rotational").read_text().strip() == "1"
    except OSError:
        return 3
    return 4 if turns else 1 if disk.name.startswith("nvme") else 2


def _is_memory(folder: Path) -> bool:
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return False
    kinds = {line.split()[1]: line.split()[2] for line in lines}
    place = next((str(one) for one in (folder, *folder.parents) if str(one) in kinds), "/")
    return kinds.get(place) == "tmpfs"


class DataSource:
    """`files` are those that this node needs."""

    def __init__(self, store: Store, order: DataOrder, files: Sequence[DataFile]) -> None:
        self._store = store
        self.order = order
        self.files = files
        self._dataset = order.dataset.partition("@")[0]

    @classmethod
    def open(cls, store: Store, order: DataOrder, orders: Orders) -> DataSource:
        """Raises Missing where the file list does not exist, DatasetRefused where it is not the pinned one."""
        try:
            manifest = Manifest.from_bytes(store.get(order.manifest), order.id)
        except Missing as error:
            hint = "list datasets with `stoker data ls`"
            raise Missing(
                f"the file list of {order.label} is missing in the store: {error.message}", hint=hint
            ) from None
        files = part_of(manifest.files, orders.node, orders.nodes) if order.shard else list(manifest.files)
        return cls(store, order, files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def key(self, file: DataFile) -> str:
        return self.order.root + file.stored_in(self._dataset)

    def get(self, key: str, start: int, size: int) -> bytes:
        return self._store.get(key, start, size)

    def route(self, file: DataFile) -> Route | None:
        """How a mount would reach it; None without a token to mount with."""
        return self._store.route(self.key(file))

    def local(self, file: DataFile) -> str:
        """Its path, where the store is a folder of this computer; else empty."""
        return self._store.path(self.key(file))

    def wanted(self, file: DataFile) -> WantedContent:
        """Without a hash, the store, the key, the size and the etag identify the content."""
        if file.sha256:
            return WantedContent(file.sha256, file.size_bytes, self.key(file), file.path, file.sha256)
        which = "\0".join((self.order.store, file.key, str(file.size_bytes), file.etag))
        return WantedContent(hashlib.sha256(which.encode()).hexdigest(), file.size_bytes, self.key(file), file.path)

    def check_in_place(self) -> None:
        """Files that were registered in place may have changed since: size and etag tell. Raises Corrupt."""
        pinned = {self.key(file): file for file in self.files if file.key}
        if not pinned:
            return
        seen = {one.key: one for one in self._store.list(_common_folder(list(pinned))) if one.key in pinned}
        for key, file in pinned.items():
            one = seen.get(key)
            gone = one is None or one.size_bytes != file.size_bytes
            if one is None or gone or (file.etag and one.etag != file.etag):
                what = "was removed from the store" if one is None else "was changed in the store"
                raise Corrupt(
                    f"`{file.path}` {what} after {self.order.label} was registered",
                    hint="register the current files: `stoker data add`",
                    cause=Cause.DATASET_CHANGED,
                )


def _common_folder(keys: list[str]) -> str:
    first, last = min(keys).split("/")[:-1], max(keys).split("/")[:-1]
    same = 0
    while same < min(len(first), len(last)) and first[same] == last[same]:
        same += 1
    return "/".join(first[:same])


# Which files of a dataset each of several nodes uses. Pure.


def part_of(files: Sequence[DataFile], node: int, nodes: int) -> list[DataFile]:
    """Every `nodes`-th file by path, starting at the node's own number: the same at every attempt, so that a node finds
    its part in its cache again, and evenly distributed over folders."""
    return sorted(files, key=lambda file: file.path)[node::nodes]


_THREADS = 4  # hashing releases the interpreter lock


def can_link(source: DataSource, beside: str) -> bool:
    """Contents that Stoker stored, on the file system of `beside`, in a process that can mount them read-only: a store
    has the only copy, so file permissions alone are not enough."""
    if os.geteuid() != 0 or not source.files or any(file.key for file in source.files):
        return False
    try:
        place = source.local(source.files[0])
        return bool(place) and os.stat(place).st_dev == os.stat(beside).st_dev  # noqa: PTH116
    except OSError:
        return False


def in_place(source: DataSource) -> bool:
    """Files that were registered in place, on this computer."""
    return bool(source.files) and all(file.key and source.local(file) for file in source.files)


def verify(source: DataSource, check: Callable[[], None]) -> int:
    """Checks every content against its hash: by its mark, or hashed now and marked. Returns how many bytes were hashed.

    Raises Missing or Corrupt, naming the path.
    """
    hashed = 0
    lock = threading.Lock()

    def look(file: DataFile) -> None:
        nonlocal hashed
        check()
        if _verify(file, source.local(file), source.order.label):
            with lock:
                hashed += file.size_bytes

    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(look, _once(source.files)):
            pass
    return hashed


def _once(files: Iterable[DataFile]) -> Iterable[DataFile]:
    return {file.sha256: file for file in files}.values()


def _verify(file: DataFile, place: str, label: str) -> bool:
    """True where it had to be hashed."""
    try:
        seen = os.stat(place)  # noqa: PTH116  # one for each file of a dataset
    except FileNotFoundError:
        raise Missing(f"`{file.path}` of {label} is missing in the store", hint=_AGAIN) from None
    if cache.is_trusted(seen, file.sha256, file.size_bytes):
        return False
    if seen.st_size != file.size_bytes or hash_of(place) != file.sha256:
        raise Corrupt(f"`{file.path}` of {label} is damaged in the store: its hash does not match", hint=_AGAIN)
    fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    cache.set_mark(place, file.sha256, cache.ON_DISK)
    return True


_AGAIN = "find other damaged files with `stoker data verify`, and upload them again with `stoker data put`"


# The folder that a script reads an input from: it consists of links, and a script cannot change their targets through
# it.

Place = Callable[[DataFile, str], None]  # creates this file at this path


def plant(top: Path, files: Iterable[DataFile], place: Place) -> None:
    """Creates folders and then files. Names were checked when the manifest was read; a name that the file system
    refuses, or treats as another one, raises OSError."""
    made: set[str] = set()
    root = os.fspath(top)
    top.mkdir(parents=True, exist_ok=True)
    for file in files:
        folder = file.path.rpartition("/")[0]
        if folder not in made:
            os.makedirs(f"{root}/{folder}", exist_ok=True)  # noqa: PTH103  # a Path for each file would cost more
            made.add(folder)
        place(file, f"{root}/{file.path}")


def protect(top: Path) -> str:
    """Makes the folder read-only for the script and its children; returns how, as text.

    As root by a mount that is read-only for root too. Otherwise by permissions: a script would have to change those
    first, and the cache detects it at its next look.
    """
    if read_only(top):
        return "a read-only mount"
    for folder, _, _ in os.walk(top, topdown=False):
        os.chmod(folder, 0o555)  # noqa: PTH101  # `os.walk` gives text
    return "permissions"


def symlink(target: str, path: str) -> None:
    os.symlink(target, path)  # noqa: PTH211  # one for each file of a dataset
