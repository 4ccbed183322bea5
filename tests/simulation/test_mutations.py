"""The simulation finds what it should: each removed safeguard breaks its promise."""

from collections.abc import Callable
from typing import Any

import pytest

from stoker.engine.money import fuse
from stoker.engine.offers import market
from stoker.model import snapshot
from stoker.testing.world.agent import Agent
from stoker.testing.world.drawing import broken, shrunk, stormy, story
from stoker.testing.world.server import WorldServer

WORLDS = 2_500  # about as many as the short form goes through


def first_broken(promise: str) -> int:
    for seed in range(WORLDS):
        found = broken(stormy(seed))
        if found and found.promise == promise:
            return seed
    pytest.fail(f"nothing broke the promise `{promise}`")


def without_fences(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(snapshot, "fenced", lambda *_: False)
    patch.setattr(snapshot, "visible", lambda positions, _fences: sorted(positions, reverse=True))


def without_leases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Agent, "lease_over", lambda _agent: None)


def without_reserve(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fuse, "save_s", lambda _run: 0.0)
    patch.setattr(fuse, "release_s", lambda _run: 0.0)


def acting_before_saving(patch: pytest.MonkeyPatch) -> None:
    def carry_out(server: WorldServer, decisions: Any, sights: Any) -> bool:
        actions = [action for decision in decisions for action in decision.actions]
        server._act([*actions, *server._leftovers(sights)])
        return server._save(decisions)

    patch.setattr(WorldServer, "_carry_out", carry_out)


def blaming_nodes_for_their_store(patch: pytest.MonkeyPatch) -> None:
    def silent_s(server: WorldServer, since: float | None) -> float:
        return 0.0 if since is None else server._timeline.now - max(since, server._since)

    patch.setattr(WorldServer, "_silent_s", silent_s)


def requesting_without_pauses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(market, "closed_until", lambda _run, _offer, now: now)


@pytest.mark.parametrize(
    ("take_out", "promise"),
    [
        (without_fences, "one writer"),
        (without_leases, "nothing outlives its lease"),
        (without_reserve, "the budget"),
        (acting_before_saving, "saved before it acts"),
        (blaming_nodes_for_their_store, "no healthy node is lost"),
        (requesting_without_pauses, "paced requests"),
    ],
)
def test_a_safeguard_that_is_taken_out_is_missed(
    take_out: Callable[[pytest.MonkeyPatch], None], promise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_out(monkeypatch)
    seed = first_broken(promise)
    smallest = shrunk(stormy(seed), promise)
    assert smallest.size <= stormy(seed).size
    assert story(smallest)[-1].startswith(f"broken: {promise}")
    monkeypatch.undo()
    assert broken(stormy(seed)) is None
