"""Registers files that are already in a store: nothing is copied, and only the listing is read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stoker.client.data.folder import clashes
from stoker.client.data.putting import Put
from stoker.client.data.registry import About, Reaching, Registry
from stoker.client.progress import TransferProgress
from stoker.errors import BadInput, NotFound
from stoker.model.dataset import DataFile, Manifest, checked_name
from stoker.model.workspace import layout
from stoker.stores import Store, Stored


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
