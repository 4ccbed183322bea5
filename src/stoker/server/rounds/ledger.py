"""The runs as the server knows them: open ones in memory, all in the database, each change saved before it is seen."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from stoker.engine.decision import Decision
from stoker.errors import NotFound
from stoker.model.cause import Cause
from stoker.model.job.fields import nearest
from stoker.model.run.run import Event, Run
from stoker.server.records.copies import FactsRecorder
from stoker.server.records.database import Database
from stoker.server.rounds.outside import call

log = logging.getLogger(__name__)

_COPIED_AT_ONCE = 20  # runs: a round of the server waits no longer than that takes


class Ledger:
    """Whoever reads facts in order to change them holds `lock` from the reading to the saving."""

    def __init__(self, database: Database, recorder: FactsRecorder) -> None:
        self._database = database
        self._recorder = recorder
        self._open: dict[str, Run] = {}
        self._changed = asyncio.Condition()
        self.version = 0  # counts changes
        self._copying: set[asyncio.Task[None]] = set()
        self.lock = asyncio.Lock()
        self.closed: Callable[[Run], None] = lambda _run: None  # told of each run for which there is nothing left to do

    async def load(self) -> None:
        self._open = {run.id: run for run in await call(self._database.open_runs)}

    @property
    def open(self) -> list[Run]:
        """Runs for which there is still something to do, oldest first."""
        return list(self._open.values())

    async def add(self, run: Run, submission: str, events: Iterable[Event]) -> Run:
        async with self.lock:
            added = await call(self._database.add, run, submission, list(events))
            if added.id == run.id:  # otherwise the submission was known, and its run may be over
                self._open[added.id] = added
        await self._record([added])
        return added

    async def add_all(self, save: Callable[[], list[Run]]) -> list[Run]:
        """Thousands of new runs, which `save` saves in one transaction. Their copies in the store are written
        afterwards, a few at a time."""
        async with self.lock:
            added = await call(save)
            self._open |= {run.id: run for run in added}
        await self.tell()
        copying = asyncio.create_task(self._copy(added), name=f"copies of {len(added)} runs")
        self._copying.add(copying)
        copying.add_done_callback(self._copying.discard)
        return added

    async def _copy(self, runs: Sequence[Run]) -> None:
        """Skips a run that has changed meanwhile: a newer copy of it is written."""
        for at in range(0, len(runs), _COPIED_AT_ONCE):
            async with self.lock:
                some = [run for run in runs[at : at + _COPIED_AT_ONCE] if self._open.get(run.id) is run]
                await self._record(some)
            await asyncio.sleep(0)

    async def save(self, decisions: Iterable[Decision]) -> list[Run]:
        """Saves what changed in one transaction. The caller holds `lock`."""
        changed = [replace(one, run=replace(one.run, version=one.run.version + 1)) for one in decisions]
        if not changed:
            return []
        await call(self._database.save, [(one.run, one.events) for one in changed])
        for one in changed:
            if one.run.tended:
                self._open[one.run.id] = one.run
            else:
                self._open.pop(one.run.id, None)
                self.closed(one.run)
        runs = [one.run for one in changed]
        await self._record(runs)
        await self.tell()
        return runs

    async def tell(self) -> None:
        """Whoever waits for a change looks again."""
        async with self._changed:
            self.version += 1
            self._changed.notify_all()

    async def change_after(self, version: int, timeout_s: float | None) -> None:
        """Returns at the next change, or when the time is up; at once if there was one since `version`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self.version > version)

    async def _record(self, runs: list[Run]) -> None:
        """One by one. The runs are already saved, so a copy that fails loses nothing."""
        for run in runs:
            try:
                await self._recorder.keep([run])
            except Exception as error:
                log.warning("could not keep a copy of %s in its store: %s", run.name, error, exc_info=error)

    async def change(self, name: str, how: Callable[[Run], Decision]) -> Run:
        """Reads, decides and saves one run in one go."""
        async with self.lock:
            run = await self.find(name)
            decision = how(run)
            if decision.run == run:
                return run
            return (await self.save([decision]))[0]

    async def find(self, name: str) -> Run:
        for run in self._open.values():
            if run.name == name:
                return run
        found = await call(self._database.find, name)
        if found is None:
            near = nearest(name, await call(self._database.names))
            hint = f"did you mean `{near}`? see all with `stoker ps -a`" if near else "see all with `stoker ps -a`"
            raise NotFound(f"there is no run called `{name}`", hint=hint, cause=Cause.NO_SUCH_RUN)
        return found

    async def wait(self, name: str, newer_than: int, timeout_s: float) -> Run:
        """The run once its version is greater, or as it is when the time is up."""
        run = await self.find(name)
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                while run.version <= newer_than:
                    await self._changed.wait()
                    run = await self.find(name)
        except TimeoutError:
            pass
        return run

    async def remove(self, names: Sequence[str], check: Callable[[Run], None]) -> list[Run]:
        """All of them or none: `check` raises for one that has to stay. Nothing of them is recorded from here on."""
        async with self.lock:
            runs = list({run.id: run for run in [await self.find(name) for name in names]}.values())
            for run in runs:
                check(run)
            await call(self._database.remove, [run.id for run in runs])
            for run in runs:
                if self._open.pop(run.id, None):  # one that is over may still be tended
                    self.closed(run)
        for run in runs:
            await self._recorder.forget(run)
        return runs
