"""The real database in memory: it outlives its servers, and the world sees what is saved."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from functools import cache

from sqlalchemy import create_engine
from sqlalchemy.pool import StaticPool

from stoker.model.run.run import Event, Run
from stoker.server.records.database import Change, Database
from stoker.server.records.migrations import migrate


class WorldDatabase(Database):
    def __init__(self) -> None:
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        _empty().backup(connection)
        super().__init__(create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool))
        self.saved: dict[str, Run] = {}  # by id, as last written
        self.told: list[str] = []  # unread events

    def add(self, run: Run, submission: str, events: Iterable[Event]) -> Run:
        added = super().add(run, submission, events)
        self.saved[added.id] = added
        return added

    def save(self, changes: Iterable[Change]) -> None:
        changes = list(changes)
        super().save(changes)
        for run, events in changes:
            self.saved[run.id] = run
            self.told += [f"{run.name}: {event.text}" for event in events]


@cache
def _empty() -> sqlite3.Connection:
    """With all tables: creating them takes longer than most lives."""
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    with engine.begin() as opened:
        migrate(opened)
    return connection
