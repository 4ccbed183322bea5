"""The files of a venv as they are kept in a store: a list of them, and packs with their contents.

A pack has many small files, or a single large one. A list may name packs that another environment made: what two
environments have in common is stored and moved once.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from stoker.errors import FileChanged, Malformed, SnapshotRefused, StokerError
from stoker.model import untrusted
from stoker.model.environment import HEAD_BYTES, LIST_BYTES, BuiltEnvironment, PackedFiles
from stoker.model.snapshot import Entry, EntryKind
from stoker.model.wire import dump
from stoker.model.workspace import layout
from stoker.stores import Store
from stoker.stores.transfer.files import Item, side_by_side, upload
from stoker.stores.trees.unpack import checked

PACK_BYTES = 24 << 20  # of small files; in memory while it is uploaded
_EARLIER = 5  # environments whose packs are used again
_AT_ONCE = 4
_THREADS = 4  # hashing releases the interpreter's lock
_OWN_TOP = ("pyvenv.cfg", "CACHEDIR.TAG", ".gitignore", ".lock", "lib64")
# Packages have programs such as `pydocstyle` and `activate-global-python-argcomplete`.
_OWN_BIN = re.compile(r"python[\d.]*t?|activate(\.\w+|_this\.py)?|(deactivate|pydoc)\.bat")
Place = tuple[str, int]  # the name of a pack, and where a content starts in it


class NotRelocatable(Exception):
    """Why a venv works in its own folder only."""


@dataclass(frozen=True, slots=True)
class VenvFile:
    entry: Entry
    place: str
    changed_ns: int


def files_of(venv: Path) -> list[VenvFile]:
    """Everything that was installed: not what making a venv leaves, which differs from node to node. Raises
    NotRelocatable."""
    found = sorted(_walk(str(venv), ""))
    with ThreadPoolExecutor(_THREADS) as threads:
        files = list(threads.map(lambda one: _file(str(venv), one), found))
    for one in files:
        if one.entry.path.startswith("bin/") and one.entry.sha256 and _mentions(one.place, str(venv)):
            raise NotRelocatable(f"`{one.entry.path}` contains its own path")
    return files


def _walk(root: str, folder: str) -> Iterator[str]:
    with os.scandir(os.path.join(root, folder)) as found:  # noqa: PTH118  # text in, text out: there are thousands
        for one in found:
            path = f"{folder}/{one.name}" if folder else one.name
            if _is_venvs_own(path):
                continue
            if one.is_dir(follow_symlinks=False):
                yield from _walk(root, path)
            else:
                yield path


def _is_venvs_own(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    if not folder:
        return name in _OWN_TOP or name.startswith(".stoker")
    return folder == "bin" and _OWN_BIN.fullmatch(name) is not None


def _file(root: str, path: str) -> VenvFile:
    place = f"{root}/{path}"
    seen = os.lstat(place)
    if os.path.islink(place):  # noqa: PTH114  # as above
        target = os.readlink(place)  # noqa: PTH115  # as above
        if leaves(path, target):
            raise NotRelocatable(f"`{path}` leads to `{target}`")
        return VenvFile(Entry(path, EntryKind.LINK, target=target), place, 0)
    entry = Entry(path, sha256=_hash(place), size_bytes=seen.st_size, executable=bool(seen.st_mode & 0o100))
    return VenvFile(entry, place, seen.st_mtime_ns)


def _hash(place: str) -> str:
    digest, buffer = hashlib.sha256(), bytearray(1 << 20)
    with open(place, "rb", buffering=0) as file:  # noqa: PTH123  # as above
        while count := file.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
    return digest.hexdigest()


def leaves(path: str, target: str) -> bool:
    """Whether a link leads out of its environment."""
    there = os.path.normpath(f"{os.path.dirname(path)}/{target}")  # noqa: PTH120  # as above
    return target.startswith("/") or there == ".." or there.startswith("../")


def _mentions(place: str, text: str) -> bool:
    with open(place, "rb") as file:  # noqa: PTH123  # as above
        return text.encode() in file.read(1 << 20)


def keep(
    store: Store, shelf: str, head: BuiltEnvironment, files: Sequence[VenvFile], *, anew: bool = False
) -> tuple[BuiltEnvironment, int]:
    """Puts an environment into the store. It is visible once all of it is there. `anew`: no pack that is there is used,
    because one is damaged. Returns its head, and how many bytes were uploaded. Raises what the store raises, and
    FileChanged."""
    known = {} if anew else _known(store, shelf, head.platform)
    packs = list(_packs([one for one in files if one.entry.sha256 and one.entry.sha256 not in known]))
    side_by_side(packs, lambda pack: _upload(store, shelf, pack), None, _AT_ONCE)
    for pack in packs:
        known.update(pack.places())
    listed = dump(_listed(files, known))
    sha256 = hashlib.sha256(listed).hexdigest()
    store.put(layout.environment_list(shelf, sha256), listed)
    done = BuiltEnvironment(
        **{name: getattr(head, name) for name in ("id", "name", "source", "python", "platform", "packages", "built_s")},
        at=datetime.now(UTC),
        files=len(files),
        size_bytes=sum(one.entry.size_bytes for one in files),
        listed=sha256,
    )
    store.put(layout.environment_head(shelf, head.id), dump(done))
    return done, sum(pack.size_bytes for pack in packs)


def _known(store: Store, shelf: str, platform: str) -> dict[str, Place]:
    """Where contents of earlier environments are."""
    there = {one.key: one.size_bytes for one in store.list(layout.environment_packs(shelf).rstrip("/"))}
    heads = sorted(store.list(layout.environment_heads(shelf).rstrip("/")), key=lambda one: -one.changed_at)
    known: dict[str, Place] = {}
    for one in heads[:_EARLIER]:
        try:
            head = untrusted.fetch(BuiltEnvironment, store, one.key, HEAD_BYTES, datetime.now(UTC))
            listed = read_list(store, shelf, head) if head.platform == platform else None
        except StokerError:  # it is damaged, or was removed meanwhile
            continue
        for entry, pack, start in zip(listed.entries, listed.pack, listed.start, strict=True) if listed else ():
            name = listed.packs[pack] if listed and entry.sha256 else ""
            if name and there.get(layout.environment_pack(shelf, name), -1) >= start + entry.size_bytes:
                known[entry.sha256] = name, start
    return known


def read_list(store: Store, shelf: str, head: BuiltEnvironment) -> PackedFiles:
    """Raises Malformed where it is not the one that the head names."""
    data = untrusted.fetch_bytes(store, layout.environment_list(shelf, head.listed), LIST_BYTES)
    if hashlib.sha256(data).hexdigest() != head.listed:
        raise Malformed(f"the list of `{head.ref}` does not have its hash")
    found = untrusted.load(PackedFiles, data, datetime.now(UTC))
    if not found.is_sound or any(leaves(one.path, one.target) for one in found.entries if one.target):
        raise Malformed(f"the list of `{head.ref}` is not one that an agent writes")
    try:
        checked(found.entries)
    except SnapshotRefused as refused:
        raise Malformed(f"the list of `{head.ref}` is not one that an agent writes: {refused.message}") from None
    return found


@dataclass(frozen=True, slots=True)
class NewPack:
    files: tuple[VenvFile, ...]

    @property
    def name(self) -> str:
        return hashlib.sha256("".join(one.entry.sha256 for one in self.files).encode()).hexdigest()

    @property
    def size_bytes(self) -> int:
        return sum(one.entry.size_bytes for one in self.files)

    def places(self) -> Iterator[tuple[str, Place]]:
        name, at = self.name, 0
        for one in self.files:
            yield one.entry.sha256, (name, at)
            at += one.entry.size_bytes


def _packs(files: Sequence[VenvFile]) -> Iterator[NewPack]:
    """Each content once."""
    once = {one.entry.sha256: one for one in files}
    waiting: list[VenvFile] = []
    size = 0
    for one in once.values():
        if one.entry.size_bytes > PACK_BYTES // 2:
            yield NewPack((one,))
            continue
        waiting.append(one)
        size += one.entry.size_bytes
        if size > PACK_BYTES // 2:
            yield NewPack(tuple(waiting))
            waiting, size = [], 0
    if waiting:
        yield NewPack(tuple(waiting))


def _upload(store: Store, shelf: str, pack: NewPack) -> None:
    key, first = layout.environment_pack(shelf, pack.name), pack.files[0]
    if len(pack.files) == 1:
        upload(store, [Item(first.place, key, first.entry.size_bytes, first.entry.sha256)])
        return
    parts = []
    for one in pack.files:
        with open(one.place, "rb", buffering=0) as file:  # noqa: PTH123  # as above
            parts.append(file.read())
        if hashlib.sha256(parts[-1]).hexdigest() != one.entry.sha256:
            raise FileChanged(f"`{one.place}` changed during its upload")
    store.put(key, b"".join(parts))


def _listed(files: Sequence[VenvFile], known: Mapping[str, Place]) -> PackedFiles:
    where = [known[one.entry.sha256] if one.entry.sha256 else ("", 0) for one in files]
    packs = tuple(dict.fromkeys(name for name, _ in where if name))
    number = {name: at for at, name in enumerate(packs)}
    return PackedFiles(
        entries=tuple(one.entry for one in files),
        packs=packs,
        pack=tuple(number.get(name, 0) for name, _ in where),
        start=tuple(start for _, start in where),
        changed_ns=tuple(one.changed_ns for one in files),
    )
