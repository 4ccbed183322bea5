"""SQLite databases in checkpoint folders: a set contains a consistent database, whoever writes to it meanwhile."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from test_keeping import CountingStore, Run

from stoker.agent.checkpoints.folders.choosing import Care
from stoker.agent.checkpoints.folders.copies import LEAST_EVERY_S, TOLD_AFTER_S
from stoker.model.snapshot import CheckpointSet


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(CountingStore(), tmp_path)


@pytest.fixture(params=["delete", "wal"])
def study(run: Run, request: pytest.FixtureRequest) -> Iterator[sqlite3.Connection]:
    with closing(opened(run, request.param)) as connection:
        yield connection


def opened(run: Run, journal: str = "delete", name: str = "study.db") -> sqlite3.Connection:
    connection = sqlite3.connect(run.ckpt / name, isolation_level=None, timeout=0)
    connection.execute(f"PRAGMA journal_mode={journal}")
    connection.execute("CREATE TABLE trials (number)")
    run.open.append(run.ckpt / name)
    return connection


def insert(connection: sqlite3.Connection, *numbers: int) -> None:
    connection.executemany("INSERT INTO trials VALUES (?)", [(number,) for number in numbers])


def looks(run: Run, seconds: float = 4.0, care: Care = Care.PATIENT) -> CheckpointSet | None:
    """The last set that is created meanwhile."""
    made = [one for _ in range(int(seconds / 0.25)) if (one := run.look(0.25, care))]
    return made[-1] if made else None


def rows(run: Run, made: CheckpointSet | None, name: str = "study.db") -> list[int]:
    """What a reader finds who has only the set."""
    place = run.root / "restored.db"
    place.write_bytes(run.content(made)[name])
    with closing(sqlite3.connect(place)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return [number for (number,) in connection.execute("SELECT number FROM trials ORDER BY number")]


def test_a_database_that_stays_open_is_in_every_set_as_it_is(run: Run, study: sqlite3.Connection) -> None:
    insert(study, 1)
    run.write("model_1", "1")
    made = looks(run)
    assert rows(run, made) == [1]
    assert run.content(made).keys() == {"study.db", "model_1"}, "and nothing that SQLite keeps beside it"
    insert(study, 2)
    made = looks(run)
    assert rows(run, made) == [1, 2]
    assert looks(run) is None, "nothing has changed"
    assert run.events == []


def test_its_journal_mode_comes_back(run: Run, study: sqlite3.Connection) -> None:
    insert(study, 1)
    mode = study.execute("PRAGMA journal_mode").fetchone()
    rows(run, looks(run))
    with closing(sqlite3.connect(run.root / "restored.db")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == mode


def test_rows_of_a_transaction_that_is_open_are_not_in_it(run: Run, study: sqlite3.Connection) -> None:
    insert(study, 1)
    study.execute("BEGIN IMMEDIATE")
    insert(study, 2)
    assert rows(run, looks(run)) == [1]
    study.execute("COMMIT")
    assert rows(run, looks(run)) == [1, 2]


def test_a_database_beside_files_that_never_rest_is_kept(run: Run, study: sqlite3.Connection) -> None:
    made = None
    for step in range(60):
        insert(study, step)
        for name in ("model", "optimizer"):
            run.write(name, f"{name} {step}")
        made = run.look(0.25) or made
    assert rows(run, made)[-1] >= 50
    assert run.content(made).keys() == {"study.db"}


def test_what_a_row_speaks_of_is_in_the_same_set(run: Run, study: sqlite3.Connection) -> None:
    made = []
    for step in range(80):
        run.write(f"model_{step}", str(step))
        insert(study, step)
        if one := run.look(0.15):
            made.append(one)
            known = rows(run, one) if "study.db" in run.content(one) else []
            assert {f"model_{number}" for number in known} <= run.content(one).keys()
    assert rows(run, made[-1])[-1] > 50


def test_at_a_notice_it_is_copied_at_once(run: Run, study: sqlite3.Connection) -> None:
    looks(run)
    for step in range(10):
        insert(study, step)
        made = looks(run, 0.75, Care.HURRIED)
    assert rows(run, made) == list(range(10))


def test_a_long_write_transaction_is_reported_and_made_up_for(run: Run) -> None:
    with closing(opened(run)) as study:
        insert(study, 1)
        looks(run)
        study.execute("BEGIN EXCLUSIVE")
        insert(study, 2)
        os.utime(run.ckpt / "study.db")
        assert looks(run, TOLD_AFTER_S + 3 * LEAST_EVERY_S) is None
        [(kind, text)] = run.events
        assert kind == "checkpoint-left-out"
        assert text.startswith(
            "`checkpoints/study.db` is in the checkpoints in an older version: a long write transaction"
        )
        study.execute("COMMIT")
        assert rows(run, looks(run)) == [1, 2]
        assert run.events[1:] == [("checkpoint-caught-up", "`checkpoints/study.db` is in the checkpoints again")]


def test_a_python_without_sqlite_is_reported_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(opened(run)) as study:
        insert(study, 1)
        run.write("model", "1")
        monkeypatch.setitem(sys.modules, "sqlite3", None)
        assert run.content(looks(run, 2.0)) == {"model": b"1"}
        assert ["this node's Python has no `sqlite3`" in text for _, text in run.events] == [True]


def test_a_file_that_is_only_called_like_a_database_is_a_file(run: Run) -> None:
    run.write("study.db", "not SQLite")
    run.write("study.db-wal", "nor this")
    assert run.content(run.commit()).keys() == {"study.db", "study.db-wal"}
    assert run.events == []


def test_a_file_that_only_begins_like_a_database_is_reported(run: Run) -> None:
    run.open.append(run.write("study.db", b"SQLite format 3\0" + b"x" * 5000))
    run.write("model", "1")
    assert run.content(looks(run)) == {"model": b"1"}
    [(_, text)] = run.events
    assert text.startswith("`checkpoints/study.db` is in no checkpoint: the SQLite database cannot be copied (")


def test_a_database_that_is_closed_is_a_file_like_others(run: Run) -> None:
    with closing(opened(run)) as study:
        insert(study, 1)
    run.open.clear()
    assert rows(run, run.commit()) == [1]


def test_a_script_that_has_ended_leaves_the_database_with_its_journal(run: Run, study: sqlite3.Connection) -> None:
    insert(study, 1)
    looks(run)
    insert(study, 2)
    run.open.clear()
    made = run.look(0.0, Care.TRUSTING)
    for name, content in run.content(made).items():
        (run.root / name).write_bytes(content)
    with closing(sqlite3.connect(run.root / "study.db")) as connection:
        assert connection.execute("SELECT count(*) FROM trials").fetchone() == (2,)


def test_a_database_that_was_removed_leaves_the_set(run: Run, study: sqlite3.Connection) -> None:
    insert(study, 1)
    run.write("model", "1")
    looks(run)
    run.open.clear()
    for one in run.ckpt.glob("study.db*"):
        one.unlink()
    run.write("model", "2")
    assert run.content(looks(run)) == {"model": b"2"}


def test_an_agent_without_databases_does_not_import_sqlite() -> None:
    code = "import sys; import stoker.agent.attempt; sys.exit('sqlite3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_database_that_comes_after_one_was_removed_takes_the_place_of_no_other(run: Run) -> None:
    first, second = opened(run, name="first.db"), opened(run, name="second.db")
    insert(first, 1)
    insert(second, 2)
    assert rows(run, looks(run), "second.db") == [2]
    first.close()
    run.open.remove(run.ckpt / "first.db")
    (run.ckpt / "first.db").unlink()
    looks(run)
    third = opened(run, name="third.db")
    insert(third, 3)
    made = looks(run)
    assert rows(run, made, "third.db") == [3]
    assert rows(run, made, "second.db") == [2]
    second.close()
    third.close()
