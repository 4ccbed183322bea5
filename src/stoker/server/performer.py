"""Carries out what the engine asked for. Everything here may be repeated, and may fail without the server failing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from stoker.engine.actions import Action, Land, StartNode, StartSpare, StopNode, TellAgent
from stoker.engine.decision import Decision
from stoker.engine.eviction import rate_per_hour
from stoker.engine.fuse import is_news
from stoker.engine.keys import node_key
from stoker.errors import Missing, ProviderFailed, ProviderUnavailable, StokerError, StoreUnavailable, Unanswered
from stoker.model import layout, wire
from stoker.model.money import UNLIMITED, Fuse
from stoker.model.node import NodeRequest
from stoker.model.orders import Orders, Wish, Wishes
from stoker.model.run import Attempt, AttemptState, Event, Run
from stoker.providers import Provider
from stoker.server.accesses import Accesses
from stoker.server.clock import Clock
from stoker.server.landing import land
from stoker.server.leases import Leases
from stoker.server.ledger import Ledger
from stoker.server.outside import call, call_far
from stoker.server.stores import Stores
from stoker.server.vault import Vault
from stoker.server.visits import Visits
from stoker.stores import Store
from stoker.stores.pacing import NEAR, pacing

log = logging.getLogger(__name__)

StoreWork = Callable[[Run, Attempt], Coroutine[Any, Any, None]]

_PAUSE_S = 2.0  # before a store that could not be used, or a provider that would not release, is asked again
_LONGEST_PAUSE_S = 60.0


class Performer:
    def __init__(
        self,
        providers: Mapping[str, Provider],
        stores: Stores,
        accesses: Accesses,
        leases: Leases,
        ledger: Ledger,
        vault: Vault,
        clock: Clock,
        visits: Visits,
    ) -> None:
        self._providers = providers
        self._stores = stores
        self._accesses = accesses
        self._leases = leases
        self._ledger = ledger
        self._vault = vault
        self._clock = clock
        self._visits = visits
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self.told: dict[str, float] = {}  # node key to when its agent was first told to stop
        self._wishes: dict[str, Wishes] = {}  # node key to what its agent was told last
        self.trouble: dict[str, StokerError] = {}  # node key to why it could not be started
        self._fuses: dict[str, Fuse] = {}  # node key to what its agent was told that it may spend
        self.stuck: dict[str, StokerError] = {}  # node key to why it could not be released
        self._tries: dict[str, int] = {}  # node key to how often that was tried in vain
        self._store_trouble: dict[str, str] = {}  # node key to why its store could not be used

    @property
    def waiting(self) -> Mapping[str, str]:
        """Node key to what keeps the store from being used for it."""
        return {**self._accesses.trouble, **self._store_trouble}

    async def perform(self, action: Action) -> None:
        """Quick actions are done on return; long ones go on in the background, once at a time."""
        match action:
            case StartNode(run, fuse):
                await self._with_store(run, "start", partial(self._start, fuse))
            case StartSpare(run, fuse):
                await self._with_store(run, "start spare", partial(self._start_spare, fuse))
            case TellAgent(run, fuse):
                self._note_fuse(_attempt(run).key, fuse)
                await self.speak_to(run)
            case StopNode(provider, key):
                self._background(f"stop {key}", self._stop(provider, key))
            case Land(run):
                self._background(f"land {run.id}", self._land(run))

    async def speak_to(self, run: Run) -> None:
        """What the agent of its node has to hear through the store: wishes, its lease and its access."""
        attempt = _attempt(run)
        if self._has_news(run, attempt):
            await self._with_store(run, "tell", self._tell)
        if self._leases.is_due(run, attempt):
            self._background(f"lease {attempt.key}", self._renew_lease(run, attempt))
        if self._accesses.is_due(run, attempt):
            self._background(f"renew {attempt.key}", call_far(self._accesses.renew, run, attempt))

    async def _with_store(self, run: Run, verb: str, work: StoreWork) -> None:
        """Nobody waits for a store that is far, and one that cannot be used now costs no attempt: what was asked for
        is asked for again."""
        attempt = _attempt(run)
        try:
            near = pacing(self._stores.of(run)) is NEAR
        except StokerError as error:
            self._store_trouble[attempt.key] = error.message
            return
        if near:
            await work(run, attempt)
        else:
            self._background(f"{verb} {attempt.key}", self._patiently(run, attempt, work))

    async def _patiently(self, run: Run, attempt: Attempt, work: StoreWork) -> None:
        try:
            await work(run, attempt)
            self._store_trouble.pop(attempt.key, None)
        except StokerError as error:
            log.warning("%s waits for its store: %s", attempt.key, error.message)
            self._store_trouble[attempt.key] = error.message
            if run.wish is Wish.CANCEL:  # patience with it begins now, although it cannot be told
                self.told.setdefault(attempt.key, self._clock.steady())
            await asyncio.sleep(_PAUSE_S)

    async def _start(self, fuse: Fuse | None, run: Run, attempt: Attempt) -> None:
        store, key = self._stores.of(run), layout.orders(run.id, attempt.number)
        orders = replace(self._orders(run, attempt), fuse=fuse)
        await self._ask_for(run, attempt, fuse, lambda: store.put(key, wire.dump(orders)))

    async def _start_spare(self, fuse: Fuse | None, run: Run, attempt: Attempt) -> None:
        """The node behind this attempt's: it gets its orders when its time has come."""
        number = attempt.number + 1
        ahead = Attempt(number, node_key(run, number), AttemptState.ASKED, self._clock.now(), offer=attempt.spare)
        await self._ask_for(run, ahead, fuse, lambda: None)

    async def _ask_for(self, run: Run, attempt: Attempt, fuse: Fuse | None, order: Callable[[], None]) -> None:
        store, key = self._stores.of(run), layout.orders(run.id, attempt.number)
        try:
            access, seal = await call(self._accesses.first, run, attempt)
            await call(order)
            await call(self._leases.renew, run, attempt)
            secrets = self._vault.values(run.id)
            request = NodeRequest(
                attempt.key,
                key,
                store.url,
                offer=attempt.offer,
                max_price=run.job.spot.max_price if run.job.spot else None,
                secrets=secrets,
                access=access,
                seal=seal,
                fuse=fuse,
                labels={"run": run.name, "owner": run.person},
            )
            if attempt.offer and attempt.offer.again:
                await call(self._accesses.hand_over, run, attempt.offer.again, request)
            await call(self._providers[run.job.on].start, request)
            self._wishes.setdefault(attempt.key, Wishes())
        except StoreUnavailable:
            raise
        except (ProviderUnavailable, Unanswered) as error:
            log.warning("starting %s: %s", attempt.key, error.message)
            await asyncio.sleep(_PAUSE_S)  # it is asked for again as long as the node is not seen
        except StokerError as error:
            log.warning("starting %s: %s", attempt.key, error.message)
            self.trouble[attempt.key] = error

    def _orders(self, run: Run, attempt: Attempt) -> Orders:
        here = self._providers[run.job.on].features.shares_files
        return Orders(
            run_id=run.id,
            run_name=run.name,
            attempt=attempt.number,
            node=0,
            key=attempt.key,
            job=run.job,
            snapshot=run.snapshot,
            python=run.python if here else "",
            data=run.data,
            inputs=run.inputs,
            nodes=run.job.nodes,
            evictions_per_hour=rate_per_hour(run),
        )

    async def _renew_lease(self, run: Run, attempt: Attempt) -> None:
        await call(self._leases.renew, run, attempt)
        await call(self._leases.mark, run, attempt)

    def _has_news(self, run: Run, attempt: Attempt) -> bool:
        """Nothing is written as long as there is nothing new to say."""
        return self._wished(run, attempt) != self._wishes.get(attempt.key) or (
            run.wish is Wish.CANCEL and attempt.key not in self.told
        )

    async def _tell(self, run: Run, attempt: Attempt) -> None:
        wishes, store, key = self._wished(run, attempt), self._stores.of(run), layout.wishes(run.id, attempt.number)
        if attempt.key not in self._wishes:
            self._wishes[attempt.key] = await call(self._said, store, key)
        if wishes != self._wishes[attempt.key]:
            await call(store.put, key, wire.dump(wishes))
            self._wishes[attempt.key] = wishes
        if wishes.wish is Wish.CANCEL:
            self.told.setdefault(attempt.key, self._clock.steady())

    def _note_fuse(self, key: str, fuse: Fuse | None) -> None:
        """A node reckons on by itself: it hears of its fuse again only where that has moved, or was taken off."""
        said = self._fuses.get(key)
        if fuse and is_news(said, fuse):
            self._fuses[key] = fuse
        elif fuse is None and said and said.stop_at_usd != UNLIMITED:
            self._fuses[key] = replace(said, stop_at_usd=UNLIMITED, as_of=self._clock.now())

    def _wished(self, run: Run, attempt: Attempt) -> Wishes:
        return replace(_wishes(run, attempt), visits=self._visits.of(attempt.key), fuse=self._fuses.get(attempt.key))

    def _said(self, store: Store, key: str) -> Wishes:
        """What an earlier server may have told the agent."""
        try:
            return wire.load(Wishes, store.get(key))
        except Missing:
            return Wishes()

    async def _stop(self, provider: str, key: str) -> None:
        try:
            await call(self._providers[provider].stop, key)
        except ProviderFailed as error:
            log.warning("stopping %s: %s", key, error.message)
            self.stuck[key] = error
            self._tries[key] = self._tries.get(key, 0) + 1
            # It is asked for again as long as the node is seen.
            await asyncio.sleep(min(_PAUSE_S * 2 ** (self._tries[key] - 1), _LONGEST_PAUSE_S))
            return
        self.stuck.pop(key, None)
        self._tries.pop(key, None)
        self.told.pop(key, None)
        self._wishes.pop(key, None)
        self._fuses.pop(key, None)
        self.trouble.pop(key, None)
        self._store_trouble.pop(key, None)
        self._accesses.forget(key)
        self._leases.forget(key)

    async def _land(self, run: Run) -> None:
        """A folder that cannot be written to is the user's to mend: said once, and the bytes stay in the store."""
        try:
            folder = await asyncio.to_thread(land, self._stores.of(run), run, Path(run.land_in))
            await self._note_landing(run, f"outputs landed in {folder}", landed=str(folder))
        except StoreUnavailable as error:
            log.warning("the outputs of %s wait for their store: %s", run.name, error.message)
            await asyncio.sleep(_PAUSE_S)  # it is asked for again as long as they have not landed
        except (StokerError, OSError) as error:
            problem = error.message if isinstance(error, StokerError) else f"{error.strerror}: {error.filename}"
            await self._note_landing(run, f"outputs did not get to {run.land_in}: {problem}", problem=problem)

    async def _note_landing(self, run: Run, text: str, *, landed: str = "", problem: str = "") -> None:
        event = Event(self._clock.now(), "landed" if landed else "landing-failed", text)
        await self._ledger.change(
            run.name, lambda seen: Decision(replace(seen, landed=landed, land_problem=problem), (), (event,))
        )

    def forget_secrets(self, run: Run) -> None:
        self._vault.forget(run.id)

    def _background(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        if name in self._under_way:
            work.close()
            return
        task = asyncio.create_task(work, name=name)
        self._under_way[name] = task
        task.add_done_callback(lambda done: self._finished(name, done))

    def _finished(self, name: str, task: asyncio.Task[None]) -> None:
        self._under_way.pop(name, None)
        if not task.cancelled() and (error := task.exception()):
            log.warning("%s: %s", name, error, exc_info=None if isinstance(error, StokerError) else error)


def _attempt(run: Run) -> Attempt:
    return run.attempts[-1]


def _wishes(run: Run, attempt: Attempt) -> Wishes:
    drill = attempt.notice if attempt.notice and attempt.notice.drill else None
    return Wishes(run.wish, "cancelled" if run.wish is Wish.CANCEL else "", drill)
