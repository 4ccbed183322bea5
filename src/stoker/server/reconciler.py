"""Keeps it true: look, let the engine decide, save, then act; again and again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import replace

from stoker.engine.actions import Action
from stoker.engine.placement import why_waiting
from stoker.engine.rounds import decide, untouched
from stoker.engine.sighting import Sighting
from stoker.engine.sweeping import claimed, sweep
from stoker.errors import Missing, StokerError, StoreFailed
from stoker.model import layout, wire
from stoker.model.node import Need, NodeSight
from stoker.model.report import Report
from stoker.model.run import Run, RunState
from stoker.providers import Provider
from stoker.server.clock import Clock
from stoker.server.ledger import Ledger
from stoker.server.outside import call
from stoker.server.performer import Performer
from stoker.stores import Store

log = logging.getLogger(__name__)

IDLE_S = 5.0  # between rounds when no run needs a node
TROUBLE_S = 1.0  # after a round that failed
SILENT_S = 10.0  # agents speak every two seconds: one that has not for this long has a reason

Sights = Mapping[str, list[NodeSight]]  # by provider


class Reconciler:
    def __init__(
        self, ledger: Ledger, store: Store, providers: Mapping[str, Provider], performer: Performer, clock: Clock
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._providers = providers
        self._performer = performer
        self._clock = clock
        self._woken = asyncio.Event()
        self._reports: dict[str, tuple[bytes, Report, float]] = {}  # by node key: raw, read, when it last changed
        self._unclaimed: dict[str, float] = {}  # by node key: since when

    def wake(self) -> None:
        """Something changed: do not wait for the next round."""
        self._woken.set()

    def live(self, run: Run) -> Run:
        """The run with what is true only now: what its agent last reported, or what it waits for. The database learns
        of metrics when the run has ended."""
        if run.state is RunState.QUEUED and not run.reason:
            slots = {name: _slots(provider) for name, provider in self._providers.items()}
            return replace(run, reason=why_waiting(run, self._ledger.open, slots))
        _, report, since = self._reports.get(run.attempt.key if run.attempt else "", (b"", None, 0.0))
        if report is None or run.state.ended:
            return run
        silent = self._clock.steady() - since > SILENT_S
        reason = f"its agent has said nothing for a while{self._why_silent()}" if silent else run.reason
        return replace(run, metrics=report.metrics, reason=reason)

    def _why_silent(self) -> str:
        """The store is the only way in which an agent can speak."""
        try:
            self._store.put("probe", b"?")
            self._store.delete("probe")
        except StoreFailed as error:
            return f": {error.message.split(': could not')[0]}; {error.hint}" if error.hint else f": {error.message}"
        return ""

    async def run(self) -> None:
        while True:
            try:
                wait_s = await self.round()
            except Exception as error:
                log.warning("a round failed: %s", error, exc_info=None if isinstance(error, StokerError) else error)
                wait_s = TROUBLE_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), wait_s)
            self._woken.clear()

    async def round(self) -> float:
        """One look, decide, save, act. Returns how long to wait for the next."""
        sights = {name: await call(provider.look) for name, provider in self._providers.items()}
        await call(self._read_reports, self._ledger.open)
        slots = {name: _slots(provider) for name, provider in self._providers.items()}
        async with self._ledger.lock:
            runs = {run.id: run for run in self._ledger.open}
            touched = [run for run in runs.values() if not untouched(run)]
            seen = {run.id: self._sighting(run, sights.get(run.job.on, [])) for run in touched}
            decisions = decide(runs.values(), seen, slots, self._clock.now())
            saved = await self._ledger.save([one for one in decisions if one.run != runs[one.run.id]])
        for run in saved:
            if run.state.ended:
                self._performer.forget_secrets(run)
        actions = [action for one in decisions for action in one.actions]
        for action in [*actions, *self._sweep(sights)]:
            await self._performer.perform(action)
        return min((self._providers[name].features.look_every_s for name in self._busy(sights)), default=IDLE_S)

    def _busy(self, sights: Sights) -> set[str]:
        """Providers that have a node, or whose runs are about to have one or just had."""
        return {name for name, some in sights.items() if some} | {
            run.job.on for run in self._ledger.open if not untouched(run)
        }

    def _sighting(self, run: Run, sights: list[NodeSight]) -> Sighting:
        attempt = run.attempt
        if attempt is None:
            return Sighting()
        mine = {sight.key: sight for sight in sights if sight.key.startswith(f"{run.id}-")}
        waiting = attempt.key not in claimed([run])
        current = None if waiting else mine.pop(attempt.key, None)
        _, report, since = self._reports.get(attempt.key, (b"", None, None))
        told = self._performer.told.get(attempt.key)
        steady = self._clock.steady()
        return Sighting(
            node=current,
            report=report,
            leftovers=tuple(mine),
            silent_s=steady - since if since else 0.0,
            patience_s=self._providers[run.job.on].features.patience_s,
            wished_s=steady - told if told else 0.0,
            trouble=self._performer.trouble.get(attempt.key, ""),
        )

    def _read_reports(self, runs: list[Run]) -> None:
        """In a thread. A report that has not changed is not parsed again."""
        needed = claimed(runs)
        for key in self._reports.keys() - needed:
            del self._reports[key]
        for run in runs:
            attempt = run.attempt
            if not attempt or attempt.key not in needed:
                continue
            try:
                raw = self._store.get(layout.report(run.id, attempt.number))
            except Missing:
                continue
            if raw != self._reports.get(attempt.key, (b"",))[0]:
                self._reports[attempt.key] = (raw, wire.load(Report, raw), self._clock.steady())

    def _sweep(self, sights: Sights) -> list[Action]:
        needed = claimed(self._ledger.open)
        steady = self._clock.steady()
        seen = {sight.key for some in sights.values() for sight in some}
        self._unclaimed = {key: self._unclaimed.get(key, steady) for key in seen - needed}
        ages = {key: steady - since for key, since in self._unclaimed.items()}
        return [stop for name, some in sights.items() for stop in sweep(name, some, needed, ages)]


def _slots(provider: Provider) -> int | None:
    offers = provider.offers(Need())
    return offers[0].slots if offers else 0
