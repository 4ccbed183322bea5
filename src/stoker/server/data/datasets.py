"""The datasets of a workspace: their versions, their contents, and which version a name refers to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

from stoker.errors import Conflict, Corrupt, DatasetRefused, Missing, NotFound
from stoker.model import wire
from stoker.model.dataset import DatasetVersion, Manifest, checked_name, manifest_id, reference
from stoker.model.job.fields import nearest
from stoker.model.workspace import layout
from stoker.server.data.removal import ContentRemoval, Removed
from stoker.server.records.recorder import Signing
from stoker.server.records.tables import DatasetTable
from stoker.stores import Store

OpenStore = Callable[[str], Store]


@dataclass(frozen=True, slots=True)
class DatasetStart:
    """What a client needs before it uploads content. `mark` is part of the registration: it changes when content is
    deleted from the store, because content that the client has seen may then be gone."""

    store: str
    mark: str
    newest: DatasetVersion | None = None


class DatasetRecords:
    """Called from several threads. `default` is the store of callers that name none."""

    def __init__(
        self, table: DatasetTable, open_store: OpenStore, default: Callable[[], str], signing: Signing
    ) -> None:
        self._table = table
        self._open = open_store
        self._signing = signing
        self._default = default
        self._removal = ContentRemoval()
        self._lock = threading.Lock()

    def start(self, name: str, store: str) -> DatasetStart:
        checked_name(name)
        store = store or self._default()
        self._open(store)
        return DatasetStart(store, self._removal.mark(store), self._table.find(reference(name)))

    def register(self, version: DatasetVersion, data: bytes, mark: str) -> DatasetVersion:
        """Stores the manifest and numbers the version. The same files again give the same version.

        Raises Conflict where content was deleted from the store since the mark was given: check again, then repeat.
        """
        manifest = Manifest.from_bytes(data)
        if manifest.to_bytes() != data:
            raise DatasetRefused("the manifest is not in canonical form", hint="use the same version of Stoker")
        if not manifest.files:
            raise DatasetRefused(f"the dataset `{version.name}` has no files")
        if own := next((file.key for file in manifest.files if file.key and layout.is_ours(file.key)), ""):
            raise DatasetRefused(f"`{own}` belongs to Stoker and cannot be part of the dataset `{version.name}`")
        store = self._open(version.store)
        with self._lock:
            self._removal.check(version.store, mark)
            store.put(layout.manifest(version.name, manifest_id(data)), data)
            added = self._table.add(
                replace(
                    version,
                    name=checked_name(version.name),
                    id=manifest_id(data),
                    files=len(manifest.files),
                    size_bytes=manifest.size_bytes,
                )
            )
            self._record(added.name, added.store)
        return added

    def resolve(self, text: str) -> DatasetVersion:
        """`name`, `name@3` or `name@<hash>`. Raises NotFound, with a suggestion."""
        wanted = reference(text)
        found = self._table.find(wanted)
        if found is None:
            raise self._unknown(text, wanted.name)
        return found

    def versions(self, name: str = "") -> list[DatasetVersion]:
        """By name, newest first. Raises NotFound for an unknown name."""
        found = self._table.versions(name)
        if name and not found:
            raise self._unknown(name, name)
        return found

    def in_store(self, store: str) -> list[DatasetVersion]:
        return self._table.versions(store=store)

    def manifest(self, version: DatasetVersion) -> bytes:
        """Its text, verified by its hash."""
        again = f"upload it again: `stoker data put FOLDER --name {version.name}`"
        try:
            data = self._open(version.store).get(version.manifest)
        except Missing:
            raise Missing(
                f"the manifest of {version.ref} is missing in the store `{version.store}`", hint=again
            ) from None
        if manifest_id(data) != version.id:
            raise Corrupt(f"the manifest of {version.ref} is damaged: its hash does not match", hint=again)
        return data

    def remove(self, versions: list[DatasetVersion]) -> Removed:
        """The versions, and the content that no other version names. Files registered in place are left alone."""
        removed = Removed()
        for name in dict.fromkeys(version.store for version in versions):
            here = [version for version in versions if version.store == name]
            store = self._open(name)
            with ExitStack() as removal:
                with self._lock:  # no registration may be between its check and its manifest
                    removal.enter_context(self._removal.under_way(name))
                    self._table.remove(here)
                    for dataset in {version.name for version in here}:
                        self._record(dataset, name)
                kept = {version.manifest for version in self._table.versions(store=name)}
                for dataset in dict.fromkeys(version.name for version in here):
                    manifests = {version.manifest for version in here if version.name == dataset} - kept
                    removed += self._removal.remove(store, dataset, manifests)
        return removed

    def _record(self, name: str, store: str) -> None:
        """The store's copy of the database records."""
        record = self._table.record(name, store)
        key = layout.dataset_record(name)
        if record.versions:
            self._open(store).put(key, self._signing.sign(store, key, wire.dump(record)))
        else:
            self._open(store).delete(key)

    def _unknown(self, text: str, name: str) -> NotFound:
        names = self._table.names()
        if name in names:
            numbers = ", ".join(str(version.number) for version in self._table.versions(name)[:10])
            return NotFound(f"`{text}` not found", hint=f"versions of `{name}`: {numbers}")
        near = nearest(name, names)
        hint = f"did you mean `{near}`?" if near else "see all with `stoker data ls`"
        return NotFound(f"no dataset named `{name}`", hint=hint)


def refused_while_used(version: DatasetVersion, runs: list[str]) -> Conflict:
    named = ", ".join(runs[:3]) + (f" and {len(runs) - 3} more" if len(runs) > 3 else "")
    return Conflict(
        f"{version.ref} was used by {named}: they cannot be rerun without it",
        hint=f"`stoker data rm {version.ref} --force` removes it anyway",
    )
