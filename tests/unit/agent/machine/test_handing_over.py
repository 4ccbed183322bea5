"""A machine gets its next orders in a message that only it can decrypt; a server has an id of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.agent.machine import tenant
from stoker.agent.machine.tenant import Tenancy, Tenant
from stoker.model.workspace import layout
from stoker.model.workspace.home import Home
from stoker.providers.azure.node import Release
from stoker.server.settings import server_id
from stoker.stores import unsealing
from stoker.stores.sealing import seal
from stoker.testing.fakes import MemoryStore

SEAL = "ab" * 32
FIRST = Tenancy(
    "memory:", layout.orders("r", 1), 600.0, Release("http://g", "http://t"), variables={"STOKER_SEAL": SEAL}
)


def letter(key: str, attempt: int) -> bytes:
    words = {"orders": layout.orders("r", attempt), "variables": {"STOKER_SEAL": "cd" * 32, "HF_TOKEN": "s3cret"}}
    return seal(key, json.dumps(words), layout.again("r", 1))


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
    """A machine that was off in between has only what it was created with."""
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


class StaysForEver:
    """A machine that nobody removes."""

    def __init__(self) -> None:
        self.asked = 0

    def carry_out(self) -> None:
        self.asked += 1


def lives(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, between: Callable[[int], None] = lambda _started: None
) -> tuple[list[str], StaysForEver]:
    """The orders that agents were started with, each of which exits at once. `between` is called after each start."""
    monkeypatch.setattr(tenant, "VACANT_EVERY_S", 0.02)
    monkeypatch.setattr(tenant, "CHILD_EVERY_S", 0.02)
    monkeypatch.setattr(tenant, "FIRST_EVERY_S", 0.02)
    started: list[str] = []
    release = StaysForEver()

    def start(tenancy: Tenancy) -> subprocess.Popen[bytes]:
        started.append(tenancy.orders)
        between(len(started))
        return subprocess.Popen(["true"])

    with tempfile.TemporaryDirectory() as folder:
        first = replace(FIRST, arguments={"--folder": folder}, release=release, idle_s=0.5, sealed=True)
        assert Tenant(first, lambda _tenancy: store, start).live() == 0
    return started, release


def test_a_letter_that_somebody_put_back_does_not_return_a_machine_to_an_earlier_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who can write to the store can copy what is sealed there, and put it back later."""
    store, place = MemoryStore(), layout.again("r", 1)
    store.put(place, letter(SEAL, 2))
    coming = {1: letter(SEAL, 3), 2: letter(SEAL, 2)}
    started, _ = lives(store, monkeypatch, lambda count: store.put(place, coming[count]))
    assert started == [layout.orders("r", 2), layout.orders("r", 3)]


def test_a_machine_that_cannot_decrypt_says_what_is_missing_and_removes_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = MemoryStore()
    store.put(layout.again("r", 1), letter(SEAL, 2))
    monkeypatch.setattr(unsealing, "libraries", lambda: iter(()))
    monkeypatch.setattr(sys, "executable", "/usr/bin/false")
    started, release = lives(store, monkeypatch)
    assert (started, release.asked) == ([], 1)
    assert "libssl3" in capsys.readouterr().err


def test_an_idle_machine_starts_the_next_run_of_its_cluster_and_then_the_one_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each run is told where the one before it was told: the first of them may have been removed meanwhile."""
    store = MemoryStore()
    seals = {"r": SEAL, "s": "cd" * 32, "t": "ef" * 32}

    def told(now: str, then: str) -> None:
        words = {"orders": layout.orders(then, 1), "variables": {"STOKER_SEAL": seals[then]}}
        store.put(layout.again(now, 1), seal(seals[now], json.dumps(words), layout.again(now, 1)))

    def between(count: int) -> None:
        if count < 3:
            told(*[("r", "s"), ("s", "t")][count - 1])

    told("r", "r")
    started, _ = lives(store, monkeypatch, between)
    assert started == [layout.orders("r", 1), layout.orders("s", 1), layout.orders("t", 1)]


def test_a_warm_machine_starts_the_next_attempt_of_the_run_that_took_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a restart that was announced and did not happen: it is told where its last attempt was."""
    store = MemoryStore()
    seals = {"r": SEAL, "s": "cd" * 32}

    def told(now: str, then: str, attempt: int) -> None:
        words = {"orders": layout.orders(then, attempt), "variables": {"STOKER_SEAL": seals[then]}}
        store.put(layout.again(now, 1), seal(seals[now], json.dumps(words), layout.again(now, 1)))

    coming = {1: ("r", "s", 1), 2: ("s", "s", 2)}
    told("r", "r", 1)
    started, _ = lives(store, monkeypatch, lambda count: told(*coming[count]) if count in coming else None)
    assert started == [layout.orders("r", 1), layout.orders("s", 1), layout.orders("s", 2)]
