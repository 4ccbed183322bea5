"""The stores of a workspace: which exist, which one new runs use, and each opened once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from stoker.errors import Conflict, NotFound, StoreFailed
from stoker.model.job.fields import nearest
from stoker.model.run.run import Run
from stoker.model.workspace.home import Home
from stoker.model.workspace.store import FOLDER, KnownStore, checked_name
from stoker.server.records.tables import StoreTable
from stoker.server.rounds.outside import call_far
from stoker.server.stores.keychain import Keychain
from stoker.stores import Store
from stoker.stores.credential import NONE, NOTHING, Credential
from stoker.stores.folder.store import FolderStore
from stoker.stores.kinds import locate
from stoker.stores.opening import open_store

Opener = Callable[[str, Credential | None], Store]


class StoreDirectory:
    """Called from several threads. An opened store stays open until its credential changes."""

    def __init__(
        self,
        home: Home,
        table: StoreTable,
        keychain: Keychain,
        opener: Opener = open_store,
        *,
        used: bool = False,
        folder: Store | None = None,
    ) -> None:
        """`used`: there are runs, so a missing folder is unavailable, and is not created. `folder` replaces the home's
        own."""
        self._table = table
        self._keychain = keychain
        self._opener = opener
        self._opened: dict[str, Store] = {FOLDER: folder or FolderStore(home.store, makes_root=not used)}
        self._known = {store.name: store for store in table.all()}
        self._lock = threading.Lock()

    @property
    def all(self) -> list[KnownStore]:
        """The folder first, then added ones, by name."""
        added = sorted(self._known.values(), key=lambda store: store.name)
        folder = KnownStore(FOLDER, self._opened[FOLDER].url, workspace=not any(one.workspace for one in added))
        return [folder, *added]

    @property
    def workspace(self) -> KnownStore:
        """The one that new runs use."""
        return next(store for store in self.all if store.workspace)

    def named(self, name: str) -> KnownStore:
        found = next((store for store in self.all if store.name == name), None)
        if found is None:
            near = nearest(name, [store.name for store in self.all])
            hint = f"did you mean `{near}`?" if near else "list all with `stoker store ls`"
            raise NotFound(f"no store named `{name}`", hint=hint)
        return found

    def open(self, name: str) -> Store:
        """Raises NotFound, and StoreFailed where its credential is missing. Sends no request, but the first call takes
        a while: it loads a library, and a keyring may ask its owner. The event loop uses `reach`."""
        if name in self._opened:
            return self._opened[name]
        with self._lock:
            if name not in self._opened:
                self._opened[name] = self._opener(self.named(name).url, self.credential(name))
            return self._opened[name]

    def of(self, run: Run) -> Store:
        return self.open(run.store)

    async def reach(self, name: str) -> Store:
        """As `open`, without blocking the event loop."""
        return self.open(name) if name in self._opened else await call_far(self.open, name)

    def credential(self, name: str) -> Credential:
        kind = self.named(name).credential
        if kind == NONE:
            return NOTHING
        kept = self._keychain.get(_key(name))
        if kept is None:
            raise StoreFailed(
                f"the credential of the store `{name}` is not in {self._keychain.place}",
                hint=f"add it again: `stoker store add {name} {self.named(name).url}`",
            )
        return Credential.from_text(kept)

    def add(
        self,
        name: str,
        url: str,
        credential: Credential,
        now: datetime,
        moved_from: str = "",
        *,
        shared: bool | None = None,
    ) -> KnownStore:
        """The same name and URL again replaces the credential, for example after a key rotation. `shared` None:
        unchanged."""
        url, known = self.check_new(name, url, moved_from)
        self._opener(url, credential)  # sends no request: it checks that they match
        if credential.kind == NONE:
            self._keychain.forget(_key(name))
        else:
            self._keychain.keep(_key(name), credential.to_text())
        shared = shared if shared is not None else known.shared if known else False
        store = KnownStore(name, url, credential.kind, known.workspace if known else False, now, shared)
        with self._lock:
            self._table.save(store)
            self._known[name] = store
            self._opened.pop(name, None)
        return store

    def check_new(self, name: str, url: str, moved_from: str = "") -> tuple[str, KnownStore | None]:
        """The URL in canonical form, and the existing store of this name, if any. Raises where it cannot be added: a
        store keeps its URL, unless the caller knows the old one."""
        checked_name(name)
        url, known = locate(url).url, self._known.get(name)
        if name == FOLDER or (known and known.url not in (url, moved_from)):
            there = self.named(name).url
            raise Conflict(
                f"the store `{name}` already exists at {there}",
                hint=f"choose another name, or run `stoker store rm {name}` first",
            )
        return url, known

    def use(self, name: str) -> KnownStore:
        """From now on new runs use it; existing ones stay where they are."""
        self.named(name)
        with self._lock:
            self._table.use(name)
            self._known = {one.name: replace(one, workspace=one.name == name) for one in self._known.values()}
        return self.named(name)

    def remove(self, name: str) -> None:
        """Removes it and its credential from the workspace. Its contents stay."""
        store = self.named(name)
        if name == FOLDER:
            raise Conflict("the store `folder` cannot be removed", hint="`stoker store use NAME` selects another one")
        if store.workspace:
            raise Conflict(
                f"new runs use the store `{name}`", hint=f"first select another one: `stoker store use {FOLDER}`"
            )
        with self._lock:
            self._table.remove(name)
            del self._known[name]
            self._opened.pop(name, None)
        self._keychain.forget(_key(name))


def _key(name: str) -> str:
    return f"store {name}"
