"""Sweeps on a server without its API: what happens to one at the same time, twice, or after its runs were removed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stoker.engine.decision import Decision
from stoker.errors import Conflict, JobInvalid
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
from stoker.server.sweeps.asking import Asking
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


async def submitted(service: Service, key: str = "key", *, given: Mapping[str, str] | None = None, **job: Any) -> Sweep:
    code = Snapshot(())
    service.shelves.workspace.register(code)
    submission = Submission(key, Job.read({**JOB, **job}), code.id, "python3", secrets=given or {})
    return await taking.take(service, submission)


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


SPACE: dict[str, Any] = {"lr": {"log_uniform": [1e-5, 1e-1]}, "draws": 40}
SEARCHED: dict[str, Any] = {
    "run": "true ${matrix.lr}",
    "matrix": SPACE,
    "search": {"by": "optuna", "metric": "-loss"},
    "max_parallel": 3,
}


async def scored(service: Service) -> int:
    """Ends all open trials well. How many."""
    open_ = [run for run in service.ledger.open if run.trial]
    now = service.clock.now()
    over: list[Run] = []
    for run in open_:
        assert run.trial
        trial = replace(run.trial, scores=(float(run.trial.values["lr"]),))
        over.append(replace(run, state=RunState.SUCCEEDED, ended_at=now, trial=trial))
    async with service.ledger.lock:
        await service.ledger.save([Decision(run) for run in over])
    return len(over)


async def drawn(service: Service, sweep: Sweep) -> Sweep:
    await Asking(service).round(sweep)  # as the next server does
    return service.sweeps.now(sweep)


def test_trials_come_as_others_end_and_more_draws_continue_the_search(service: Service) -> None:
    async def story() -> None:
        sweep = await submitted(service, **{**SEARCHED, "matrix": {**SPACE, "draws": 5}})
        assert (sweep.trials, sweep.due) == (3, 2)
        sweep = await drawn(service, sweep)
        assert sweep.trials == 3  # all of them still run
        assert await scored(service) == 3
        sweep = await drawn(service, sweep)
        assert (sweep.trials, sweep.due, await scored(service)) == (5, 0, 2)
        with pytest.raises(Conflict):
            await taking.extend(service, sweep, sweep.job, {})
        more = Job.read({**sweep.job.plain(), "matrix": {**SPACE, "draws": 7}})
        assert (await taking.extend(service, sweep, more, {})).due == 2
        sweep = await drawn(service, sweep)
        rows = service.sweeps.table.tried(sweep.id)
        assert [one.trial.number for one in rows] == [1, 2, 3, 4, 5, 6, 7]
        assert len({tuple(one.trial.values.items()) for one in rows}) == 7
        other = Job.read({**more.plain(), "matrix": {**SPACE, "draws": 9, "lr": {"uniform": [0, 1]}}})
        with pytest.raises(JobInvalid):
            await taking.extend(service, sweep, other, {})

    told(story())


def test_secrets_are_there_for_later_trials_and_gone_after_the_last(service: Service) -> None:
    async def story() -> None:
        job = {**SEARCHED, "matrix": {**SPACE, "draws": 4}, "secrets": ["TOKEN"]}
        sweep = await submitted(service, given={"TOKEN": "t"}, **job)
        await scored(service)
        sweep = await drawn(service, sweep)
        (run,) = service.ledger.open
        assert service.vault.values(run.id) == {"TOKEN": "t"} and service.vault.values(sweep.id) == {}

    told(story())


def test_cancelled_it_gets_no_more_and_hopeless_it_stops_by_itself(service: Service) -> None:
    async def story() -> None:
        first = await submitted(service, **SEARCHED)
        await taking.cancel(service, first)
        assert (await drawn(service, first)).trials == 3
        second = await submitted(service, "other", **{**SEARCHED, "max_parallel": 5})
        await ended(service, RunState.FAILED)
        second = await drawn(service, second)
        assert second.stopped and second.due == 0
        await taking.retry(service, second, {})
        assert service.sweeps.now(second).due == 35

    told(story())


def test_a_sweep_that_waits_for_its_trials_draws_them_by_itself(service: Service) -> None:
    async def story() -> None:
        sweep = await submitted(service, **{**SEARCHED, "matrix": {**SPACE, "draws": 9}})
        asking = asyncio.create_task(Asking(service).run())
        while service.sweeps.now(sweep).due:
            await scored(service)
            await service.ledger.change_after(service.ledger.version, 1.0)
        asking.cancel()
        assert len(service.sweeps.table.tried(sweep.id)) == 9

    told(story())
