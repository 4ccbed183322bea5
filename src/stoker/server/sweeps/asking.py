"""Gives searches that draw their trials the next ones, whenever some have ended."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from stoker.engine.sweeps.asking import TriedTrial, hopeless, wanted
from stoker.errors import StokerError
from stoker.model.job.search import Trial
from stoker.model.run.sweep import Sweep
from stoker.server.rounds.outside import call
from stoker.server.service import Service
from stoker.server.sweeps import study, taking

log = logging.getLogger(__name__)

_AGAIN_S = 30.0  # after a failure


class Asking:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def run(self) -> None:
        ledger, trouble = self._service.ledger, self._service.sweeps.trouble
        while True:
            version = ledger.version
            for sweep in [one for one in self._service.sweeps.all if one.due]:
                try:
                    await self.round(sweep)
                    trouble.pop(sweep.id, None)
                except Exception as error:
                    known = isinstance(error, StokerError)
                    log.warning("no new trials of %s: %s", sweep.name, error, exc_info=None if known else error)
                    trouble[sweep.id] = str(error)
            await ledger.change_after(version, _AGAIN_S if trouble else None)

    async def round(self, sweep: Sweep) -> None:
        """Draws the trials that it is to get now, with everything that is known of the earlier ones."""
        service = self._service
        async with service.sweeps.growing(sweep):
            sweep = service.sweeps.now(sweep)
            tried = await call(service.sweeps.table.tried, sweep.id)
            if why := hopeless(tried):
                await self._stop(sweep, why)
            elif count := wanted(sweep, tried):
                await self._draw(sweep, tried, count)

    async def _draw(self, sweep: Sweep, tried: Sequence[TriedTrial], count: int) -> None:
        first = sweep.trials + 1
        values = await call(study.ask, sweep.job, tried, first, count)
        given = [Trial(sweep.id, at, one) for at, one in enumerate(values, first)]
        await taking.add_drawn(self._service, sweep, given)

    async def _stop(self, sweep: Sweep, why: str) -> None:
        async with self._service.ledger.lock:
            self._service.sweeps.save(replace(self._service.sweeps.now(sweep), stopped=why))
            self._service.vault.forget(sweep.id)
