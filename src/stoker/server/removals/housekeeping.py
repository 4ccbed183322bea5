"""Background work of the server: completes removals, and removes runs that are too old by a rule."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import datetime

from stoker.engine.pruning import prune
from stoker.errors import StokerError
from stoker.model import wire
from stoker.model.run.pruning import PruneRule, Spared
from stoker.model.run.run import Run
from stoker.model.workspace.home import Home
from stoker.server.records.database import Database
from stoker.server.removals.removals import Removals
from stoker.server.rounds.ledger import Ledger
from stoker.server.rounds.outside import Clock, call
from stoker.stores.unused import remove_unused

log = logging.getLogger(__name__)

_EVERY_S = 3600.0
_AGAIN_S = 60.0  # where a store was unreachable


class Housekeeping:
    def __init__(self, ledger: Ledger, database: Database, removals: Removals, clock: Clock, home: Home) -> None:
        self._ledger = ledger
        self._database = database
        self._removals = removals
        self._clock = clock
        self._file = home.prune_rule
        self._software = home.software

    async def run(self) -> None:
        while True:
            try:
                await self.round()
            except Exception as error:
                log.warning("housekeeping failed: %s", error, exc_info=error)
            await asyncio.sleep(_AGAIN_S if self._removals.trouble else _EVERY_S)

    async def round(self) -> None:
        if await call(self._database.removals):
            await self._removals.carry_out()
        if rule := self.rule:
            await self._apply(rule)

    async def _apply(self, rule: PruneRule) -> None:
        if not rule.experiment:
            await call(remove_unused, self._software, rule.older_than_s, self._now().timestamp())
        gone, _ = await self.prunable(rule)
        if not gone:
            return
        log.info("removing %d runs by the rule in %s: %s", len(gone), self._file, ", ".join(run.name for run in gone))
        for store in {run.store for run in gone}:  # an unreachable one does not block the others
            try:
                await self._removals.remove([run.name for run in gone if run.store == store])
            except StokerError as error:
                log.warning("could not remove runs in the store `%s` by the rule: %s", store, error.message)

    async def prunable(self, rule: PruneRule) -> tuple[list[Run], list[Spared]]:
        """What a rule would remove, oldest first, and what stays although it is old."""
        ended = await call(self._database.ended_runs)
        known = {run.id for run in ended}
        open_runs = [run for run in self._ledger.open if run.id not in known]
        return prune(ended, open_runs, rule, self._now())

    @property
    def rule(self) -> PruneRule | None:
        """The rule of this server; None: only runs that somebody removes are removed."""
        try:
            return wire.from_plain(PruneRule, json.loads(self._file.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError) as error:
            log.warning("could not use %s, so no run is removed by it: %s", self._file, error)
            return None

    def keep_rule(self, rule: PruneRule | None) -> None:
        if rule is None:
            self._file.unlink(missing_ok=True)
            return
        part = self._file.with_suffix(".part")
        part.write_bytes(wire.dump(rule))
        part.replace(self._file)

    def _now(self) -> datetime:
        return self._clock.now()
