"""A store that may be why an agent is silent is probed outside the event loop, and not by every request."""

from __future__ import annotations

import asyncio
import threading
from typing import BinaryIO

import pytest
from poisonedworld import HandClock

from stoker.errors import StoreFailed
from stoker.server.rounds import lookout
from stoker.server.rounds.lookout import Probing
from stoker.testing.fakes import MemoryStore


class Slow(MemoryStore):
    """Answers when it is released, and records the thread of the call."""

    def __init__(self, why: str = "") -> None:
        super().__init__()
        self.let_go = threading.Event()
        self.asked_in: list[str] = []
        self._why = why

    def put(self, key: str, data: bytes | BinaryIO, *, only_new: bool = False) -> None:
        self.asked_in.append(threading.current_thread().name)
        self.let_go.wait(30)
        if self._why:
            raise StoreFailed(self._why)
        super().put(key, data, only_new=only_new)


def test_a_store_that_hangs_does_not_keep_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Slow("sector 7")
    monkeypatch.setattr(lookout, "PATIENCE_S", 0.05)

    async def story() -> list[str]:
        asked = Probing(HandClock())
        first = [await asked.why(store), await asked.why(store)]
        store.let_go.set()
        monkeypatch.setattr(lookout, "PATIENCE_S", 30.0)
        return [*first, await asked.why(store)]

    assert asyncio.run(story()) == ["", "", ": sector 7"]
    assert len(store.asked_in) == 1, "the same question is asked once"
    assert store.asked_in[0] != threading.main_thread().name


def test_what_a_store_said_is_known_for_a_while() -> None:
    store, clock = Slow(), HandClock()
    store.let_go.set()

    async def story() -> None:
        asked = Probing(clock)
        assert [await asked.why(store) for _ in range(100)] == [""] * 100
        assert len(store.asked_in) == 1
        clock.passed_s += 6
        await asked.why(store)

    asyncio.run(story())
    assert len(store.asked_in) == 2
    assert list(store.list("")) == [], "nothing is left in the store"


def test_a_far_store_is_not_asked_while_somebody_waits() -> None:
    store = Slow("never asked")
    store.url = "s3://bucket"
    assert asyncio.run(Probing(HandClock()).why(store)) == ""
    assert store.asked_in == []
