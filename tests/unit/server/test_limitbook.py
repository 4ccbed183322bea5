"""What the server keeps of limits: the table, and what runs that are over have cost."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from stoker.model.run.money import Limit, Period, Spell
from stoker.model.run.run import Run, RunState
from stoker.server.records.database import Database
from stoker.server.rounds.books import LimitBook

Make = Callable[..., Run]
NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)
DAY, ANNA = Limit(Period.DAY, Decimal("5.00")), Limit(Period.MONTH, Decimal(200), "anna")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database.open(tmp_path / "stoker.sqlite")
    yield opened
    opened.close()


def over(run: Run, began: datetime, person: str = "anna") -> Run:
    spell = Spell(f"{run.id}-1", began, began + timedelta(hours=1), Decimal(2))
    return replace(run, person=person, state=RunState.SUCCEEDED, spells=(spell,))


def test_limits_are_kept_replaced_and_removed(database: Database) -> None:
    woken: list[bool] = []
    book = LimitBook(database, lambda: woken.append(True))
    assert not book.given
    book.save(ANNA)
    book.save(DAY)
    book.save(replace(ANNA, usd=Decimal("150.50")))
    assert LimitBook(database).given == (DAY, replace(ANNA, usd=Decimal("150.50")))
    assert book.remove(Period.DAY, "")
    assert not book.remove(Period.DAY, "")
    assert [one.person for one in book.given] == ["anna"]
    assert len(woken) == 5


def test_without_limits_nothing_is_counted(database: Database, make_run: Make) -> None:
    database.add(over(make_run(), NOW), "one", [])
    assert LimitBook(database).current(NOW).past == ()


def test_runs_that_are_over_count_in_their_month_whether_they_ended_before_or_since(
    database: Database, make_run: Make
) -> None:
    earlier, lately = over(make_run(1), NOW - timedelta(days=40)), over(make_run(2), NOW - timedelta(days=1))
    for run in (earlier, lately):
        database.add(run, run.id, [])
    book = LimitBook(database)
    book.save(ANNA)
    assert book.current(NOW).past == (("anna", lately.spells[0]),)
    closed = over(make_run(3), NOW - timedelta(hours=2), "ben")
    book.closed(closed)
    assert book.current(NOW).past == (("anna", lately.spells[0]), ("ben", closed.spells[0]))
    assert book.current(NOW + timedelta(days=30)).past == (), "a new month has begun"


def test_a_run_that_still_costs_is_counted_by_the_round_and_not_here(database: Database, make_run: Make) -> None:
    run = over(make_run(), NOW - timedelta(hours=2))
    database.add(replace(run, spells=(replace(run.spells[0], until=None),)), "one", [])
    book = LimitBook(database)
    book.save(ANNA)
    assert book.current(NOW).past == ()
