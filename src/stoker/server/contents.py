"""Datasets and environments of a workspace: their versions, their contents, and the removal of content that nothing
refers to. What a node wrote is untrusted: an environment is shown and removed, and used by nodes of the same owner
only."""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from stoker.errors import Conflict, Corrupt, DatasetChanging, DatasetRefused, Malformed, Missing, NotFound, StokerError
from stoker.model import untrusted, wire
from stoker.model.cause import Cause
from stoker.model.dataset import DatasetVersion, Manifest, checked_name, manifest_id, reference
from stoker.model.environment import COMPLETE, HEAD_BYTES, LIST_BYTES, BuiltEnvironment, PackedFiles
from stoker.model.job.fields import nearest
from stoker.model.orders import users_of
from stoker.model.workspace import layout
from stoker.server.records.copies import Signing
from stoker.server.records.tables import DatasetTable
from stoker.server.removals import remove_venv
from stoker.server.rounds.outside import Clock
from stoker.server.stores.stores import StoreDirectory
from stoker.stores import Store

_FORGOTTEN_S = 86400.0  # unreferenced content of this age is left over from an unfinished upload
_THREADS = 16
_HASH = re.compile(rb'"([0-9a-f]{64})"')


@dataclass(frozen=True, slots=True)
class Removed:
    """How much content was deleted."""

    files: int = 0
    size_bytes: int = 0

    def __add__(self, other: Removed) -> Removed:
        return Removed(self.files + other.files, self.size_bytes + other.size_bytes)


class ContentRemoval:
    """An upload skips what the store has. If that is deleted before its version is registered, the version would be
    broken: so each deletion changes the store's mark, and a registration must show the mark that it started with."""

    def __init__(self) -> None:
        self._since = secrets.token_hex(4)  # a new server does not know what the last one deleted
        self._counts: dict[str, int] = {}
        self._busy: dict[str, int] = {}
        self._lock = threading.Lock()

    def mark(self, store: str) -> str:
        return f"{self._since}-{self._counts.get(store, 0)}"

    def check(self, store: str, mark: str) -> None:
        with self._lock:
            if self._busy.get(store) or mark != self.mark(store):
                raise DatasetChanging(f"content is being deleted from the store `{store}`", hint="try again")

    @contextmanager
    def under_way(self, store: str) -> Iterator[None]:
        with self._lock:
            self._busy[store] = self._busy.get(store, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._busy[store] -= 1
                self._counts[store] = self._counts.get(store, 0) + 1

    def remove(self, store: Store, dataset: str, manifests: Collection[str]) -> Removed:
        """Deletes the manifests with these keys, and the content that only they refer to. The store's own manifests
        decide, so that the content of other servers is safe."""
        freed: set[bytes] = set()
        for key in manifests:
            with suppress(Missing):  # lost, or deleted by an interrupted call: then its content is found by its age
                freed.update(_named(store, key))
            store.delete(key)
        there = list(store.list(layout.dataset(dataset).rstrip("/")))
        needed = {sha256 for one in there if layout.is_manifest(one.key) for sha256 in _named(store, one.key)}
        old = time.time() - _FORGOTTEN_S
        gone = [
            stored
            for stored in there
            if (hash := bytes.fromhex(layout.content_hash(stored.key) or ""))
            and hash not in needed
            and (hash in freed or stored.changed_at < old)
        ]
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(store.delete, (stored.key for stored in gone)))
        return Removed(len(gone), sum(stored.size_bytes for stored in gone))


def _named(store: Store, manifest: str) -> Iterator[bytes]:
    """Every hash in its text: even a damaged manifest protects the content that it still names."""
    for found in _HASH.finditer(store.get(manifest)):
        yield bytes.fromhex(found[1].decode())


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

    def nearest(self, ref: str) -> str:
        """The name that an unknown one most likely means; empty if there is none like it, or if it is known."""
        names, name = self._table.names(), ref.partition("@")[0]
        return "" if name in names else nearest(name, names)

    def _unknown(self, text: str, name: str) -> NotFound:
        names = self._table.names()
        if name in names:
            numbers = ", ".join(str(version.number) for version in self._table.versions(name)[:10])
            return NotFound(f"`{text}` not found", hint=f"versions of `{name}`: {numbers}", cause=Cause.NO_SUCH_DATASET)
        near = nearest(name, names)
        hint = f"did you mean `{near}`?" if near else "see all with `stoker data ls`"
        return NotFound(f"no dataset named `{name}`", hint=hint, cause=Cause.NO_SUCH_DATASET)


def refused_while_used(version: DatasetVersion, runs: list[str]) -> Conflict:
    named = ", ".join(runs[:3]) + (f" and {len(runs) - 3} more" if len(runs) > 3 else "")
    return Conflict(
        f"{version.ref} was used by {named}: they cannot be rerun without it",
        hint=f"`stoker data rm {version.ref} --force` removes it anyway",
        cause=Cause.DATASET_IN_USE,
    )


_LEAST_DIGITS = 4  # digits of an id, so that it is not taken for a name


@dataclass(frozen=True, slots=True)
class KnownEnvironment:
    """`store` is empty for one that was built on this computer."""

    built: BuiltEnvironment
    ref: str
    store: str = ""


class EnvironmentRecords:
    """Called from several threads."""

    def __init__(
        self,
        stores: StoreDirectory,
        shelf_of: Callable[[str], str],
        folder: Path,
        clock: Clock,
        active: Callable[[], set[str]],
    ) -> None:
        """`shelf_of` is where the nodes of a person's runs share environments, `active` returns the ids of runs that
        have not ended."""
        self._stores = stores
        self._shelf_of = shelf_of
        self._folder = folder
        self._clock = clock
        self._active = active

    def all(self, person: str) -> list[KnownEnvironment]:
        """Newest first. A store that cannot be used is left out."""
        found = [KnownEnvironment(one, one.ref) for one, _ in self._here()]
        for store in self._stores.all:
            with suppress(StokerError):
                opened = self._stores.open(store.name)
                found += [KnownEnvironment(one, one.ref, store.name) for one in self._heads(opened, person)]
        return sorted(found, key=lambda one: one.built.at, reverse=True)

    def resolve(self, ref: str, person: str) -> list[KnownEnvironment]:
        """The environment of this name, `name@id` or id, wherever it is: the newest of several. Raises NotFound."""
        known = self.all(person)
        name, _, id = ref.rpartition("@")
        named = [one for one in known if name and one.built.name == name and one.built.id.startswith(id)]
        identified = [one for one in known if len(ref) >= _LEAST_DIGITS and one.built.id.startswith(ref)]
        for found in (named, identified, [one for one in known if one.built.name == ref]):
            if found:
                return [one for one in found if one.built.id == found[0].built.id]
        near = nearest(ref, [one.ref for one in known])
        hint = f"did you mean `{near}`?" if near else "list them with `stoker env ls`"
        raise NotFound(f"environment `{ref}` not found", hint=hint, cause=Cause.NO_SUCH_ENVIRONMENT)

    def remove(self, ref: str, person: str) -> list[KnownEnvironment]:
        """From everywhere. Whoever needs it again builds it again. Raises Conflict while a run on this computer uses
        it."""
        found = self.resolve(ref, person)
        id = found[0].built.id
        for built, venv in self._here():
            if built.id == id:
                self._remove_here(built, venv)
        for one in found:
            if one.store:
                self._remove_kept(self._stores.open(one.store), self._shelf_of(person), one.built)
        return found

    def _here(self) -> Iterator[tuple[BuiltEnvironment, Path]]:
        for file in sorted(self._folder.glob(f"*/{COMPLETE}")):
            with suppress(OSError, Malformed):  # an older Stoker built it
                data = file.read_bytes()[:HEAD_BYTES]
                yield untrusted.load(BuiltEnvironment, data, self._clock.now()), file.parent

    def _heads(self, store: Store, person: str) -> Iterator[BuiltEnvironment]:
        """Ignores a head with a wrong id: removing it would remove another environment."""
        shelf = self._shelf_of(person)
        for one in list(store.list(layout.environment_heads(shelf).rstrip("/"))):
            with suppress(Malformed, Missing):
                found = untrusted.fetch(BuiltEnvironment, store, one.key, HEAD_BYTES, self._clock.now())
                if one.key == layout.environment_head(shelf, found.id):
                    yield found

    def _remove_here(self, built: BuiltEnvironment, venv: Path) -> None:
        users = {one.name: one for one in users_of(venv).glob("*")}
        if users.keys() & self._active():
            raise Conflict(f"`{built.ref}` is used by an active run", hint="stoker ps", cause=Cause.RUN_ACTIVE)
        for mark in users.values():
            mark.unlink(missing_ok=True)
        remove_venv(venv)

    def _remove_kept(self, store: Store, shelf: str, built: BuiltEnvironment) -> None:
        """Deletes the head first, which makes it visible. Packs that others use stay; a node that misses a deleted one
        builds the environment again."""
        own = self._packs(store, shelf, built)
        store.delete(layout.environment_head(shelf, built.id))
        others = list(store.list(layout.environment_heads(shelf).rstrip("/")))
        try:
            for one in others:
                head = untrusted.fetch(BuiltEnvironment, store, one.key, HEAD_BYTES, self._clock.now())
                own -= self._packs(store, shelf, head, strict=True)
        except StokerError:  # its packs are unknown
            own = set()
        store.delete(layout.environment_list(shelf, built.listed))
        store.remove_below(layout.environment_leases(shelf, built.id))
        for name in own:
            store.delete(layout.environment_pack(shelf, name))

    def _packs(self, store: Store, shelf: str, built: BuiltEnvironment, *, strict: bool = False) -> set[str]:
        try:
            key = layout.environment_list(shelf, built.listed)
            return set(untrusted.fetch(PackedFiles, store, key, LIST_BYTES, self._clock.now()).packs)
        except StokerError:
            if strict:
                raise
            return set()
