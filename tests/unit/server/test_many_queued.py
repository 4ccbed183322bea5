"""Ten thousand runs wait: what a server spends on a round, on a list, and on a hundred cancellations a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_loop_stays_free import World

from stoker.model.job.job import Job
from stoker.model.run.run import Run, RunState

WAITING, CANCELLED = 10_000, 200


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "home")
    now = made.service.clock.now()
    jobs = [Job(name=f"ants-{number}", run="true", on="local", nodes=1 + number % 3) for number in range(50)]
    made.service.database.restore(
        Run(
            f"{n:012x}",
            f"ants-{n % 50}-{n}",
            n + 1,
            jobs[n % 50],
            "s",
            "python3",
            now,
            store="far",
            person=f"p{n % 40}",
        )
        for n in range(WAITING)
    )
    yield made
    made.service.database.close()


def spent_s(since: float) -> float:
    return time.process_time() - since


@pytest.mark.heavy
def test_a_hundred_cancellations_a_second_of_ten_thousand_queued_runs_leave_half_a_processor_free(world: World) -> None:
    ledger, reconciler = world.service.ledger, world.service.reconciler
    reconciler._slots = lambda: {"local": 0}  # type: ignore[method-assign]  # nothing starts

    async def story() -> None:
        await ledger.load()
        begun = time.process_time()
        await reconciler.round()
        assert spent_s(begun) < 1.0
        begun = time.process_time()
        shown = [await reconciler.live(run) for run in ledger.open]
        assert spent_s(begun) < 2.0, "what all of them wait for is computed once"
        assert "0 of 0 slots are busy, 9999 ahead" in {run.reason for run in shown}
        begun = time.process_time()
        for number in range(CANCELLED):
            assert await world.ask("POST", f"/v1/runs/ants-{number % 50}-{number}/cancel") == 200
        await reconciler.round()
        assert spent_s(begun) < 0.5 * CANCELLED / 100
        found = [await ledger.find(f"ants-{number % 50}-{number}") for number in range(CANCELLED)]
        assert {run.state for run in found if run} == {RunState.CANCELLED} and len(ledger.open) == WAITING - CANCELLED

    asyncio.run(story())
