"""The table of sweeps, and thousands of their trials saved at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    func,
    insert,
    select,
    union_all,
    update,
)

from stoker.engine.sweeps.asking import TriedTrial
from stoker.errors import Conflict
from stoker.model import wire
from stoker.model.cause import Cause
from stoker.model.job.search import Trial
from stoker.model.job.trials import plain_of, varying
from stoker.model.run.run import Event, Run, RunState
from stoker.model.run.sweep import Sweep
from stoker.server.records.database import EVENTS, EXPERIMENTS, REMOVED, RUNS, next_number, row_of, storable

_SWEEPS = Table(
    "sweeps",
    MetaData(),
    Column("id", String, primary_key=True),
    Column("name", String),
    Column("experiment", String),
    Column("number", Integer),
    Column("submission", String),
    Column("facts", Text),
)


class TrialRow(NamedTuple):
    """A run of a sweep, without its facts."""

    id: str
    name: str
    trial: int
    state: RunState


class SweepTable:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def all(self) -> list[Sweep]:
        """Oldest first."""
        with self._engine.connect() as connection:
            found = connection.execute(select(_SWEEPS.c.facts).order_by(_SWEEPS.c.id)).scalars()
            return [wire.load(Sweep, facts.encode()) for facts in found]

    def submitted(self, key: str) -> Sweep | None:
        """The sweep that this submission made before."""
        with self._engine.connect() as connection:
            return _submitted(connection, key)

    def trials(self, sweep: str) -> list[TrialRow]:
        """Every run of it, oldest first: a trial that was retried has several."""
        columns = (RUNS.c.id, RUNS.c.name, RUNS.c.trial, RUNS.c.state)
        with self._engine.connect() as connection:
            rows = connection.execute(select(*columns).where(RUNS.c.sweep == sweep).order_by(RUNS.c.id))
            return [TrialRow(row[0], row[1], row[2], RunState(row[3])) for row in rows]

    def past(self, sweep: str) -> list[Mapping[str, Any]]:
        """Those of its runs that are over and have cost something, in plain form; of removed ones, only the cost."""
        mine, costing = f'"trial":{{"sweep":"{sweep}"', '"spells":[{'
        there = select(RUNS.c.facts).where((RUNS.c.sweep == sweep) & ~RUNS.c.is_open)
        gone = select(REMOVED.c.facts).where(REMOVED.c.facts.contains(mine, autoescape=True))
        with self._engine.connect() as connection:
            facts = connection.execute(union_all(there, gone)).scalars()
            return [json.loads(one) for one in facts if costing in one]

    def given(self, sweep: str) -> dict[str, Trial]:
        """By name of the run, which trial it is: without reading each as a run."""
        with self._engine.connect() as connection:
            rows = connection.execute(select(RUNS.c.name, RUNS.c.facts).where(RUNS.c.sweep == sweep))
            return {name: wire.from_plain(Trial, json.loads(facts)["trial"]) for name, facts in rows}

    def tried(self, sweep: str) -> list[TriedTrial]:
        """Its trials in order, each with what its last run said."""
        with self._engine.connect() as connection:
            found = select(RUNS.c.facts).where(RUNS.c.sweep == sweep).order_by(RUNS.c.id)
            tried = [_tried(json.loads(facts)) for facts in connection.execute(found).scalars()]
        newest = {one.trial.number: one for one in tried}
        return [newest[number] for number in sorted(newest)]

    def runs(self, sweep: str) -> list[Run]:
        """All of it with all their facts, oldest first."""
        with self._engine.connect() as connection:
            facts = connection.execute(select(RUNS.c.facts).where(RUNS.c.sweep == sweep).order_by(RUNS.c.id)).scalars()
            return [wire.load(Run, one.encode()) for one in facts]

    def save(self, sweep: Sweep) -> None:
        with self._engine.begin() as connection:
            _save(connection, sweep)

    def add(
        self, sweep: Sweep, runs: Sequence[Run], event: Callable[[Run], Event], *, new: bool = True
    ) -> tuple[Sweep, list[Run]]:
        """A sweep with its trials, or with `new` off, more trials of a known one: one transaction. Numbers and names
        them. The same submission again gives the same sweep, and no runs."""
        with self._engine.begin() as connection:
            if new:
                if known := _submitted(connection, sweep.submission.key):
                    return known, []
                sweep = _added(connection, sweep)
            else:
                _save(connection, sweep)
            runs = _numbered(connection, runs)
            text = _AlikeText(runs[0], sweep)
            connection.execute(insert(RUNS), [row_of(run, text.of(run)) for run in runs])
            told = [(run.id, event(run)) for run in runs]
            rows = [
                {"run_id": id, "seq": 1, "at": one.at.isoformat(), "kind": one.kind, "text": storable(one.text)}
                for id, one in told
            ]
            connection.execute(insert(EVENTS), rows)
        return sweep, runs


def _tried(run: Mapping[str, Any]) -> TriedTrial:
    trial = wire.from_plain(Trial, run["trial"])
    return TriedTrial(run["name"], trial, RunState(run["state"]), run["cause"], run["reason"])


def _submitted(connection: Connection, key: str) -> Sweep | None:
    facts = connection.execute(select(_SWEEPS.c.facts).where(_SWEEPS.c.submission == key)).scalar()
    return wire.load(Sweep, facts.encode()) if facts else None


def _added(connection: Connection, sweep: Sweep) -> Sweep:
    newest = select(func.max(_SWEEPS.c.number)).where(_SWEEPS.c.experiment == sweep.experiment)
    number = (connection.execute(newest).scalar() or 0) + 1
    while not sweep.name and _is_taken(connection, f"{sweep.experiment}-s{number}"):
        number += 1  # a user gave this name to another sweep or run
    sweep = replace(sweep, number=number, name=sweep.name or f"{sweep.experiment}-s{number}")
    if _is_taken(connection, sweep.name):
        raise Conflict(f"`{sweep.name}` already exists", hint="choose another `--name`", cause=Cause.NAME_IN_USE)
    row = {"id": sweep.id, "name": sweep.name, "experiment": sweep.experiment, "number": number}
    row |= {"submission": sweep.submission.key, "facts": wire.dump(sweep).decode()}
    connection.execute(insert(_SWEEPS).values(row))
    return sweep


def _is_taken(connection: Connection, name: str) -> bool:
    return any(connection.execute(select(table.c.id).where(table.c.name == name)).scalar() for table in (_SWEEPS, RUNS))


def _save(connection: Connection, sweep: Sweep) -> None:
    connection.execute(update(_SWEEPS).where(_SWEEPS.c.id == sweep.id).values(facts=wire.dump(sweep).decode()))


def _numbered(connection: Connection, runs: Sequence[Run]) -> list[Run]:
    experiment = runs[0].experiment
    prefix = f"{experiment}-"
    named = select(RUNS.c.name).where(RUNS.c.name.startswith(prefix, autoescape=True))
    taken = set(connection.execute(named).scalars())
    number, found = next_number(connection, experiment), []
    for run in runs:
        while f"{prefix}{number}" in taken:
            number += 1  # a user gave this name to another run
        found.append(replace(run, number=number, name=f"{prefix}{number}"))
        number += 1
    last = update(EXPERIMENTS).where(EXPERIMENTS.c.name == experiment)
    connection.execute(last.values(last_number=number - 1))
    return found


class _AlikeText:
    """Runs as text that are alike but for their names, and for what the values of a trial change: what is the same in
    all is turned into plain data once."""

    _CHANGE = ("id", "name", "number", "trial", "rerun_of", "inputs")

    def __init__(self, first: Run, sweep: Sweep) -> None:
        self._names = ["env", *varying(sweep.job)]
        self._plain = wire.to_plain(first)
        self._job = self._plain["job"]

    def of(self, run: Run) -> str:
        job = plain_of(run.job, self._names)
        changed = {name: wire.to_plain(getattr(run, name)) for name in self._CHANGE}
        return wire.dump({**self._plain, **changed, "job": {**self._job, **job}}).decode()
