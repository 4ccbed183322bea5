"""The database's schema as a list of steps. A step, once released, never changes; the next change is a new one."""

from __future__ import annotations

from sqlalchemy import Connection, text

from stoker.errors import DatabaseUnusable

_STEPS: list[list[str]] = [
    [
        """CREATE TABLE runs (
            id VARCHAR(40) PRIMARY KEY,
            name VARCHAR(80) NOT NULL UNIQUE,
            experiment VARCHAR(60) NOT NULL,
            number INTEGER NOT NULL,
            state VARCHAR(20) NOT NULL,
            is_open BOOLEAN NOT NULL,
            submission VARCHAR(64) UNIQUE,
            facts TEXT NOT NULL
        )""",
        # Numbers are never reused, even if the newest run of an experiment was removed.
        "CREATE TABLE experiments (name VARCHAR(60) PRIMARY KEY, last_number INTEGER NOT NULL)",
        "CREATE INDEX runs_by_experiment ON runs (experiment, number)",
        "CREATE INDEX runs_by_state ON runs (state, id)",
        "CREATE INDEX runs_open ON runs (is_open)",
        """CREATE TABLE events (
            run_id VARCHAR(40) NOT NULL,
            seq INTEGER NOT NULL,
            at VARCHAR(40) NOT NULL,
            kind VARCHAR(40) NOT NULL,
            text TEXT NOT NULL,
            PRIMARY KEY (run_id, seq)
        )""",
    ],
    [
        """CREATE TABLE dataset_versions (
            name VARCHAR(80) NOT NULL,
            number INTEGER NOT NULL,
            id VARCHAR(64) NOT NULL,
            store VARCHAR(40) NOT NULL,
            facts TEXT NOT NULL,
            PRIMARY KEY (name, number)
        )""",
        "CREATE INDEX dataset_versions_by_store ON dataset_versions (store)",
        # Numbers are never reused, even if the newest version was removed.
        "CREATE TABLE datasets (name VARCHAR(80) PRIMARY KEY, last_number INTEGER NOT NULL)",
    ],
    [
        """CREATE TABLE stores (
            name VARCHAR(40) PRIMARY KEY,
            url VARCHAR(1000) NOT NULL,
            credential VARCHAR(40) NOT NULL,
            workspace BOOLEAN NOT NULL,
            added_at VARCHAR(40) NOT NULL
        )""",
    ],
    [
        """CREATE TABLE limits (
            period VARCHAR(10) NOT NULL,
            person VARCHAR(100) NOT NULL,
            usd VARCHAR(40) NOT NULL,
            PRIMARY KEY (period, person)
        )""",
    ],
    [
        # Spending still counts after the run was removed.
        "CREATE TABLE removed_runs (id VARCHAR(40) PRIMARY KEY, facts TEXT NOT NULL)",
    ],
    ["ALTER TABLE stores ADD COLUMN shared BOOLEAN NOT NULL DEFAULT FALSE"],
    [
        # Removed runs of which something may still be in their store.
        """CREATE TABLE removals (
            id VARCHAR(40) PRIMARY KEY,
            name VARCHAR(80) NOT NULL,
            store VARCHAR(40) NOT NULL,
            snapshot VARCHAR(64) NOT NULL
        )""",
    ],
    ["CREATE TABLE clusters (name VARCHAR(40) PRIMARY KEY, facts TEXT NOT NULL)"],
    [
        """CREATE TABLE sweeps (
            id VARCHAR(40) PRIMARY KEY,
            name VARCHAR(80) NOT NULL UNIQUE,
            experiment VARCHAR(60) NOT NULL,
            number INTEGER NOT NULL,
            submission VARCHAR(64) UNIQUE,
            facts TEXT NOT NULL
        )""",
        "ALTER TABLE runs ADD COLUMN sweep VARCHAR(40) NOT NULL DEFAULT ''",
        "ALTER TABLE runs ADD COLUMN trial INTEGER NOT NULL DEFAULT 0",
        "CREATE INDEX runs_by_sweep ON runs (sweep, id)",
    ],
]
NEWEST = len(_STEPS)


def migrate(connection: Connection) -> int:
    """Migrates the schema inside the caller's transaction and returns the number of steps."""
    connection.execute(text("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)"))
    at = connection.execute(text("SELECT MAX(version) FROM schema_version")).scalar() or 0
    if at > NEWEST:
        raise DatabaseUnusable(
            f"the database has schema {at}, but this Stoker supports up to {NEWEST}",
            hint="use the newer Stoker that wrote it: pip install --upgrade stoker",
        )
    for version in range(at, NEWEST):
        for statement in _STEPS[version]:
            connection.execute(text(statement))
        connection.execute(text("INSERT INTO schema_version (version) VALUES (:version)"), {"version": version + 1})
    return NEWEST - at
