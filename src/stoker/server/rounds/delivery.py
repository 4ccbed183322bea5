"""Brings the outputs of a run to the folder that it was submitted from, if that is on this computer."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.engine.decision import Decision
from stoker.engine.lifecycle import cut
from stoker.errors import ProviderFailed, StokerError, StoreUnavailable
from stoker.model.run.run import Event, Run
from stoker.server.results.parcels import Parcel, clash_words, land
from stoker.server.rounds.ledger import Ledger
from stoker.server.rounds.outside import Clock
from stoker.server.stores.stores import StoreDirectory

log = logging.getLogger(__name__)

_PAUSE_S = 2.0  # before a store that could not be used is asked again


class Delivery:
    def __init__(self, stores: StoreDirectory, ledger: Ledger, clock: Clock) -> None:
        self._stores = stores
        self._ledger = ledger
        self._clock = clock

    async def bring(self, run: Run) -> None:
        """If the folder cannot be written to, the user is told once, and the outputs stay in the store."""
        try:
            store = await self._stores.reach(run.store)
            folder, made = await asyncio.to_thread(land, store, run, Path(run.land_in))
            await self._note(run, f"outputs landed in {folder}", landed=str(folder), made=made)
        except StoreUnavailable as error:
            log.warning("the outputs of %s wait for their store: %s", run.name, error.message)
            await asyncio.sleep(_PAUSE_S)  # it is asked for again as long as they have not landed
        except StokerError as error:
            await self._not_landed(run, error.message)
        except OSError as error:
            await self._not_landed(run, f"{error.strerror}: {error.filename}")
        except Exception as error:
            log.warning("landing %s: %s", run.name, error, exc_info=error)
            await self._not_landed(run, unexpected(error).message)

    async def _not_landed(self, run: Run, problem: str) -> None:
        await self._note(run, f"outputs did not get to {run.land_in}: {problem}", problem=problem)

    async def _note(
        self, run: Run, text: str, *, landed: str = "", problem: str = "", made: Parcel | None = None
    ) -> None:
        events = [Event(self._clock.now(), "landed" if landed else "landing-failed", text)]
        facts: dict[str, Any] = {"landed": landed, "land_problem": problem}
        if made and run.job.nodes > 1:  # each node has counted its own, although all may have the same
            facts |= {"output_files": len(made.sizes), "output_bytes": sum(made.sizes)}
            facts["clashes"] = tuple(cut(path) for path in made.clashes[:8])
            if made.clashes:
                events.append(Event(self._clock.now(), "outputs-clash", clash_words(made.clashes)))
        await self._ledger.change(run.name, lambda seen: Decision(replace(seen, **facts), (), tuple(events)))


def unexpected(error: Exception) -> ProviderFailed:
    return ProviderFailed(f"{type(error).__name__}: {error}")
