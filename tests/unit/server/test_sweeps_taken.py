"""Sweeps on a server without its API: what happens to one at the same time, twice, or after its runs were removed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stoker.engine.decision import Decision
from stoker.model.job.job import Job
from stoker.model.run.money import Spell
from stoker.model.run.run import Run, RunState, Submission
from stoker.model.run.sweep import Sweep
from stoker.model.snapshot import Snapshot
from stoker.model.workspace.home import Home
from stoker.server.records.database import Database
from stoker.server.service import Service, assemble
from stoker.server.settings import ServerSettings
from stoker.server.sweeps import taking
from stoker.server.sweeps.book import SweepBook

JOB = {"name": "ants", "run": "true ${matrix.seed}", "matrix": {"seed": "1..3"}}
MORE = Job.read({**JOB, "matrix": {"seed": "1..5"}})


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    made = assemble(ServerSettings(Home(home), keychain="file"), "t", Database.open(home / "stoker.db"))
    yield made
    made.database.close()


async def submitted(service: Service, key: str = "key", **job: Any) -> Sweep:
    code = Snapshot(())
    service.shelves.workspace.register(code)
    return await taking.take(service, Submission(key, Job.read({**JOB, **job}), code.id, "python3"))


async def ended(service: Service, state: RunState, usd: str = "0") -> None:
    """All trials, each after an hour on a machine of its own."""
    now = service.clock.now()
    async with service.ledger.lock:
        for run in service.ledger.open:
            spell = Spell(f"{run.id}-1", now - timedelta(hours=1), now, Decimal(usd))
            over = replace(run, state=state, ended_at=now, spells=(spell,) if Decimal(usd) else ())
            await service.ledger.save([Decision(over)])


def told(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def numbers(service: Service, sweep: Sweep) -> list[int]:
    return [row.trial for row in service.sweeps.table.trials(sweep.id)]


def test_two_who_extend_a_sweep_at_once_give_no_trial_twice(service: Service) -> None:
    async def story() -> None:
        sweep = await submitted(service)
        both = [taking.extend(service, sweep, MORE, {}) for _ in range(2)]
        grown, refused = await asyncio.gather(*both, return_exceptions=True)
        assert isinstance(grown, Sweep) and isinstance(refused, Exception)
        assert numbers(service, sweep) == [1, 2, 3, 4, 5]

    told(story())


def test_two_who_retry_at_once_run_each_failed_trial_once_more(service: Service) -> None:
    async def story() -> None:
        sweep = await submitted(service)
        await ended(service, RunState.FAILED)
        both = [taking.retry(service, sweep, {}) for _ in range(2)]
        again, refused = await asyncio.gather(*both, return_exceptions=True)
        assert again == ["ants-4", "ants-5", "ants-6"] and isinstance(refused, Exception)

    told(story())


def test_a_budget_that_is_set_while_trials_are_added_stays(service: Service) -> None:
    async def story() -> None:
        sweep = await submitted(service, budget="$20")
        growing = asyncio.create_task(taking.extend(service, sweep, MORE, {}))
        await asyncio.sleep(0)
        await taking.set_budget(service, sweep, Decimal(3))
        grown = await growing
        assert (grown.budget, grown.trials) == (Decimal(3), 5) and service.sweeps.named("ants") == grown

    told(story())


def test_the_same_submission_twice_at_once_is_one_sweep(service: Service) -> None:
    async def story() -> None:
        first, second = await asyncio.gather(submitted(service), submitted(service))
        assert first == second and numbers(service, first) == [1, 2, 3]

    told(story())


@pytest.mark.parametrize("known_before", [True, False])
def test_what_removed_trials_have_cost_still_counts(service: Service, known_before: bool) -> None:
    async def story() -> None:
        sweep = await submitted(service, budget="$20")
        if known_before:
            service.sweeps.facts()
        await ended(service, RunState.SUCCEEDED, usd="2")
        await service.removals.remove(["ants-1"])
        for book in (service.sweeps, SweepBook(service.database)):  # this server, and the next one
            past = book.facts().past[sweep.id]
            assert (past.usd, past.succeeded) == (Decimal(6), (Decimal(2),) * 3)

    told(story())


def test_a_run_that_is_removed_while_its_machine_still_costs_counts_from_then_on(service: Service) -> None:
    async def story() -> None:
        sweep = await submitted(service, budget="$20")
        service.sweeps.facts()
        (run, *_) = service.ledger.open
        now = service.clock.now()
        costing = Spell("node", now - timedelta(hours=1), None, Decimal(2))
        over: Run = replace(run, state=RunState.SUCCEEDED, ended_at=now, spells=(costing,))
        async with service.ledger.lock:
            await service.ledger.save([Decision(over)])
        assert service.sweeps.facts().past[sweep.id].usd == 0  # it is among the open runs
        await service.removals.remove([run.name])
        assert service.sweeps.facts().past[sweep.id].usd == Decimal(2)

    told(story())
