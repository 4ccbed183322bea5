"""Credentials of stores: in the system's keyring if it has one, else in one 0600 file, and nowhere else."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from stoker.errors import HomeUnusable

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
