"""The desired state in SQL: runs with their facts, and their timelines. Every write is one transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    bindparam,
    create_engine,
    delete,
    event,
    func,
    insert,
    or_,
    select,
    text,
    union_all,
    update,
)
from sqlalchemy.exc import DatabaseError

from stoker.errors import Conflict, DatabaseUnusable
from stoker.files.mounted import mounted_at
from stoker.model import wire
from stoker.model.cause import Cause
from stoker.model.dataset import DatasetVersion
from stoker.model.run.run import Event, Run, RunState
from stoker.server.records.migrations import migrate

_META = MetaData()
RUNS = Table(
    "runs",
    _META,
    Column("id", String, primary_key=True),
    Column("name", String),
    Column("experiment", String),
    Column("number", Integer),
    Column("state", String),
    Column("is_open", Boolean),
    Column("submission", String),
    Column("sweep", String),
    Column("trial", Integer),
    Column("facts", Text),
)
EXPERIMENTS = Table("experiments", _META, Column("name", String, primary_key=True), Column("last_number", Integer))
_SAVE = update(RUNS).where(RUNS.c.id == bindparam("run_id"))  # built once: it is most of what a server writes
EVENTS = Table(
    "events",
    _META,
    Column("run_id", String, primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("at", String),
    Column("kind", String),
    Column("text", Text),
)

REMOVED = Table("removed_runs", _META, Column("id", String, primary_key=True), Column("facts", Text))
_REMOVALS = Table(
    "removals",
    _META,
    Column("id", String, primary_key=True),
    Column("name", String),
    Column("store", String),
    Column("snapshot", String),
)

Change = tuple[Run, Sequence[Event]]

MOST_OF_A_KIND = 200  # events in the timeline of one run: of more, the first few and the newest
_FIRST_OF_A_KIND = 50
_LONGEST_TEXT = 8000


class RunRemoval(NamedTuple):
    """A removed run, and its store."""

    id: str
    name: str
    store: str
    snapshot: str


class Database:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @classmethod
    def open(cls, path: Path) -> Database:
        """Raises DatabaseUnusable when the file is damaged or was written by a newer Stoker."""
        engine = create_engine(
            f"sqlite:///{path}", connect_args={"timeout": 30, "check_same_thread": False}, hide_parameters=True
        )
        event.listen(engine, "connect", partial(_set_up_sqlite, shared=mounted_at(path).is_shared))
        try:
            with engine.begin() as connection:
                _check_sqlite(connection)
                migrate(connection)
        except DatabaseError as error:
            engine.dispose()
            raise DatabaseUnusable(f"the database {path} is damaged: {error.orig}") from error
        return cls(engine)

    @property
    def engine(self) -> Engine:
        """For tables that are defined in their own file."""
        return self._engine

    def close(self) -> None:
        self._engine.dispose()

    def add(self, run: Run, submission: str, events: Iterable[Event]) -> Run:
        """Numbers a new run, and names it where it has no name. The same submission again gives the same run."""
        with self._engine.begin() as connection:
            known = connection.execute(select(RUNS.c.facts).where(RUNS.c.submission == submission)).scalar()
            if known:
                return _run(known)
            _check_start(connection, run)
            run = _numbered(connection, run)
            connection.execute(insert(RUNS).values(row_of(run) | {"submission": submission}))
            _add_events(connection, run, events)
        return run

    def save(self, changes: Iterable[Change]) -> None:
        with self._engine.begin() as connection:
            for run, events in changes:
                connection.execute(_SAVE, row_of(run) | {"run_id": run.id})
                _add_events(connection, run, events)

    def restore(self, runs: Iterable[Run]) -> None:
        """Runs from the store, into an empty database."""
        rows = [row_of(run) for run in runs]
        with self._engine.begin() as connection:
            if rows:
                connection.execute(insert(RUNS), rows)

    def remove(self, run_ids: Iterable[str]) -> None:
        """All of them or none. Their costs are kept, and that their stores may still contain something of them."""
        with self._engine.begin() as connection:
            for run_id in run_ids:
                facts = connection.execute(select(RUNS.c.facts).where(RUNS.c.id == run_id)).scalar()
                if not facts:
                    continue
                run = _run(facts)
                if run.spells:
                    bare = replace(
                        run, attempts=(), packages={}, system={}, metrics={}, inputs={}, data={}, data_marks={}
                    )
                    # An idle node of it is released now: nothing tracks it any more.
                    idle = tuple(replace(one, until=one.until or one.seen_at or one.since) for one in bare.idle)
                    bare = replace(bare, idle=idle)
                    connection.execute(insert(REMOVED).values(id=run.id, facts=wire.dump(bare).decode()))
                left = {"id": run.id, "name": run.name, "store": run.store, "snapshot": run.snapshot}
                connection.execute(insert(_REMOVALS).values(left))
                connection.execute(delete(EVENTS).where(EVENTS.c.run_id == run_id))
                connection.execute(delete(RUNS).where(RUNS.c.id == run_id))

    def removals(self) -> list[RunRemoval]:
        """Runs of which something may still be in a store."""
        with self._engine.connect() as connection:
            return [RunRemoval(*row) for row in connection.execute(select(_REMOVALS).order_by(_REMOVALS.c.id))]

    def forget_removals(self, run_ids: Iterable[str]) -> None:
        with self._engine.begin() as connection:
            connection.execute(delete(_REMOVALS).where(_REMOVALS.c.id.in_(list(run_ids))))

    def find(self, name: str) -> Run | None:
        with self._engine.connect() as connection:
            facts = connection.execute(select(RUNS.c.facts).where(RUNS.c.name == name)).scalar()
        return _run(facts) if facts else None

    def open_runs(self) -> list[Run]:
        query = select(RUNS.c.facts).where(RUNS.c.is_open).order_by(RUNS.c.id)
        with self._engine.connect() as connection:
            return [_run(facts) for facts in connection.execute(query).scalars()]

    def names(self) -> list[str]:
        """All names, newest run first: for suggestions."""
        with self._engine.connect() as connection:
            return list(connection.execute(select(RUNS.c.name).order_by(RUNS.c.id.desc()).limit(5000)).scalars())

    def page(
        self, limit: int, before: str, experiment: str, state: str, *, folded: bool = False
    ) -> list[dict[str, Any]]:
        """Newest first, in wire form: a page of a thousand runs is forwarded, not parsed. `state` may be `active`: not
        ended. `packages` are omitted: they are long, and a list does not show them. `folded`: without trials that
        wait."""
        query = select(RUNS.c.facts).order_by(RUNS.c.id.desc()).limit(limit)
        if before:
            query = query.where(RUNS.c.id < before)
        if experiment:
            query = query.where(RUNS.c.experiment == experiment)
        if state:
            states = [one for one in RunState if not one.ended] if state == "active" else [state]
            query = query.where(RUNS.c.state.in_([str(one) for one in states]))
        if folded:
            query = query.where((RUNS.c.sweep == "") | (RUNS.c.state != str(RunState.QUEUED)))
        with self._engine.connect() as connection:
            return [json.loads(facts) | {"packages": {}} for facts in connection.execute(query).scalars()]

    def paid_runs(self) -> list[Run]:
        """Those whose nodes have cost something, oldest first; of removed ones, only the cost."""
        there = select(RUNS.c.id, RUNS.c.facts).where(RUNS.c.facts.contains('"spells":[{', autoescape=True))
        query = union_all(there, select(REMOVED.c.id, REMOVED.c.facts))
        with self._engine.connect() as connection:
            return [_run(facts) for _, facts in sorted(tuple(row) for row in connection.execute(query))]

    def run_ids(self) -> set[str]:
        with self._engine.connect() as connection:
            return set(connection.execute(select(RUNS.c.id)).scalars())

    def ended_runs(self) -> list[Run]:
        """Oldest first, without their packages."""
        query = select(RUNS.c.facts).where(RUNS.c.state.in_([str(one) for one in RunState if one.ended]))
        with self._engine.connect() as connection:
            rows = connection.execute(query.order_by(RUNS.c.id)).scalars()
            return [wire.from_plain(Run, json.loads(facts) | {"packages": {}}) for facts in rows]

    def snapshots_in_use(self) -> set[str]:
        with self._engine.connect() as connection:
            return {json.loads(facts)["snapshot"] for facts in connection.execute(select(RUNS.c.facts)).scalars()}

    def runs_using(self, version: DatasetVersion) -> list[str]:
        """The names of runs that use this version of a dataset, or its manifest, newest first."""
        named = [RUNS.c.facts.contains(f'"{text}"', autoescape=True) for text in (version.ref, version.manifest)]
        query = select(RUNS.c.name).where(or_(*named)).order_by(RUNS.c.id.desc())
        with self._engine.connect() as connection:
            return list(connection.execute(query).scalars())

    def runs_in(self, store: str) -> list[str]:
        """The names of runs in this store, newest first."""
        query = select(RUNS.c.name).where(RUNS.c.facts.contains(f'"store":"{store}"', autoescape=True))
        with self._engine.connect() as connection:
            return list(connection.execute(query.order_by(RUNS.c.id.desc())).scalars())

    def events(self, run_id: str) -> list[Event]:
        """In order, with a line where some were omitted: their numbers are missing."""
        query = select(EVENTS).where(EVENTS.c.run_id == run_id).order_by(EVENTS.c.seq)
        with self._engine.connect() as connection:
            rows = connection.execute(query).mappings().all()
        found, last = [], 0
        for row in rows:
            at = datetime.fromisoformat(row["at"])
            if left_out := row["seq"] - last - 1:
                found.append(Event(at, "left-out", left_out_words(left_out)))
            found.append(Event(at, row["kind"], row["text"]))
            last = row["seq"]
        return found


def _check_start(connection: Connection, run: Run) -> None:
    """Runs in the transaction that adds the run, after which the run that it starts from cannot be removed."""
    start = run.start
    if start and not connection.execute(select(RUNS.c.id).where(RUNS.c.id == start.run_id)).scalar():
        raise Conflict(
            f"`{start.name}` was removed together with its checkpoint",
            hint="list all with `stoker ps -a`",
            cause=Cause.NO_CHECKPOINT,
        )


def _numbered(connection: Connection, run: Run) -> Run:
    number = next_number(connection, run.experiment)
    taken = select(RUNS.c.id)
    if run.name:
        if connection.execute(taken.where(RUNS.c.name == run.name)).scalar():
            raise Conflict(
                f"a run named `{run.name}` already exists",
                hint=f"see it with `stoker show {run.name}`",
                cause=Cause.NAME_IN_USE,
            )
        return replace(run, number=number)
    while connection.execute(taken.where(RUNS.c.name == f"{run.experiment}-{number}")).scalar():
        number += 1  # a user gave this name to another run
    return replace(run, number=number, name=f"{run.experiment}-{number}")


def next_number(connection: Connection, experiment: str) -> int:
    """Never a number that was used before, even if that run has been removed."""
    newest = select(func.max(RUNS.c.number)).where(RUNS.c.experiment == experiment)
    remembered = select(EXPERIMENTS.c.last_number).where(EXPERIMENTS.c.name == experiment)
    last = connection.execute(remembered).scalar()
    number = max(connection.execute(newest).scalar() or 0, last or 0) + 1
    if last is None:
        connection.execute(insert(EXPERIMENTS).values(name=experiment, last_number=number))
    else:
        connection.execute(update(EXPERIMENTS).where(EXPERIMENTS.c.name == experiment).values(last_number=number))
    return number


def row_of(run: Run, facts: str = "") -> dict[str, Any]:
    """`facts`: the run as text, where that is known."""
    return {
        "id": run.id,
        "name": run.name,
        "experiment": run.experiment,
        "number": run.number,
        "state": str(run.state),
        "is_open": run.tended,
        "sweep": run.trial.sweep if run.trial else "",
        "trial": run.trial.number if run.trial else 0,
        "facts": facts or wire.dump(run).decode(),
    }


def _run(facts: str) -> Run:
    return wire.load(Run, facts.encode())


def _add_events(connection: Connection, run: Run, events: Iterable[Event]) -> None:
    rows = [{"at": one.at.isoformat(), "kind": storable(one.kind), "text": storable(one.text)} for one in events]
    if not rows:
        return
    last = select(func.max(EVENTS.c.seq)).where(EVENTS.c.run_id == run.id)
    first = (connection.execute(last).scalar() or 0) + 1
    connection.execute(insert(EVENTS), [row | {"run_id": run.id, "seq": first + i} for i, row in enumerate(rows)])
    for kind in {row["kind"] for row in rows} if first > MOST_OF_A_KIND else ():  # rare
        _thin_out(connection, run.id, kind)


def _thin_out(connection: Connection, run_id: str, kind: str) -> None:
    """Bounds the space of events that repeat forever, which a node can cause."""
    mine = (EVENTS.c.run_id == run_id) & (EVENTS.c.kind == kind)
    known = list(connection.execute(select(EVENTS.c.seq).where(mine).order_by(EVENTS.c.seq)).scalars())
    if len(known) > MOST_OF_A_KIND:
        gone = known[_FIRST_OF_A_KIND : len(known) - (MOST_OF_A_KIND - _FIRST_OF_A_KIND)]
        connection.execute(delete(EVENTS).where(mine & (EVENTS.c.seq >= gone[0]) & (EVENTS.c.seq <= gone[-1])))


def left_out_words(count: int) -> str:
    return f"{count} more such event{' was' if count == 1 else 's were'} omitted"


def storable(text: str) -> str:
    """File names may contain invalid Unicode, which a database does not accept."""
    text = text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _set_up_sqlite(connection: Any, _: Any, *, shared: bool) -> None:
    """A log beside the database needs memory that processes share: a file system of several computers has none."""
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA journal_mode={'DELETE' if shared else 'WAL'}")
    cursor.execute("PRAGMA synchronous=NORMAL")  # a power cut may lose the last moments, never the file
    cursor.close()


def _check_sqlite(connection: Connection) -> None:
    found = connection.execute(text("PRAGMA quick_check(1)")).scalar()
    if found != "ok":
        raise DatabaseUnusable(f"the database is damaged: {found}")
