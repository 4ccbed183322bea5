"""Whatever a run has lived through, its receipt adds up, its costs are the same, and it can be explained."""

from __future__ import annotations

from datetime import UTC
from decimal import Decimal

import pytest

from stoker.client.report.explain import explain
from stoker.engine.money.meter import spent
from stoker.engine.money.receipt import receipt
from stoker.engine.money.spending import costs
from stoker.model.run.money import By
from stoker.model.run.receipt import Part
from stoker.testing.world.drawing import calm, stormy
from stoker.testing.world.scenario import Scenario
from stoker.testing.world.world import World

LIVES = 60


def adds_up(scenario: Scenario) -> Decimal:
    world = World(scenario).live()
    now, runs = world.server.now, list(world.server.saved.values())
    for run in runs:
        made = receipt(run, now)
        assert made.usd == spent(run, now)
        assert sum((stay.whole.usd for stay in made.stays), Decimal(0)) == made.usd
        assert sum((made.parts[part].seconds for part in Part), Decimal(0)) == made.seconds
        assert all(share.seconds >= 0 and share.usd >= 0 for stay in made.stays for share in stay.parts.values())
        told = explain(run, made, [], lambda at: f"{at:%H:%M:%S}")
        assert all(line and "None" not in line for line in told)
    total = costs(runs, By.DAY, now, zone=UTC).total.usd
    assert total == sum((spent(run, now) for run in runs), Decimal(0))
    return total


@pytest.mark.parametrize("block", range(2))
def test_receipts_of_stormy_lives_add_up(block: int) -> None:
    assert sum(adds_up(stormy(LIVES * block + number)) for number in range(LIVES)) > 0


def test_receipts_of_calm_lives_add_up() -> None:
    assert sum(adds_up(calm(number, cloud=True)) for number in range(20)) > 0
