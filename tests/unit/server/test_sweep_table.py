"""Thousands of trials saved at once are the runs that they would be one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from stoker.errors import Conflict
from stoker.model.job.job import Job
from stoker.model.job.search import Trial
from stoker.model.job.trials import trial_jobs
from stoker.model.run.run import Event, Run, RunState, Submission
from stoker.model.run.sweep import Sweep
from stoker.server.records.database import Database
from stoker.server.records.sweeps import SweepTable

Make = Callable[..., Run]
JOB = Job.read(
    {"name": "ants", "run": "python t.py ${matrix.lr}", "env": {"A": "${matrix.lr}"}, "matrix": {"lr": [0.1, 0.2, 0.3]}}
)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    found = Database.open(tmp_path / "stoker.db")
    yield found
    found.close()


def sweep(now: datetime, key: str = "k", name: str = "") -> Sweep:
    return Sweep(f"id-{key}", name, 0, Submission(key, JOB, "c", "python"), "folder", now, trials=3)


def trials(make_run: Make, of: str, first: int = 1) -> list[Run]:
    return [
        replace(make_run(at), id=f"{of}-{at}", name="", job=job, trial=Trial(of, at, values))
        for at, (values, job) in enumerate(trial_jobs(JOB), first)
    ]


def test_trials_are_numbered_and_read_back_as_what_was_given(database: Database, make_run: Make, now: datetime) -> None:
    database.add(
        replace(make_run(1), id="0", name="ants-2", job=replace(JOB, matrix=None, run="x", env={})), "other", []
    )
    table = SweepTable(database.engine)
    kept, runs = table.add(sweep(now), trials(make_run, "id-k"), lambda run: Event(now, "submitted", run.id))
    assert kept.name == "ants-s1" and table.all() == [kept] and table.submitted("k") == kept
    assert [run.name for run in runs] == ["ants-3", "ants-4", "ants-5"]  # the numbers of the others are taken
    assert [database.find(run.name) for run in runs] == runs
    assert [event.text for event in database.events(runs[1].id)] == [runs[1].id]
    assert [(row.name, row.trial, row.state) for row in table.trials("id-k")] == [
        (run.name, at, RunState.QUEUED) for at, run in enumerate(runs, 1)
    ]
    later = database.add(replace(make_run(9), id="9", name="", job=runs[0].job), "later", [])
    assert later.name == "ants-6"  # a single run continues the numbers


def test_a_second_sweep_has_the_next_number_and_a_taken_name_is_refused(
    database: Database, make_run: Make, now: datetime
) -> None:
    table = SweepTable(database.engine)
    table.add(sweep(now), trials(make_run, "id-k"), lambda run: Event(now, "submitted", run.id))
    second, _ = table.add(sweep(now, "l"), trials(make_run, "id-l"), lambda run: Event(now, "submitted", run.id))
    assert second.name == "ants-s2"
    with pytest.raises(Conflict):
        table.add(sweep(now, "m", "ants-s2"), trials(make_run, "id-m"), lambda run: Event(now, "submitted", run.id))
    assert table.trials("id-m") == []  # all of it or nothing


def test_a_sweep_without_a_name_passes_over_one_that_a_run_has(
    database: Database, make_run: Make, now: datetime
) -> None:
    database.add(replace(make_run(1), name="ants-s1", job=replace(JOB, matrix=None, run="x", env={})), "other", [])
    table = SweepTable(database.engine)
    kept, _ = table.add(sweep(now), trials(make_run, "id-k"), lambda run: Event(now, "submitted", run.id))
    assert (kept.name, kept.number) == ("ants-s2", 2)


def test_more_trials_of_a_known_sweep_change_its_row(database: Database, make_run: Make, now: datetime) -> None:
    table = SweepTable(database.engine)
    kept, _ = table.add(sweep(now), trials(make_run, "id-k"), lambda run: Event(now, "submitted", run.id))
    more = [replace(run, id=f"more-{run.id}") for run in trials(make_run, "id-k", 4)]
    grown = replace(kept, trials=6)
    table.add(grown, more, lambda run: Event(now, "submitted", run.id), new=False)
    assert table.all() == [grown] and [row.trial for row in table.trials("id-k")] == [1, 2, 3, 4, 5, 6]
