"""Environments that exist: built on this computer, or kept in a store by nodes. What a node wrote is somebody else's
word: it is shown and removed, and used by nodes of the same owner only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stoker.errors import Conflict, Malformed, Missing, NotFound, StokerError
from stoker.model import untrusted
from stoker.model.cause import Cause
from stoker.model.environment import COMPLETE, HEAD_BYTES, LIST_BYTES, BuiltEnvironment, PackedFiles
from stoker.model.job.fields import nearest
from stoker.model.orders import users_of
from stoker.model.workspace import layout
from stoker.server.removals import remove_venv
from stoker.server.rounds.outside import Clock
from stoker.server.stores.stores import StoreDirectory
from stoker.stores import Store

_LEAST_DIGITS = 4  # of an id, so that it is not a name


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
        """A head with another id would be removed in place of the one that has it."""
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
        """First what makes it visible. Packs that others name stay; who relied on one that goes builds anew."""
        own = self._packs(store, shelf, built)
        store.delete(layout.environment_head(shelf, built.id))
        others = list(store.list(layout.environment_heads(shelf).rstrip("/")))
        try:
            for one in others:
                head = untrusted.fetch(BuiltEnvironment, store, one.key, HEAD_BYTES, self._clock.now())
                own -= self._packs(store, shelf, head, strict=True)
        except StokerError:  # what it needs is unknown
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
