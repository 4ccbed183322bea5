"""What was spent stays spent, whatever becomes of the run."""

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from stories import Told, story

from stoker.model.run.run import Run
from stoker.server.records.database import Database


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database.open(tmp_path / "stoker.db")
    yield opened
    opened.close()


def kept(database: Database, run: Run) -> Run:
    return database.add(run, f"submission of {run.id}", [])


def test_only_runs_that_cost_something_are_paid_for(database: Database) -> None:
    paid = kept(database, replace(story(Told()), id="2" * 12))
    earlier = kept(database, replace(story(Told()), id="1" * 12, name=""))
    kept(database, replace(story(Told(price=Decimal(0))), id="3" * 12, name=""))
    assert [run.id for run in database.paid_runs()] == [earlier.id, paid.id]


def test_a_removed_run_has_cost_what_it_has_cost(database: Database) -> None:
    run = kept(database, replace(story(Told()), person="anna", packages={"torch": "2"}))
    free = kept(database, replace(story(Told(price=Decimal(0))), id="3" * 12, name=""))
    for one in (run, free, free):
        database.remove([one.id])
    assert database.find(run.name) is None
    (left,) = database.paid_runs()
    assert (left.id, left.person, left.spells) == (run.id, "anna", run.spells)
    assert (left.attempts, left.packages) == ((), {})
