"""Datasets and their versions in the database. Every write is one transaction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
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

from stoker.model import wire
from stoker.model.dataset import DatasetVersion, Reference

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
    """The copy in a store: the versions of one dataset there, and the last number that was given."""

    name: str
    last_number: int
    versions: tuple[DatasetVersion, ...]


class DatasetTable:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, version: DatasetVersion) -> DatasetVersion:
        """With the next number. Where the newest version has the same files in the same store, that one is given its
        description, and no new one is made."""
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
        """The newest of those that are meant."""
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
        """What stores remember, into an empty table. A dataset may have records in several stores."""
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
    """What nobody says anew is as it was. A version with the same files stays the one it is."""
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
