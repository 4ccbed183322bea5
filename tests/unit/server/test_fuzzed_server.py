"""Everything that a node can write, forged by the thousand, goes through a whole server: other runs still succeed.

A case is a run at one moment, with a forged file of every kind; every run has two. Many runs share a server, whose
store is in memory and whose calls run inline: only the server's own work takes time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from poisonedworld import Make, World
from quickforging import forge

from stoker.agent.checkpoints import sets
from stoker.engine.decision import Decision
from stoker.engine.money.receipt import receipt
from stoker.engine.money.spending import costs
from stoker.errors import BadInput, StokerError
from stoker.model import untrusted, wire
from stoker.model.job.job import Job
from stoker.model.orders import Orders, VisitEnd, Wish, Wishes
from stoker.model.run.money import By
from stoker.model.run.report import Measured, Outcome, Phase, Report
from stoker.model.run.run import Event, Run, RunState
from stoker.model.snapshot import CheckpointSet, Fence, Snapshot
from stoker.model.workspace import layout
from stoker.server.api import results
from stoker.server.removals import remove_run
from stoker.server.results.parcels import brought, land
from stoker.server.rounds import outside
from stoker.server.rounds.reports import agent_events
from stoker.stores import Store
from stoker.stores.access import Access
from stoker.testing.fakes import MemoryStore

RUNS = 50  # in one server's life
CASES = 2 * RUNS


class AtOnce(Executor):
    """Does everything inline."""

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(function(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done


class Fuzz:
    """Many poisoned runs next to an innocent one, from submission to removal."""

    def __init__(self, world: World, seed: int, landing: Path) -> None:
        self.world, self.landing = world, landing
        self.chance = random.Random(seed)
        self.store = MemoryStore()
        world.stores.open = self._open  # type: ignore[method-assign]

    def _open(self, name: str) -> MemoryStore:
        return self.store

    async def story(self, make_run: Make) -> None:
        world = self.world
        world.assemble()
        poisoned = [await world.submit(make_run) for _ in range(RUNS)]
        innocent = await world.submit(make_run)
        await world.rounds()
        other = await world.ledger.find(innocent)
        world.says(other, world.report(other))
        for _ in range(2):
            for name in poisoned:
                self.poison(await world.ledger.find(name))
            await world.rounds()
            world.clock.passed_s += 31
            await world.rounds()
        assert (await world.ledger.find(innocent)).state is RunState.RUNNING
        for name in poisoned:
            await self.look_at(await world.ledger.find(name))
        assert len(wire.dump([await world.reconciler.live(run) for run in world.ledger.open])) < RUNS * 1_000_000
        other = await world.ledger.find(innocent)
        world.says(other, world.report(other, beat=2, phase=Phase.DONE, outcome=Outcome.SUCCEEDED, exit_code=0))
        await world.rounds()
        assert (await world.ledger.find(innocent)).state is RunState.SUCCEEDED
        await self.end(poisoned)

    def poison(self, run: Run) -> None:
        """Every file that its node can write, forged."""
        if run.attempt is None:
            return
        number, now, id = run.attempt.number, self.world.clock.now(), run.id
        one = {
            layout.report(id, number): Report,
            layout.outputs(id, number): Snapshot,
            layout.stray(id, number): Snapshot,
            layout.checkpoint_set(id, number, 1): CheckpointSet,
            layout.fence(id, number): Fence,
            layout.wishes(id, number): Wishes,
            f"{layout.visit(id, number, 'v')}end.json": VisitEnd,
            layout.access(id, number): Wishes,  # as good as anything: none of it is sealed
        }
        for key, of in one.items():
            self.store.put(key, forge(self.chance, of, now))
        for key, of in {layout.events(id, number): Event, layout.metrics(id, number): Measured}.items():
            self.store.put(key, b"\n".join(forge(self.chance, of, now) for _ in range(3)) + b"\n")
        times = [self.chance.choice(["[0, 1.5]", "[1e400, 1]", "[]", "[-1, NaN]", "{}", "[5, 9]"]) for _ in range(3)]
        self.store.put(layout.log_times(id, number, 0), "\n".join(times).encode() + b"\n")

    async def look_at(self, run: Run) -> None:
        """Whatever the API, a bill and a later node would read: all of it answers, or reports why not."""
        store, now = self.store, self.world.clock.now()
        for attempt in run.attempts:
            number = attempt.number
            wire.dump(agent_events(store, run.id, attempt, now))
            results.last_step(store, run.id, number, now)
            results._offset_at(store, run.id, number, 0, 1.0)
            self._read(VisitEnd, f"{layout.visit(run.id, number, 'v')}end.json")
            self._read(Wishes, layout.wishes(run.id, number))
            with suppress(StokerError):
                Access.from_text(store.get(layout.access(run.id, number)).decode(errors="replace"))
            self._restore(run, number + 1)
        wire.dump(results._page(store, run, 0, now).points)
        wire.dump(results._kept(store, run.id, now))
        wire.dump(results._logs(store, run))
        wire.dump(receipt(run, now))
        wire.dump(costs([run], By.EXPERIMENT, now, zone=UTC))
        wire.dump(wire.from_plain(Run, wire.to_plain(await self.world.reconciler.live(run))))
        with suppress(StokerError):
            wire.dump(brought(store, run).entries)
            land(store, run, self.landing)

    def _read(self, of: type[Any], key: str) -> None:
        with suppress(StokerError):
            untrusted.fetch(of, self.store, key, untrusted.SMALL_BYTES, self.world.clock.now())

    def _restore(self, run: Run, number: int) -> None:
        job = Job.read({"name": "job", "run": "python train.py"})
        orders = Orders(run.id, run.name, number, 0, "key", job, "s", "python3")
        store: Store = self.store
        sets.read_fences(store, orders)
        for position in sets.positions(store, orders):
            with suppress(StokerError):
                sets.read_set(store, orders, position)

    async def end(self, poisoned: list[str]) -> None:
        world = self.world
        for name in poisoned:
            if not (await world.ledger.find(name)).state.ended:
                await world.ledger.change(name, lambda seen: Decision(replace(seen, wish=Wish.CANCEL)))
        for _ in range(7):
            await world.rounds(1)
            world.clock.passed_s += 50
        for name in poisoned:
            run = await world.ledger.find(name)
            assert run.state.ended, name
            assert len(world.database.events(run.id)) < 50
            remove_run(self.store, run.id)
        assert not world.provider.nodes, "a node was left"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("_THREADS", "_FAR"):
        monkeypatch.setattr(outside, name, AtOnce())
    yield


def fuzz(tmp_path: Path, make_run: Make, seeds: range) -> None:
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        world = World(folder)
        try:
            asyncio.run(Fuzz(world, seed, folder).story(make_run))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            world.database.close()
        assert {one.name for one in tmp_path.iterdir()} == {str(one) for one in range(seeds.start, seed + 1)}


@pytest.mark.usefixtures("at_once")
def test_hundreds_of_forged_nodes_harm_no_other_run(tmp_path: Path, make_run: Make) -> None:
    fuzz(tmp_path, make_run, range(2))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("at_once")
def test_ten_thousand_forged_nodes_harm_no_other_run(tmp_path: Path, make_run: Make) -> None:
    fuzz(tmp_path, make_run, range(100, 100 + 10_000 // CASES))


def test_an_access_with_a_number_that_no_float_holds_is_refused() -> None:
    with pytest.raises(BadInput):
        Access.from_text('{"routes": [], "expires_at": 1' + "0" * 400 + "}")
