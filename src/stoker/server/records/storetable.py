"""The stores that were added, in the database, with a copy beside it for when the database is lost. No secrets."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Boolean, Column, Engine, MetaData, String, Table, delete, insert, select, update

from stoker.errors import HomeUnusable
from stoker.model import wire
from stoker.model.workspace.store import KnownStore

_STORES = Table(
    "stores",
    MetaData(),
    Column("name", String, primary_key=True),
    Column("url", String),
    Column("credential", String),
    Column("workspace", Boolean),
    Column("added_at", String),
    Column("shared", Boolean),
)


class StoreTable:
    def __init__(self, engine: Engine, copy: Path) -> None:
        self._engine = engine
        self._copy = copy

    def all(self) -> list[KnownStore]:
        with self._engine.connect() as connection:
            rows = connection.execute(select(_STORES).order_by(_STORES.c.name)).mappings().all()
        return [
            KnownStore(
                name=row["name"],
                url=row["url"],
                credential=row["credential"],
                workspace=row["workspace"],
                added_at=datetime.fromisoformat(row["added_at"]) if row["added_at"] else None,
                shared=row["shared"],
            )
            for row in rows
        ]

    def save(self, store: KnownStore) -> None:
        """Adds it, or replaces the one of its name."""
        with self._engine.begin() as connection:
            connection.execute(delete(_STORES).where(_STORES.c.name == store.name))
            connection.execute(insert(_STORES).values(_row(store)))
        self._write_copy()

    def use(self, name: str) -> None:
        """Makes it the workspace's; a name that is not in the table makes none of them that."""
        with self._engine.begin() as connection:
            connection.execute(update(_STORES).values(workspace=_STORES.c.name == name))
        self._write_copy()

    def remove(self, name: str) -> None:
        with self._engine.begin() as connection:
            connection.execute(delete(_STORES).where(_STORES.c.name == name))
        self._write_copy()

    def restore(self) -> None:
        """From the copy, into an empty table."""
        with self._engine.begin() as connection:
            for store in read_copy(self._copy):
                connection.execute(insert(_STORES).values(_row(store)))

    def _write_copy(self) -> None:
        part = self._copy.with_name(f".{self._copy.name}.{os.getpid()}")
        part.write_bytes(wire.dump(self.all()))
        part.replace(self._copy)


def read_copy(path: Path) -> list[KnownStore]:
    """What the table held when it was last changed."""
    try:
        return [wire.from_plain(KnownStore, one) for one in json.loads(path.read_bytes())]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HomeUnusable(
            f"{path} names the stores and cannot be read: {error}", hint=f"mv {path} {path}.damaged"
        ) from error


def _row(store: KnownStore) -> dict[str, Any]:
    return {
        "name": store.name,
        "url": store.url,
        "credential": store.credential,
        "workspace": store.workspace,
        "added_at": store.added_at.isoformat() if store.added_at else "",
        "shared": store.shared,
    }
