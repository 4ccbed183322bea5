"""How long a node that vanished unobserved may still be billed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from poisonedworld import Make, World

from stoker.engine.decision import Sighting
from stoker.engine.lifecycle import begin
from stoker.engine.looking import Requests
from stoker.model.node import Features
from stoker.model.run.money import Limit, Period

DAY = 86_400.0


@pytest.mark.parametrize(("person", "days"), [("", 5), ("anna", 5), ("bob", 1)])
def test_under_an_administrators_limit_a_node_may_have_worked_for_as_long_as_that_buys(
    tmp_path: Path, make_run: Make, monkeypatch: pytest.MonkeyPatch, person: str, days: int
) -> None:
    """Such a node has no lease of 24 hours: its fuse stops it."""
    world = World(tmp_path)
    monkeypatch.setattr(type(world.provider), "features", Features(lease_s=5 * DAY, idle_s=600.0))
    for limit in world.limits.given:
        world.limits.remove(limit.period, limit.person)
    world.limits.save(Limit(Period.MONTH, Decimal(1000), person))
    run = begin(replace(make_run(1), budget=None, person="anna"), world.clock.now()).run

    async def seen() -> Sighting:
        world.assemble()
        world.reconciler._gone["local"] = set()
        return world.reconciler._sighting(run, [], Requests())

    found = asyncio.run(seen()).outlives_s
    world.database.close()
    assert days * DAY <= found < days * DAY + 3600
