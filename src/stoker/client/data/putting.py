"""Uploads a folder as a version of a dataset, or registers files that are already in a store."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stoker.client.data.adopting import Adopting
from stoker.client.data.content import CountedStore, faults
from stoker.client.data.folder import FolderFile, clashes, hashes, look
from stoker.client.data.registry import About, Reaching, Registry, UploadStart
from stoker.client.progress import TransferProgress
from stoker.client.settings import ClientSettings
from stoker.client.source.statindex import StatIndex
from stoker.errors import BadInput, DatasetChanging, FileChanged, Missing, NotFound
from stoker.model.dataset import DataFile, DatasetVersion, Manifest, checked_name
from stoker.model.workspace import layout
from stoker.stores import Store, Stored
from stoker.stores.folder.store import FolderStore
from stoker.stores.transfer.files import Item, upload

_TRIES = 3  # for files that change during the upload
_PAUSE_S = 1.0
_PATIENCE_S = 600.0  # for content that is being removed from the store


@dataclass(frozen=True, slots=True)
class Put:
    """A version, and what was uploaded for it. `new` is false if it is already the newest one."""

    version: DatasetVersion
    new: bool
    sent_files: int
    sent_bytes: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PutOptions:
    """What to upload, and how. With `repair`, content in the store is verified and uploaded again if damaged; otherwise
    existing content is trusted."""

    source: Path
    name: str
    store: str = ""  # empty: the workspace's
    about: About = About()
    follow_links: bool = False
    repair: bool = False


def put(
    wish: PutOptions, settings: ClientSettings, registry: Registry, reaching: Reaching, progress: TransferProgress
) -> Put:
    """May be repeated, and resumes where it stopped. Raises DatasetRefused if the folder is not a valid dataset."""
    checked_name(wish.name)
    give_up = time.monotonic() + _PATIENCE_S
    tries = _TRIES
    while True:
        start = registry.start(wish.name, wish.store)
        try:
            return _Putting(wish, start, settings, registry, reaching, progress).run()
        except DatasetChanging:
            if time.monotonic() > give_up:
                raise
            time.sleep(_PAUSE_S)
        except FileChanged:
            tries -= 1
            if not tries:
                raise


class _Putting:
    def __init__(
        self,
        wish: PutOptions,
        start: UploadStart,
        settings: ClientSettings,
        registry: Registry,
        reaching: Reaching,
        progress: TransferProgress,
    ) -> None:
        self._wish = wish
        self._start = start
        self._index = StatIndex(index_file(settings, wish.source))
        self._registry = registry
        self._reaching = reaching
        self._progress = progress
        self._files: list[DataFile] = []
        self._sent: dict[str, int] = {}

    def run(self) -> Put:
        found = look(self._wish.source, follow_links=self._wish.follow_links)
        warnings = tuple(clashes(one.path for one in found))
        if not self._wish.repair and (same := self._unchanged(found)):
            return Put(same, False, 0, 0, warnings)
        contents = layout.contents(self._wish.name)
        store = self._reaching.store(self._start.store, reads=[], writes=[contents])
        self._progress.begin("putting", len(found), sum(one.seen.st_size for one in found))
        folder = None if self._wish.repair else store.folder(contents)
        if folder:
            self._adopt(found, folder, store)
        else:
            self._send(found, store)
        version = self._register()
        new = self._start.newest is None or version.number != self._start.newest.number
        return Put(version, new, len(self._sent), sum(self._sent.values()), warnings)

    def _send(self, found: list[FolderFile], store: Store) -> None:
        told = self._progress.moved
        upload(
            CountedStore(store, lambda size: told(size, 0)),
            self._lacking(found, store),
            lambda _, files: told(0, files),
        )

    def _adopt(self, found: list[FolderFile], folder: FolderStore, store: Store) -> None:
        present = _Present(store, self._wish.name, self._known())
        adopting = Adopting(folder, self._index, present.__contains__, self._progress)
        adopting.run(found)
        self._files, self._sent = adopting.files, adopting.sent

    def _unchanged(self, found: list[FolderFile]) -> DatasetVersion | None:
        """The newest version, if the folder matches it; no file is read to find out."""
        newest = self._start.newest
        if newest is None or newest.files != len(found) or newest.store != self._start.store:
            return None
        known = [DataFile(one.path, one.seen.st_size, self._index.known(one.path, one.seen)) for one in found]
        if not all(file.sha256 for file in known) or Manifest(known).id != newest.id:
            return None
        self._files = known
        return self._register() if self._wish.about else newest

    def _register(self) -> DatasetVersion:
        return self._registry.register(self._wish.name, self._start, Manifest(self._files), self._wish.about)

    def _lacking(self, found: list[FolderFile], store: Store) -> Iterator[Item]:
        """What has to be uploaded, each content once, while files are still being hashed."""
        present = None if self._wish.repair else _Present(store, self._wish.name, self._known())
        later: list[tuple[FolderFile, str]] = []
        for one, sha256 in hashes(found, self._index, lambda *_: None):
            size = one.seen.st_size
            self._files.append(DataFile(one.path, size, sha256))
            if present is None:
                later.append((one, sha256))
            elif sha256 in self._sent or sha256 in present:
                self._progress.skipped(size, 1)
            else:
                yield self._item(one, sha256)
        if later:
            wrong = {file.sha256 for file in faults(store, self._wish.name, self._files)}
            for one, sha256 in later:
                if sha256 in wrong and sha256 not in self._sent:
                    yield self._item(one, sha256)
                else:
                    self._progress.skipped(one.seen.st_size, 1)

    def _item(self, one: FolderFile, sha256: str) -> Item:
        self._sent[sha256] = one.seen.st_size
        seen = one.seen
        mark = (seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino)
        return Item(one.place, layout.content(self._wish.name, sha256), seen.st_size, sha256, mark)

    def _known(self) -> Iterator[str]:
        """The contents of the newest version in the same store."""
        newest = self._start.newest
        if newest and newest.store == self._start.store:
            with suppress(NotFound, Missing):  # it is being removed: what exists is listed
                yield from (file.sha256 for file in self._registry.manifest(newest).files)


class _Present:
    """Content that the store has: from the last manifest, and from one listing if that is not enough."""

    def __init__(self, store: Store, name: str, known: Iterator[str]) -> None:
        self._store = store
        self._contents = layout.contents(name)
        self._hashes = {bytes.fromhex(sha256) for sha256 in known}
        self._listed = False

    def __contains__(self, sha256: str) -> bool:
        wanted = bytes.fromhex(sha256)
        if wanted not in self._hashes and not self._listed:
            self._listed = True
            listed = self._store.list(self._contents.rstrip("/"))
            self._hashes |= {bytes.fromhex(layout.content_hash(stored.key) or "") for stored in listed}
        return wanted in self._hashes


def index_file(settings: ClientSettings, folder: Path) -> Path:
    """The hashes of this folder's files. One index per folder, separate from those of source trees."""
    return settings.home.trees / hashlib.sha256(b"data " + os.fsencode(folder.absolute())).hexdigest()[:32]


def add(
    name: str, text: str, store: str, about: About, registry: Registry, reaching: Reaching, progress: TransferProgress
) -> Put:
    """A version of the files that match the pattern, each pinned by size and etag. Raises NotFound if none match."""
    pattern = PathPattern(text)
    start = registry.start(checked_name(name), store)
    opened = reaching.store(start.store, reads=[_prefix(pattern)])
    progress.begin("listing", 0, 0)
    files = list(_named(opened, pattern, progress))
    if not files:
        raise NotFound(
            f"no file in the store `{start.store}` matches `{text}`",
            hint="patterns match whole keys: `coco2017/**` is everything below `coco2017`",
        )
    warnings = clashes(file.path for file in files)
    if opened.left_out:
        warnings.append(_unreadable(opened.left_out, _prefix(pattern)))
    version = registry.register(name, start, Manifest(files), about)
    new = start.newest is None or start.newest.number != version.number
    return Put(version, new, 0, 0, tuple(warnings))


def _unreadable(count: int, prefix: str) -> str:
    where = f" below `{prefix}`" if prefix else ""
    what = f"skipped {count:,} {'object' if count == 1 else 'objects'}{where}"
    return f"{what}: names with `//`, `/./`, `\\` or control characters are not supported; rename them"


def _prefix(pattern: PathPattern) -> str:
    """The prefix to list: for a single object, its folder."""
    folder = pattern.folder.rpartition("/")[0] if pattern.plain else pattern.folder
    return f"{folder}/" if folder else ""


def _named(store: Store, pattern: PathPattern, progress: TransferProgress) -> Iterator[DataFile]:
    for stored in _listed(store, pattern):
        path = pattern.path(stored.key)
        if path is not None:
            progress.expect(1, stored.size_bytes)
            progress.skipped(stored.size_bytes, 1)
            yield DataFile(path, stored.size_bytes, "", stored.key, stored.etag)


def _listed(store: Store, pattern: PathPattern) -> Iterator[Stored]:
    found = False
    for stored in store.list(pattern.folder):
        found = True
        yield stored
    if pattern.plain and not found:  # not a folder, so perhaps an object
        yield from store.list(_prefix(pattern).removesuffix("/"))


# Patterns for objects in a store: `coco2017/**`, `logs/2024-*/*.csv`.

_SPECIAL = re.compile(r"[*?\[]")


class PathPattern:
    """`**` matches any number of folders, `*` and `?` characters within a name, `[abc]` one of these characters. Paths
    in the dataset are relative to the part before the first of these."""

    def __init__(self, text: str) -> None:
        """Raises BadInput if it cannot match anything."""
        names = text.split("/")
        if not text or text.startswith("/") or any(name in ("", ".", "..") for name in names):
            raise BadInput(
                f"`{text}` is not a pattern of keys in a store",
                hint="write it without a leading `/`, `.` or `..`, for example `coco2017/**`",
            )
        if not _SPECIAL.search(text):  # a folder by its name alone, or one object
            self.folder, self.plain = text, True
            self._matches = re.compile(re.escape(text) + "(/.+)?", re.DOTALL)
            return
        fixed = next(at for at, name in enumerate(names) if _SPECIAL.search(name))
        self.folder, self.plain = "/".join(names[:fixed]), False
        self._matches = re.compile(_translated(names), re.DOTALL)

    def path(self, key: str) -> str | None:
        """The path of this object in the dataset; None if it does not match, or is Stoker's own."""
        if key.endswith("/") or not self._matches.fullmatch(key) or layout.is_ours(key):
            return None
        if key == self.folder:
            return key.rpartition("/")[2]
        return key.removeprefix(f"{self.folder}/") if self.folder else key


def _translated(names: list[str]) -> str:
    parts: list[str] = []
    for at, name in enumerate(names):
        last = at == len(names) - 1
        if name == "**":
            parts.append(".+" if last else "(?:[^/]+/)*")
        else:
            parts.append(_name(name) + ("" if last else "/"))
    return "".join(parts)


def _name(name: str) -> str:
    """One name with its wildcards. A bracket that is never closed stands for itself, as in a shell."""
    found: list[str] = []
    at = 0
    while at < len(name):
        one, at = name[at], at + 1
        end = name.find("]", at + 1) if one == "[" else -1
        if end > 0:
            body = name[at:end].replace("\\", "\\\\").replace("[", "\\[")
            found.append(f"(?!/)[{'^' + body[1:] if body[0] in '!^' else body}]")
            at = end + 1
        else:
            found.append({"*": "[^/]*", "?": "[^/]"}.get(one, re.escape(one)))
    return "".join(found)
