"""Registers files that are in a store already: nothing is copied, and nothing is read but the listing."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.client.data.folder import clashes
from stoker.client.data.pattern import Pattern
from stoker.client.data.putting import Put
from stoker.client.data.reaching import Reaching
from stoker.client.data.registry import About, Registry
from stoker.client.progress import Progress
from stoker.errors import NotFound
from stoker.model.dataset import DataFile, Manifest, checked_name
from stoker.stores import Store, Stored


def add(
    name: str, text: str, store: str, about: About, registry: Registry, reaching: Reaching, progress: Progress
) -> Put:
    """A version of what the pattern names now, each file pinned by its size and etag. Raises NotFound for nothing."""
    pattern = Pattern(text)
    start = registry.start(checked_name(name), store)
    opened = reaching.store(start.store, reads=[_prefix(pattern)])
    progress.begin("listing", 0, 0)
    files = list(_named(opened, pattern, progress))
    if not files:
        raise NotFound(
            f"nothing in the store `{start.store}` is named by `{text}`",
            hint="patterns are of whole keys: `coco2017/**` is everything below `coco2017`",
        )
    warnings = clashes(file.path for file in files)
    if opened.left_out:
        warnings.append(_unreadable(opened.left_out, _prefix(pattern)))
    version = registry.register(name, start, Manifest(files), about)
    new = start.newest is None or start.newest.number != version.number
    return Put(version, new, 0, 0, tuple(warnings))


def _unreadable(count: int, prefix: str) -> str:
    where = f" below `{prefix}`" if prefix else ""
    what = f"left out {count:,} {'object' if count == 1 else 'objects'}{where}"
    return f"{what}: names with `//`, `/./`, `\\` or control characters cannot be read; rename them"


def _prefix(pattern: Pattern) -> str:
    """What has to be listed: of a single object, the folder it is in."""
    folder = pattern.folder.rpartition("/")[0] if pattern.plain else pattern.folder
    return f"{folder}/" if folder else ""


def _named(store: Store, pattern: Pattern, progress: Progress) -> Iterator[DataFile]:
    for stored in _listed(store, pattern):
        path = pattern.path(stored.key)
        if path is not None:
            progress.expect(1, stored.size_bytes)
            progress.skipped(stored.size_bytes, 1)
            yield DataFile(path, stored.size_bytes, "", stored.key, stored.etag)


def _listed(store: Store, pattern: Pattern) -> Iterator[Stored]:
    found = False
    for stored in store.list(pattern.folder):
        found = True
        yield stored
    if pattern.plain and not found:  # not a folder, so perhaps an object
        yield from store.list(_prefix(pattern).removesuffix("/"))
