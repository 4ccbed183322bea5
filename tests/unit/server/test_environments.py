"""Environments as the server lists and removes them: those of one owner, and what nodes wrote at most once."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from stoker.errors import Conflict, Missing, NotFound
from stoker.model.cause import Cause
from stoker.model.environment import COMPLETE, BuiltEnvironment, PackedFiles
from stoker.model.orders import users_of
from stoker.model.snapshot import Entry
from stoker.model.wire import dump
from stoker.model.workspace import layout
from stoker.model.workspace.home import Home
from stoker.server.contents import EnvironmentRecords
from stoker.server.records.database import Database
from stoker.server.records.tables import StoreTable
from stoker.server.rounds.outside import Clock
from stoker.server.stores.stores import Keychain, StoreDirectory

ONE, TWO = "1" * 32, "2" * 32


class Records:
    def __init__(self, folder: Path) -> None:
        home = Home(folder)
        table = StoreTable(Database.open(folder / "db").engine, home.stores)
        self.stores = StoreDirectory(home, table, Keychain(folder / "keys"))
        self.store = self.stores.open("folder")
        self.folder = folder / "environments"
        self.active: set[str] = set()
        self.records = EnvironmentRecords(
            self.stores,
            layout.environments,
            self.folder,
            Clock(),
            lambda: self.active,
        )

    def keep(self, id: str, name: str, packs: tuple[str, ...], person: str = "ada", day: int = 1) -> None:
        shelf = layout.environments(person)
        entry = Entry("a.py", sha256="a" * 64, size_bytes=1)
        none = (0,) * len(packs)
        files = PackedFiles((entry,) * len(packs), packs, tuple(range(len(packs))), none, none)
        for pack in packs:
            self.store.put(layout.environment_pack(shelf, pack), b"a")
        self.store.put(layout.environment_list(shelf, id * 2), dump(files))
        built = BuiltEnvironment(id, name, "requirements.txt", "3.11.2", "linux", datetime(2026, 3, day, tzinfo=UTC))
        built = BuiltEnvironment(
            built.id, built.name, built.source, built.python, built.platform, built.at, listed=id * 2, size_bytes=1
        )
        self.store.put(layout.environment_head(shelf, id), dump(built))

    def build_here(self, id: str, *users: str) -> Path:
        venv = self.folder / "fingerprint"
        venv.mkdir(parents=True)
        built = BuiltEnvironment(id, "ants", "requirements.txt", "3.11.2", "linux", datetime(2026, 3, 1, tzinfo=UTC))
        (venv / COMPLETE).write_bytes(dump(built))
        users_of(venv).mkdir()
        for user in users:
            (users_of(venv) / user).touch()
        return venv

    def packs(self) -> set[str]:
        packs = layout.environment_packs(layout.environments("ada"))
        return {one.key.removeprefix(packs) for one in self.store.list(packs.rstrip("/"))}


@pytest.fixture
def world(tmp_path: Path) -> Records:
    return Records(tmp_path)


def test_a_person_sees_what_is_here_and_what_their_own_nodes_keep(world: Records) -> None:
    world.build_here(ONE)
    world.keep(ONE, "ants", ("a" * 64,))
    world.keep(TWO, "bees", ("b" * 64,), "eve", day=2)
    seen = [(one.ref, one.store) for one in world.records.all("ada")]
    assert seen == [("ants@11111111", ""), ("ants@11111111", "folder")]
    with pytest.raises(NotFound) as refused:
        world.records.resolve("bees", "ada")
    assert refused.value.cause == Cause.NO_SUCH_ENVIRONMENT


@pytest.mark.parametrize("ref", ["ants", "ants@2222", "2222", TWO])
def test_a_name_means_the_newest_and_an_id_the_one(ref: str, world: Records) -> None:
    world.keep(ONE, "ants", ("a" * 64,), day=1)
    world.keep(TWO, "ants", ("b" * 64,), day=2)
    assert [one.built.id for one in world.records.resolve(ref, "ada")] == [TWO]


def test_what_another_environment_needs_stays(world: Records) -> None:
    world.keep(ONE, "ants", ("a" * 64, "b" * 64))
    world.keep(TWO, "ants", ("b" * 64, "c" * 64), day=2)
    venv = world.build_here(ONE, "ended")
    world.records.remove("1111", "ada")
    assert world.packs() == {"b" * 64, "c" * 64}
    assert not venv.exists()
    assert [one.built.id for one in world.records.all("ada")] == [TWO]
    with pytest.raises(Missing):
        world.store.get(layout.environment_list(layout.environments("ada"), ONE * 2))


def test_where_another_one_is_unreadable_no_content_is_removed(world: Records) -> None:
    world.keep(ONE, "ants", ("a" * 64,))
    shelf = layout.environments("ada")
    world.store.put(layout.environment_head(shelf, TWO), b"what a script wrote")
    world.records.remove("1111", "ada")
    assert world.packs() == {"a" * 64}
    assert world.records.all("ada") == []


def test_one_that_was_written_in_the_place_of_another_is_not_listed(world: Records) -> None:
    world.keep(ONE, "ants", ("a" * 64,))
    heads = layout.environment_heads(layout.environments("ada"))
    world.store.put(f"{heads}{TWO}.json", world.store.get(f"{heads}{ONE}.json"))
    assert [one.built.id for one in world.records.all("ada")] == [ONE]


def test_one_that_an_active_run_uses_stays(world: Records) -> None:
    venv = world.build_here(ONE, "active")
    world.active = {"active"}
    with pytest.raises(Conflict) as refused:
        world.records.remove("ants", "ada")
    assert refused.value.cause == Cause.RUN_ACTIVE
    assert (venv / COMPLETE).exists()
