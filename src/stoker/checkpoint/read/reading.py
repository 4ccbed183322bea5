"""Opens a checkpoint: every byte is verified before any of it is believed, on several cores while the disk reads."""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from stoker.checkpoint.read import format
from stoker.checkpoint.read.format import LARGE_BYTES, CheckpointManifest, FileEntry
from stoker.checkpoint.save.snapshot import STATE
from stoker.checkpoint.state.structure import Leaf, Whole, make, on_this_rank, restore, together
from stoker.errors import CheckpointRefused, Unreadable

_CHUNK_BYTES = 1 << 20
_PAGE_BYTES = mmap.PAGESIZE
_THREADS = 8  # some hash while others wait for the disk, or for memory


class Digest(Protocol):
    def update(self, data: memoryview, /) -> None: ...


@dataclass(slots=True)
class OpenCheckpoint:
    """A checkpoint whose files are all as they were written."""

    path: Path
    manifest: CheckpointManifest
    verified: bool = False
    _contents: dict[str, memoryview] = field(default_factory=dict)
    _tensors: dict[str, dict[str, tuple[Leaf, memoryview]]] = field(default_factory=dict)

    def part(self, rank: int) -> OpenedPart | None:
        """What this rank saved; None if there was no such rank."""
        prefix = rank_folder(rank)
        if prefix + STATE not in self.manifest.files:
            return None
        found = json.loads((self.path / (prefix + STATE)).read_bytes())
        leaves = {
            name: Leaf(dtype, tuple(shape), like, detail)
            for name, (dtype, shape, like, detail) in found["leaves"].items()
        }
        return OpenedPart(self, prefix, found["form"], leaves)

    def tensors_of(self, file: str) -> dict[str, tuple[Leaf, memoryview]]:
        if file not in self._tensors:
            contents = self._contents.pop(file, None)
            self._tensors[file] = format.places(mapped(self.path / file) if contents is None else contents)
        return self._tensors[file]


@dataclass(frozen=True, slots=True)
class OpenedPart:
    """What one rank saved. `form` is its structure, `leaves` what is known of its numbers without reading them."""

    opened: OpenCheckpoint
    prefix: str
    form: Any
    leaves: dict[str, Leaf]

    def value(self, form: Any, *, copy: bool = True, whole: Whole = on_this_rank) -> Any:
        """A piece of the structure as the value it was. Without `copy`, it shares memory with this object."""

        def leaf(name: str) -> Any:
            file = self.opened.manifest.tensors[self.prefix + name]
            _, data = self.opened.tensors_of(file)[name]
            # What was read for it alone is aligned memory that nobody else has: a large tensor may keep it.
            keeps = self.opened.verified and len(data) >= LARGE_BYTES
            return make(self.leaves[name], data, copy=copy and not keeps)

        return restore(form, leaf, whole)


def rank_folder(rank: int) -> str:
    """Where the files of a rank are; those of the first are at the top."""
    return f"rank-{rank}/" if rank else ""


def open_as_is(path: Path) -> OpenCheckpoint:
    """Without looking at its files: for callers that have just verified them."""
    try:
        return OpenCheckpoint(path, format.load((path / format.NAME).read_bytes()))
    except FileNotFoundError:
        raise Unreadable("it has no manifest") from None
    except OSError as error:
        raise Unreadable(f"its manifest cannot be read: {error.strerror}") from None


def open_verified(path: Path) -> OpenCheckpoint:
    """An `Unreadable` names the first file that is not as it was written."""
    opened = open_as_is(path)
    memory = PageMemory()

    def read(item: tuple[str, FileEntry]) -> str | None:
        name, entry = item
        opened._contents[name] = contents = memory.room(entry.size_bytes)
        return _read(path / name, entry, contents)

    # The largest first, so that no core is left with one at the end.
    files = sorted(opened.manifest.files.items(), key=lambda item: -item[1].size_bytes)
    with ThreadPoolExecutor(_THREADS, "stoker-verify") as pool:
        for (name, _), problem in zip(files, pool.map(read, files), strict=True):
            if problem:
                raise Unreadable(f"its file `{name}` {problem}")
    opened.verified = True
    return opened


def _read(path: Path, entry: FileEntry, into: memoryview) -> str | None:
    """Each piece is hashed while it is still in the core's cache. What is returned is a complaint."""
    found = sha256()
    try:
        size_bytes = path.stat().st_size
        if size_bytes != entry.size_bytes:
            return f"has {size_bytes} bytes instead of {entry.size_bytes}"
        at = _read_direct(path, into, found) if size_bytes >= LARGE_BYTES else 0
        with path.open("rb", buffering=0) as file:
            file.seek(at)
            while at < size_bytes and (count := file.readinto(into[at : at + _CHUNK_BYTES])):
                found.update(into[at : at + count])
                at += count
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if found.hexdigest() == entry.sha256 else "does not match its hash"


def _read_direct(path: Path, into: memoryview, found: Digest) -> int:
    """Past the page cache, which would cost the cores that hash another copy. Returns how far it came: to the last
    whole page, or to nothing where the file system cannot do that."""
    at = 0
    with suppress(AttributeError, OSError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            while (size := min(len(into) - at, _CHUNK_BYTES) // _PAGE_BYTES * _PAGE_BYTES) > 0:
                count = os.readv(fd, [into[at : at + size]]) // _PAGE_BYTES * _PAGE_BYTES
                if not count:
                    break
                found.update(into[at : at + count])
                at += count
        finally:
            os.close(fd)
    return at


def mapped(path: Path) -> memoryview:
    """A file as memory. Changes to it stay in this process; it lives as long as anything made of it."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


# Fresh memory to read a checkpoint into: in huge pages where the machine has free ones.

_SLOW_NS = 1_500_000  # of the processor's time: a free huge page takes 0.2 ms, another one 5 ms


class PageMemory:
    """Huge pages take a fifth of the time that small ones do. But many a virtual machine gives to its host what it does
    not use, and has huge pages brought back one small page at a time, while small ones are mostly there. So the first
    huge page of each room is tried, and after one that was slow no more are asked for."""

    def __init__(self, processor_ns: Callable[[], int] = time.thread_time_ns) -> None:
        self.huge = hasattr(mmap, "MADV_HUGEPAGE")
        self._processor_ns = processor_ns

    def room(self, size_bytes: int) -> memoryview:
        """Private to this process; what is large is on pages of its own and, unlike a bytearray, not written to yet."""
        if size_bytes < LARGE_BYTES:  # in one that is larger, a huge page lies whole
            return memoryview(bytearray(size_bytes))
        room = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if self.huge:
            with suppress(OSError):  # a kernel without them
                self._try_huge(room)
        return memoryview(room)

    def _try_huge(self, room: mmap.mmap) -> None:
        room.madvise(mmap.MADV_HUGEPAGE)
        begun = self._processor_ns()
        room[len(room) // 2] = 0
        if self._processor_ns() - begun > _SLOW_NS:
            self.huge = False
            room.madvise(mmap.MADV_NOHUGEPAGE)


# Weights from an untrusted file: read without executing anything in it.


def load_weights(path: str | Path, part: str = "model") -> Any:
    """A `state_dict` from a checkpoint folder (that of its `part`), a `.safetensors` file, or a file of `torch.save`.
    What was spread over ranks is put together.

    A file of `torch.save` may hold tensors and plain containers; one that needs more is refused.
    """
    path = Path(path)
    if path.is_dir():
        opened = open_verified(path)
        ranks = [opened.part(rank) for rank in range(opened.manifest.ranks)]
        first = next((one for one in ranks if one), None)
        if first is None or part not in first.form["parts"]:
            raise CheckpointRefused(f"{path} contains no `{part}`", hint="its state.json lists its content")

        def whole(words: Any, _: Any) -> Any:
            if None in ranks:
                raise CheckpointRefused(
                    f"{path} contains the parts of one node, but its tensors are sharded over several"
                )
            return together(words, [rank.value(words["of"]) for rank in ranks if rank])

        return first.value(first.form["parts"][part], whole=whole)
    if path.suffix == ".safetensors":
        return {name: make(leaf, data) for name, (leaf, data) in format.places(mapped(path)).items()}
    torch = import_module("torch")
    pickle = import_module("pickle")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointRefused(
            f"{path} contains more than tensors and plain containers, and reading it would execute code: "
            f"{str(error).splitlines()[0]}",
            hint='if you trust its source, convert it once: `python -c "import torch; torch.save('
            f"torch.load('{path}', weights_only=False).state_dict(), 'weights.pt')\"`",
        ) from None
