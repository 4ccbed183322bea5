"""Runs are removed all or none; what is stored of them goes for certain, however often stores fail and servers die."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stoker.engine.decision import Decision
from stoker.errors import Conflict, NotFound, StoreUnavailable
from stoker.model.job.job import Job
from stoker.model.orders import lock_of, users_of
from stoker.model.run.run import Run, RunState, Start
from stoker.model.workspace import layout
from stoker.model.workspace.store import FOLDER
from stoker.server.codeshelf import Arrivals, CodeShelf
from stoker.server.records.copies import FactsRecorder, Signing
from stoker.server.records.database import Database
from stoker.server.removals import Removals, UnusedCode, remove_unused_code
from stoker.server.rounds.ledger import Ledger
from stoker.stores import Store
from stoker.testing.fakes import MemoryStore

NOW = datetime(2026, 3, 1, tzinfo=UTC)


class Failing(MemoryStore):
    """A store that can be read, and refuses to delete below one key."""

    refused = "nothing"

    def delete(self, key: str) -> None:
        if key.startswith(self.refused):
            raise StoreUnavailable("store away")
        super().delete(key)


class World:
    """What a server has of its runs. A second one on the same folder is the server after a restart."""

    def __init__(self, folder: Path, store: Failing | None = None) -> None:
        self.folder = folder
        self.store = store or Failing()
        self.database = Database.open(folder / "stoker.db")
        self.all = [type("Known", (), {"name": FOLDER})()]
        self.ledger = Ledger(self.database, FactsRecorder(self, Signing(_Keys())))  # type: ignore[arg-type]
        self.arrivals = Arrivals()
        self.shelf = CodeShelf(self.store, None, self.arrivals)
        shelves = type("Shelves", (), {"of": lambda _, __: self.shelf})()
        code = UnusedCode(shelves, self.arrivals, self.database.snapshots_in_use, self.database.run_ids)
        self.removals = Removals(self.ledger, self.database, self, code, folder / "environments")  # type: ignore[arg-type]

    def open(self, name: str) -> Store:
        if name != FOLDER:
            raise NotFound(name)
        return self.store

    def of(self, run: Run) -> Store:
        return self.open(run.store)

    async def add(self, number: int, **facts: object) -> Run:
        ended = {"state": RunState.SUCCEEDED, "ended_at": NOW, **facts}
        run = Run(f"{number:020x}", "", 0, Job(name="ants", run="true"), f"{number:064x}", "python", NOW)
        self.store.put(f"{layout.run(run.id)}attempts/1/logs/0.log", b"hello")
        self.store.put(layout.snapshot(run.snapshot), b'{"entries":[]}')
        return await self.ledger.add(replace(run, **ended), f"submission {number}", [])  # type: ignore[arg-type]

    def stored(self) -> set[str]:
        return {one.key for one in self.store.list("")}


class _Keys:
    place = "memory"

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def get(self, name: str) -> str | None:
        return self._known.get(name)

    def keep(self, name: str, secret: str) -> None:
        self._known[name] = secret


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.database.close()


def test_nothing_of_removed_runs_is_left(world: World) -> None:
    async def live() -> dict[str, str]:
        runs = [await world.add(number) for number in range(3)]
        return await world.removals.remove([run.name for run in runs])

    assert asyncio.run(live()) == {}
    assert world.stored() == set()
    assert world.database.removals() == []


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"state": RunState.RUNNING}, "is running"),
        ({"kept_until": NOW}, "is kept"),
        ({"land_in": "/x", "output_files": 1}, "are being downloaded"),
    ],
)
def test_one_run_that_has_to_stay_keeps_all(
    world: World, facts: dict[str, object], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.server.removals.LANDING_S", 0.0)

    async def live() -> None:
        runs = [await world.add(1), await world.add(2, **facts), await world.add(3)]
        await world.removals.remove([run.name for run in runs])

    with pytest.raises(Conflict, match=says):
        asyncio.run(live())
    assert len(world.database.run_ids()) == 3
    assert world.database.removals() == []
    assert len([one for one in world.stored() if one.endswith("0.log")]) == 3


def test_a_name_that_nobody_has_keeps_all(world: World) -> None:
    async def live() -> None:
        run = await world.add(1)
        await world.removals.remove([run.name, "ants-99"])

    with pytest.raises(NotFound):
        asyncio.run(live())
    assert len(world.database.run_ids()) == 1


def test_a_run_that_another_one_waits_to_start_from_stays(world: World) -> None:
    async def live() -> None:
        run = await world.add(1)
        waiting = {"state": RunState.QUEUED, "start": Start(run.id, run.name, FOLDER)}
        await world.add(2, **waiting)
        await world.removals.remove([run.name])

    with pytest.raises(Conflict, match=r"`ants-2`.*`ants-1`"):
        asyncio.run(live())


def test_a_run_cannot_start_from_one_that_was_removed_meanwhile(world: World) -> None:
    async def live() -> None:
        run = await world.add(1)
        await world.removals.remove([run.name])
        await world.add(2, state=RunState.QUEUED, start=Start(run.id, run.name, FOLDER))

    with pytest.raises(Conflict, match="was removed"):
        asyncio.run(live())


@pytest.mark.parametrize("refused", ["runs/", "snapshots/", "stoker/records/"])
def test_a_store_that_fails_half_way_is_asked_again_by_the_next_server(tmp_path: Path, refused: str) -> None:
    first = World(tmp_path)

    async def live() -> dict[str, str]:
        run = await first.add(1)
        first.store.refused = refused
        return await first.removals.remove([run.name])

    assert asyncio.run(live()) == {"ants-1": "store away"}
    assert first.database.run_ids() == set(), "the run is gone all the same"
    assert first.stored() != set()
    first.database.close()
    second = World(tmp_path, first.store)
    second.store.refused = "nothing"
    asyncio.run(second.removals.carry_out())
    assert second.stored() == set()
    assert second.database.removals() == []
    asyncio.run(second.removals.carry_out())
    second.database.close()


def test_two_who_remove_the_same_run_at_once_do_no_harm(world: World) -> None:
    async def live() -> list[object]:
        run = await world.add(1)
        calls = [world.removals.remove([run.name]) for _ in range(3)]
        return list(await asyncio.gather(*calls, return_exceptions=True))

    outcomes = asyncio.run(live())
    assert {} in outcomes
    assert all(one == {} or isinstance(one, NotFound) for one in outcomes), outcomes
    assert world.stored() == set()


def test_outputs_that_are_being_downloaded_are_waited_for(world: World) -> None:
    async def live() -> dict[str, str]:
        run = await world.add(1, land_in="/x", output_files=1)
        removing = asyncio.create_task(world.removals.remove([run.name]))
        await asyncio.sleep(0.1)
        assert world.database.run_ids() == {run.id}
        await world.ledger.change(run.name, lambda seen: Decision(replace(seen, landed="/x/ants-1")))
        return await removing

    assert asyncio.run(live()) == {}
    assert world.stored() == set()


# Environments


def venv(folder: Path, name: str, *users: str) -> Path:
    made = folder / name
    (made / "bin").mkdir(parents=True)
    (made / "bin" / "python").write_text("#!")
    lock_of(made).touch()
    users_of(made).mkdir()
    for user in users:
        (users_of(made) / user).touch()
    return made


def test_an_environment_goes_with_the_last_run_that_used_it(tmp_path: Path) -> None:
    shared = venv(tmp_path, "a" * 32, "1", "2")
    assert remove_unused_code(tmp_path, lambda: {"2"}) == 0
    assert (shared / "bin" / "python").exists()
    assert remove_unused_code(tmp_path, set) == 1
    assert list(tmp_path.iterdir()) == []
    assert remove_unused_code(tmp_path, set) == 0


def test_an_environment_that_is_being_built_and_one_without_marks_stay(tmp_path: Path) -> None:
    import fcntl

    busy, old = venv(tmp_path, "b" * 32), tmp_path / ("c" * 32)
    old.mkdir()
    with lock_of(busy).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert remove_unused_code(tmp_path, set) == 0
    assert busy.exists()
    assert remove_unused_code(tmp_path, set) == 1
    assert [one.name for one in tmp_path.iterdir()] == [old.name]


def test_a_run_that_comes_while_environments_are_looked_at_keeps_its_own(tmp_path: Path) -> None:
    used = venv(tmp_path, "d" * 32)

    def runs() -> set[str]:
        (users_of(used) / "7").touch()  # its agent marks it just now
        return set()

    assert remove_unused_code(tmp_path, runs) == 0
    assert (used / "bin" / "python").exists()
