"""A machine learns what to do next from a letter that only it can open; a server is known by a word of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from stoker.agent.machine.tenant import Tenancy
from stoker.model.workspace import layout
from stoker.model.workspace.home import Home
from stoker.providers.azure.node.release import Release
from stoker.server.door.identity import server_id
from stoker.stores import sealed
from stoker.testing.memory_store import MemoryStore

SEAL = "ab" * 32
FIRST = Tenancy(
    "memory:", layout.orders("r", 1), 600.0, Release("http://g", "http://t"), variables={"STOKER_SEAL": SEAL}
)


def letter(seal: str, attempt: int) -> bytes:
    words = {"orders": layout.orders("r", attempt), "variables": {"STOKER_SEAL": "cd" * 32, "HF_TOKEN": "s3cret"}}
    return sealed.seal(seal, json.dumps(words), layout.again("r", 1))


def test_a_machine_without_a_letter_goes_by_what_it_was_made_with() -> None:
    assert FIRST.newest(MemoryStore()) == FIRST


def test_a_machine_takes_over_the_orders_access_and_secrets_of_the_next_attempt() -> None:
    store = MemoryStore()
    store.put(layout.again("r", 1), letter(SEAL, 2))
    newest = FIRST.newest(store)
    assert newest.orders == layout.orders("r", 2)
    assert newest.variables == {"STOKER_SEAL": "cd" * 32, "HF_TOKEN": "s3cret"}
    assert newest.release == FIRST.release, "it is still the same machine"


def test_the_letter_of_the_third_attempt_is_opened_with_the_first_seal() -> None:
    """A machine that was switched off in between has nothing but what it was made with."""
    store = MemoryStore()
    store.put(layout.again("r", 1), letter(SEAL, 2))
    store.put(layout.again("r", 1), letter(SEAL, 3))
    assert FIRST.newest(store).orders == layout.orders("r", 3)


def test_a_letter_for_another_machine_is_not_opened_and_shows_nothing() -> None:
    store = MemoryStore()
    store.put(layout.again("r", 1), letter("ef" * 32, 2))
    assert FIRST.newest(store) == FIRST
    assert b"s3cret" not in store.get(layout.again("r", 1))
    moved = replace(FIRST, orders=layout.orders("r", 4))
    store.put(layout.again("r", 4), letter(SEAL, 5))
    assert moved.newest(store) == moved, "what was sealed for another place does not open here"


def test_a_letter_can_be_read_as_long_as_the_next_access_can() -> None:
    assert layout.again("r", 1).startswith(layout.accesses("r", 1))


def test_a_server_has_one_word_for_ever_and_another_server_another(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = server_id(Home(tmp_path / "a"))
    assert server_id(Home(tmp_path / "a")) == first
    assert server_id(Home(tmp_path / "b")) != first
    assert len(first) == 16
