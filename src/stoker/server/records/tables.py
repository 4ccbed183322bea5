"""Tables of the database besides runs: datasets with their versions, added stores, limits, and clusters.

Every write is one transaction. The stores have a copy beside the database for when it is lost, without secrets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Delete,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    delete,
    insert,
    select,
    update,
)

from stoker.errors import HomeUnusable
from stoker.files import write_whole
from stoker.model import wire
from stoker.model.dataset import DatasetVersion, Reference
from stoker.model.node import Cluster
from stoker.model.run.money import Limit, Period
from stoker.model.workspace.store import KnownStore

_META = MetaData()
_VERSIONS = Table(
    "dataset_versions",
    _META,
    Column("name", String, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("id", String),
    Column("store", String),
    Column("facts", Text),
)
_DATASETS = Table("datasets", _META, Column("name", String, primary_key=True), Column("last_number", Integer))


@dataclass(frozen=True, slots=True)
class DatasetRecord:
    """The copy in a store: the versions of one dataset there, and the last number used."""

    name: str
    last_number: int
    versions: tuple[DatasetVersion, ...]


class DatasetTable:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, version: DatasetVersion) -> DatasetVersion:
        """With the next number. Where the newest version has the same files in the same store, only its description is
        updated."""
        with self._engine.begin() as connection:
            newest = _newest(connection, version.name)
            if newest and (newest.id, newest.store) == (version.id, version.store):
                again = _described(version, newest)
                connection.execute(update(_VERSIONS).where(_is(again)).values(_row(again)))
                return again
            numbered = replace(_described(version, newest), number=_next_number(connection, version.name))
            connection.execute(insert(_VERSIONS).values(_row(numbered)))
            return numbered

    def find(self, wanted: Reference) -> DatasetVersion | None:
        """The newest match."""
        query = select(_VERSIONS.c.facts).where(_VERSIONS.c.name == wanted.name)
        if wanted.number:
            query = query.where(_VERSIONS.c.number == wanted.number)
        if wanted.id:
            query = query.where(_VERSIONS.c.id.startswith(wanted.id, autoescape=True))
        with self._engine.connect() as connection:
            facts = connection.execute(query.order_by(_VERSIONS.c.number.desc()).limit(1)).scalar()
        return _version(facts) if facts else None

    def versions(self, name: str = "", store: str = "") -> list[DatasetVersion]:
        """By name, newest first. Empty: of all datasets, of all stores."""
        query = select(_VERSIONS.c.facts).order_by(_VERSIONS.c.name, _VERSIONS.c.number.desc())
        if name:
            query = query.where(_VERSIONS.c.name == name)
        if store:
            query = query.where(_VERSIONS.c.store == store)
        with self._engine.connect() as connection:
            return [_version(facts) for facts in connection.execute(query).scalars()]

    def names(self) -> list[str]:
        with self._engine.connect() as connection:
            return list(connection.execute(select(_VERSIONS.c.name).distinct().order_by(_VERSIONS.c.name)).scalars())

    def record(self, name: str, store: str) -> DatasetRecord:
        last = select(_DATASETS.c.last_number).where(_DATASETS.c.name == name)
        with self._engine.connect() as connection:
            number = connection.execute(last).scalar() or 0
        return DatasetRecord(name, number, tuple(self.versions(name, store)))

    def remove(self, versions: Iterable[DatasetVersion]) -> None:
        with self._engine.begin() as connection:
            for version in versions:
                connection.execute(delete(_VERSIONS).where(_is(version)))

    def restore(self, records: Iterable[DatasetRecord]) -> None:
        """The records of stores, into an empty table. A dataset may have records in several stores."""
        last: dict[str, int] = {}
        rows: dict[tuple[str, int], dict[str, Any]] = {}
        for record in records:
            last[record.name] = max(last.get(record.name, 0), record.last_number)
            rows |= {(version.name, version.number): _row(version) for version in record.versions}
        with self._engine.begin() as connection:
            if rows:
                connection.execute(insert(_VERSIONS), list(rows.values()))
            if last:
                connection.execute(insert(_DATASETS), [{"name": name, "last_number": at} for name, at in last.items()])


def _newest(connection: Connection, name: str) -> DatasetVersion | None:
    query = select(_VERSIONS.c.facts).where(_VERSIONS.c.name == name).order_by(_VERSIONS.c.number.desc()).limit(1)
    facts = connection.execute(query).scalar()
    return _version(facts) if facts else None


def _described(version: DatasetVersion, newest: DatasetVersion | None) -> DatasetVersion:
    """Unset fields keep their values. A version with the same files stays the same."""
    if newest is None:
        return version
    told = {name: getattr(version, name) or getattr(newest, name) for name in ("description", "licence", "tags")}
    same = (newest.id, newest.store) == (version.id, version.store)
    return replace(newest if same else version, **told)


def _next_number(connection: Connection, name: str) -> int:
    last = connection.execute(select(_DATASETS.c.last_number).where(_DATASETS.c.name == name)).scalar()
    if last is None:
        connection.execute(insert(_DATASETS).values(name=name, last_number=1))
        return 1
    connection.execute(update(_DATASETS).where(_DATASETS.c.name == name).values(last_number=last + 1))
    return int(last) + 1


def _is(version: DatasetVersion) -> Any:
    return (_VERSIONS.c.name == version.name) & (_VERSIONS.c.number == version.number)


def _row(version: DatasetVersion) -> dict[str, Any]:
    return {
        "name": version.name,
        "number": version.number,
        "id": version.id,
        "store": version.store,
        "facts": wire.dump(version).decode(),
    }


def _version(facts: str) -> DatasetVersion:
    return wire.load(DatasetVersion, facts.encode())


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
            connection.execute(insert(_STORES).values(_store_row(store)))
        self._write_copy()

    def use(self, name: str) -> None:
        """Makes it the workspace's store; an unknown name makes none of them that."""
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
                connection.execute(insert(_STORES).values(_store_row(store)))

    def _write_copy(self) -> None:
        write_whole(self._copy, wire.dump(self.all()))


def read_copy(path: Path) -> list[KnownStore]:
    """The table after its last change."""
    try:
        return [wire.from_plain(KnownStore, one) for one in json.loads(path.read_bytes())]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HomeUnusable(
            f"could not read {path}, which lists the stores: {error}", hint=f"mv {path} {path}.damaged"
        ) from error


def _store_row(store: KnownStore) -> dict[str, Any]:
    return {
        "name": store.name,
        "url": store.url,
        "credential": store.credential,
        "workspace": store.workspace,
        "added_at": store.added_at.isoformat() if store.added_at else "",
        "shared": store.shared,
    }


_LIMITS = Table(
    "limits",
    MetaData(),
    Column("period", String, primary_key=True),
    Column("person", String, primary_key=True),
    Column("usd", String),
)


class LimitTable:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def all(self) -> list[Limit]:
        """Those for everybody first, then by person; a day before a month."""
        with self._engine.connect() as connection:
            rows = connection.execute(select(_LIMITS).order_by(_LIMITS.c.person, _LIMITS.c.period)).mappings().all()
        return [Limit(Period(row["period"]), Decimal(row["usd"]), row["person"]) for row in rows]

    def save(self, limit: Limit) -> None:
        """Adds it, or replaces the one of its person and period."""
        with self._engine.begin() as connection:
            connection.execute(_same(limit.period, limit.person))
            row = {"period": str(limit.period), "person": limit.person, "usd": str(limit.usd)}
            connection.execute(insert(_LIMITS).values(row))

    def remove(self, period: Period, person: str) -> bool:
        """False where there was none."""
        with self._engine.begin() as connection:
            return connection.execute(_same(period, person)).rowcount > 0


def _same(period: Period, person: str) -> Delete:
    return delete(_LIMITS).where(_LIMITS.c.period == str(period), _LIMITS.c.person == person)


_CLUSTERS = Table("clusters", MetaData(), Column("name", String, primary_key=True), Column("facts", Text))


class ClusterTable:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def all(self) -> list[Cluster]:
        with self._engine.connect() as connection:
            rows = connection.execute(select(_CLUSTERS.c.facts).order_by(_CLUSTERS.c.name)).scalars()
            return [wire.load(Cluster, facts.encode()) for facts in rows]

    def save(self, cluster: Cluster) -> None:
        """Adds it, or replaces the one of its name."""
        with self._engine.begin() as connection:
            connection.execute(delete(_CLUSTERS).where(_CLUSTERS.c.name == cluster.name))
            connection.execute(insert(_CLUSTERS).values(name=cluster.name, facts=wire.dump(cluster).decode()))

    def remove(self, name: str) -> None:
        with self._engine.begin() as connection:
            connection.execute(delete(_CLUSTERS).where(_CLUSTERS.c.name == name))
