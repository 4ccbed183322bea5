"""The stores of a workspace: which exist, which one new runs use, each opened once; and their credentials."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from stoker.errors import Conflict, HomeUnusable, NotFound, StoreFailed
from stoker.model.cause import Cause
from stoker.model.job.fields import nearest
from stoker.model.run.run import Run
from stoker.model.workspace.home import Home
from stoker.model.workspace.store import FOLDER, KnownStore, checked_name
from stoker.server.records.tables import StoreTable
from stoker.server.rounds.outside import call_far
from stoker.stores import Store
from stoker.stores.access import NONE, NOTHING, Credential
from stoker.stores.folder.store import FolderStore
from stoker.stores.kinds import locate
from stoker.stores.opening import open_store

log = logging.getLogger(__name__)

WAYS = ("auto", "file")  # how a keychain is chosen; `auto` uses the system's keyring if that works


class Backend(Protocol):
    """The part of the `keyring` interface that is used."""

    def get_password(self, service: str, username: str) -> str | None: ...
    def set_password(self, service: str, username: str, password: str) -> None: ...
    def delete_password(self, service: str, username: str) -> None: ...


class Keychain:
    """Secret texts by name. Called from several threads."""

    def __init__(self, file: Path, backend: Backend | None = None) -> None:
        self._file = file
        self._backend = backend
        self._service = f"stoker {file.parent}"  # two homes on one computer share nothing
        self._lock = threading.Lock()

    @property
    def place(self) -> str:
        """Where they are stored, as text."""
        return "the system's keyring" if self._backend else str(self._file)

    def get(self, name: str) -> str | None:
        """Also from the file where there is a keyring: it may have been stored before there was one."""
        found = self._ask(name) if self._backend else None
        return found if found is not None else self._read().get(name)

    def keep(self, name: str, secret: str) -> None:
        if not self._tell(name, secret):
            self._write(lambda known: {**known, name: secret})

    def forget(self, name: str) -> None:
        """An unknown name is fine."""
        if self._backend:
            with suppress(Exception):  # each backend has its own errors for a missing secret
                self._backend.delete_password(self._service, name)
        if name in self._read():
            self._write(lambda known: {key: value for key, value in known.items() if key != name})

    def _ask(self, name: str) -> str | None:
        assert self._backend
        try:
            return self._backend.get_password(self._service, name)
        except Exception as error:
            log.warning("the system's keyring did not answer: %s", type(error).__name__)
            return None

    def _tell(self, name: str, secret: str) -> bool:
        """A locked keyring must not prevent adding a store."""
        if not self._backend:
            return False
        try:
            self._backend.set_password(self._service, name, secret)
        except Exception as error:
            log.warning(
                "could not store a secret in the system's keyring (%s): using %s", type(error).__name__, self._file
            )
            return False
        return True

    def _read(self) -> dict[str, str]:
        try:
            known: dict[str, str] = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise HomeUnusable(f"could not read {self._file}: {type(error).__name__}") from None
        return known

    def _write(self, change: Any) -> None:
        """Private from its first byte on, and written completely or not at all."""
        with self._lock:
            known: Mapping[str, str] = change(self._read())
            part = self._file.with_name(f".{self._file.name}.{os.getpid()}")
            part.unlink(missing_ok=True)
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as file:
                json.dump(dict(known), file)
                file.flush()
                os.fsync(file.fileno())  # there is no other copy
            part.replace(self._file)


def open_keychain(file: Path, way: str) -> Keychain:
    return Keychain(file, _system() if way == "auto" else None)


def _system() -> Backend | None:
    """The keyring package's own choice, unless that one stores nothing."""
    try:
        import keyring  # an optional package, and slow to import
        from keyring.backends import fail, null
    except ImportError:
        return None
    try:
        chosen = keyring.get_keyring()
    except Exception:
        return None
    return None if isinstance(chosen, fail.Keyring | null.Keyring) else chosen


# Secret values of active runs: one 0600 file each, and nowhere else.


class Vault:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, run_id: str, values: Mapping[str, str]) -> None:
        if not values:
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self._path(run_id), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            json.dump(dict(values), file)

    def values(self, run_id: str) -> dict[str, str]:
        try:
            values: dict[str, str] = json.loads(self._path(run_id).read_text())
        except FileNotFoundError:
            return {}
        return values

    def forget(self, run_id: str) -> None:
        self._path(run_id).unlink(missing_ok=True)

    def _path(self, run_id: str) -> Path:
        return self._folder / f"{run_id}.json"


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
            raise NotFound(f"no store named `{name}`", hint=hint, cause=Cause.NO_SUCH_STORE)
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
                cause=Cause.NAME_IN_USE,
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
                f"new runs use the store `{name}`",
                hint=f"first select another one: `stoker store use {FOLDER}`",
                cause=Cause.STORE_IN_USE,
            )
        with self._lock:
            self._table.remove(name)
            del self._known[name]
            self._opened.pop(name, None)
        self._keychain.forget(_key(name))


def _key(name: str) -> str:
    return f"store {name}"
