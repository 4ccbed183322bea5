"""Carries out the engine's actions. Each may be repeated, and may fail without the server failing."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from stoker.engine import hanging
from stoker.engine.decision import Action, Land, StartNode, StartSpare, StopNode, TellAgent, rate_per_hour
from stoker.engine.looking import Requests
from stoker.engine.money.fuse import is_news
from stoker.engine.nodes.lease import ahead, last_key
from stoker.engine.offers.gathering import gang_of
from stoker.engine.offers.market import needs
from stoker.engine.sweeps.searching import rung_of
from stoker.errors import (
    Corrupt,
    Malformed,
    Missing,
    NoCapacity,
    ProviderUnavailable,
    StokerError,
    StoreFailed,
    StoreUnavailable,
    Unanswered,
)
from stoker.model import untrusted, wire
from stoker.model.node import NodeRequest
from stoker.model.orders import Orders, Wish, Wishes
from stoker.model.run.money import UNLIMITED, Fuse
from stoker.model.run.run import Attempt, Member, Run
from stoker.model.workspace import layout
from stoker.providers import Provider
from stoker.server.results.parcels import Delivery, unexpected
from stoker.server.rounds.books import Visits
from stoker.server.rounds.ledger import Ledger
from stoker.server.rounds.outside import Clock, call, call_far
from stoker.server.stores.accesses import Leases
from stoker.server.stores.stores import StoreDirectory, Vault
from stoker.stores import NEAR, pacing

log = logging.getLogger(__name__)

Order = Callable[[], None]
StoreWork = Callable[[Run, Member], Coroutine[Any, Any, None]]

_PAUSE_S = 2.0  # before a store that failed, or a provider that did not release a node, is tried again
_LONGEST_PAUSE_S = 60.0
_SURPRISED_S = 60.0  # of unexpected errors, before the node counts as one that cannot be started


class Performer:
    def __init__(
        self,
        providers: Mapping[str, Provider],
        stores: StoreDirectory,
        leases: Leases,
        ledger: Ledger,
        vault: Vault,
        clock: Clock,
        visits: Visits,
        bring: Callable[[Run], None] = lambda _: None,
    ) -> None:
        """`bring` copies the checkpoint that a run starts from to where its nodes find it."""
        self._providers = providers
        self._stores = stores
        self._accesses = leases.accesses
        self._leases = leases
        self._ledger = ledger
        self._vault = vault
        self._clock = clock
        self._visits = visits
        self._delivery = Delivery(stores, ledger, clock)
        self._bring = bring
        self._brought: set[str] = set()  # ids of runs that have the checkpoint they start from
        self.copying: dict[str, str] = {}  # node key to the name of the run whose checkpoint is copied for it
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self.told: dict[str, float] = {}  # node key to when its agent was first told to stop
        self._wishes: dict[str, Wishes | None] = {}  # node key to the wishes last written; None: write them again
        self.trouble: dict[str, StokerError] = {}  # node key to why it could not be started
        self._requested: dict[str, float] = {}  # node key to when its last request ended; infinite: it is under way
        self.unasked: dict[str, StokerError] = {}  # node key to why it was not requested: its store fails
        self._fuses: dict[str, Fuse] = {}  # node key to the fuse that its agent was given
        self.stuck: dict[str, StokerError] = {}  # node key to why it could not be released
        self._tries: dict[str, int] = {}  # node key to how often that failed
        self._surprises: dict[
            str, tuple[float, str]
        ] = {}  # node key to since when starting it fails unexpectedly, and how
        self._store_trouble: dict[str, str] = {}  # node key to why its store could not be used

    @property
    def waiting(self) -> Mapping[str, str]:
        """Node key to what keeps the store from being used for it."""
        return {**self._accesses.trouble, **self._store_trouble}

    def requests(self, looked_at: float) -> Requests:
        """The results of all requests so far, for a look at their provider that began at this steady time."""
        steady = self._clock.steady()
        wished_s = {key: steady - told for key, told in self.told.items()}
        begun = {key for key, ended in self._requested.items() if ended >= looked_at}
        return Requests(self.trouble, self.unasked, tuple(self.copying), wished_s, self._leases.renewed_at, begun)

    async def perform(self, action: Action) -> None:
        """Quick actions are done on return; long ones continue in the background, once at a time."""
        match action:
            case StartNode(run, fuse):
                await self._each(run, "start", partial(self._start, fuse), _attempt(run).members)
            case StartSpare(run, fuse):
                # They get their orders later, when they are due.
                later = [replace(one, asked_at=self._clock.now()) for one in ahead(run)]
                await self._each(run, "start spare", lambda run, one: self._ask_for(run, one, fuse, None), later)
            case TellAgent(run, fuse):
                for member in _attempt(run).members:
                    self._note_fuse(member.key, fuse)
                await self.speak_to(run)
            case StopNode(provider, key):
                self._background(f"stop {key}", self._stop(provider, key))
            case Land(run):
                self._background(f"land {run.id}", self._delivery.bring(run))

    async def speak_to(self, run: Run) -> None:
        """Writes to the store what the agents of its nodes must know: wishes, leases and accesses. Of a run that has
        ended, only for nodes that wait for the next one, or are kept."""
        over = run.state.ended and not run.kept_until
        for member in (one for one in _attempt(run).members if not over or one.key in run.waiting_nodes):
            if self._has_news(run, member):
                await self._with_store(run, member, "tell", self._tell)
            lease_s = self._leases.lasting_s(run, member, self._fuses.get(member.key))
            if self._leases.is_due(member, lease_s):
                self._background(f"lease {member.key}", self._renew_lease(run, member, lease_s))
            if self._accesses.is_due(run, member):
                self._background(f"renew {member.key}", call_far(self._accesses.renew, run, member, lease_s))

    async def _each(self, run: Run, verb: str, work: StoreWork, members: Sequence[Member]) -> None:
        """Requests all nodes of a gang at once."""
        await asyncio.gather(*(self._with_store(run, member, verb, work) for member in members))

    async def _with_store(self, run: Run, attempt: Member, verb: str, work: StoreWork) -> None:
        """Does not wait for a remote store. A store that fails now costs no attempt: the work is repeated."""
        try:
            near = pacing(await self._stores.reach(run.store)) is NEAR and (
                run.start is None or run.id in self._brought
            )
        except StokerError as error:
            self._store_trouble[attempt.key] = error.message
            return
        if near and attempt.key not in self._store_trouble:
            try:
                await work(run, attempt)
            except StokerError as error:
                self._note_store_trouble(run, attempt, error)
        else:
            self._background(f"{verb} {attempt.key}", self._patiently(run, attempt, work))

    async def _patiently(self, run: Run, attempt: Member, work: StoreWork) -> None:
        try:
            await work(run, attempt)
            self._store_trouble.pop(attempt.key, None)
        except StokerError as error:
            self._note_store_trouble(run, attempt, error)
            await asyncio.sleep(_PAUSE_S)

    def _note_store_trouble(self, run: Run, attempt: Member, error: StokerError) -> None:
        log.warning("%s waits for its store: %s", attempt.key, error.message)
        self._store_trouble[attempt.key] = error.message
        if run.wish is Wish.CANCEL:  # its grace period starts now, although it cannot be told
            self.told.setdefault(attempt.key, self._clock.steady())

    async def _start(self, fuse: Fuse | None, run: Run, attempt: Member) -> None:
        key = layout.orders(run.id, attempt.number, attempt.node)
        orders = replace(self._orders(run, attempt), fuse=fuse)
        await self._ask_for(run, attempt, fuse, lambda: self._put(run, attempt, key, orders))

    async def _ask_for(self, run: Run, attempt: Member, fuse: Fuse | None, order: Order | None) -> None:
        try:
            request = await self._request(run, attempt, fuse, order)
            self.unasked.pop(attempt.key, None)
            self._requested[attempt.key] = math.inf
            try:
                await call(self._providers[run.job.on].start, request)
            finally:
                self._requested[attempt.key] = self._clock.steady()
            self._wishes.setdefault(attempt.key, Wishes())
            self._surprises.pop(attempt.key, None)
        except StoreFailed:
            raise
        except (ProviderUnavailable, Unanswered) as error:
            log.warning("starting %s: %s", attempt.key, error.message)
            await asyncio.sleep(_PAUSE_S)  # it is requested again until the node is seen
        except StokerError as error:
            log.warning("starting %s: %s", attempt.key, error.message)
            self.trouble[attempt.key] = error
        except Exception as error:  # a bug, or a computer that is short of something: that may pass
            since, said = self._surprises.get(attempt.key, (self._clock.steady(), ""))
            self._surprises[attempt.key] = since, str(error)
            if said != str(error):
                log.warning("starting %s: %s", attempt.key, error, exc_info=error)
            if self._clock.steady() - since > _SURPRISED_S:
                self.trouble[attempt.key] = unexpected(error)

    async def _request(self, run: Run, attempt: Member, fuse: Fuse | None, order: Order | None) -> NodeRequest:
        """The request to the provider, once everything that the node needs is in the store. If the store fails, no
        node is requested, and the next round tries again. A node without orders has a short lease."""
        works_s = self._leases.lasting_s(run, attempt, fuse)
        lease_s = works_s if order else self._leases.idle_s(run)
        try:
            await self._bring_start(run, attempt)
            access, seal = await call(self._accesses.first, run, attempt, works_s)
            if order:
                await call(order)
            await call(self._leases.renew, run, attempt, lease_s)
            request = NodeRequest(
                attempt.key,
                layout.orders(run.id, attempt.number, attempt.node),
                (await self._stores.reach(run.store)).url,
                offer=attempt.offer,
                max_price=run.job.spot.max_price if run.job.spot else None,
                secrets=self._vault.values(run.id),
                access=access,
                seal=seal,
                fuse=fuse,
                lease_s=lease_s or None,
                labels={"run": run.name, "owner": run.person},
                gang=gang_of(run),
                pool=run.pool,
                need=needs(run.job, run.pool)[-1],
                together=tuple(one.key for one in _attempt(run).members),
            )
            if attempt.offer and attempt.offer.again:
                await call(self._hand_over, run, attempt, request)
        except (StoreFailed, Unanswered) as error:
            self.unasked[attempt.key] = error
            raise
        return request

    def _hand_over(self, run: Run, member: Member, request: NodeRequest) -> None:
        """A machine that had an earlier node reads its orders in the place of its last one: of another run of its
        cluster, or of an earlier attempt of this run. In the place of its first one it looks only after a restart, and
        that run may have been removed."""
        machine, last = member.offer.again if member.offer else "", last_key(run, member)
        try:
            self._accesses.hand_over(run, last, request)
        except StoreFailed as error:
            if last == machine or isinstance(error, StoreUnavailable):
                raise
            raise NoCapacity(f"the idle node {last} cannot be told its orders: {error.message}") from error
        if machine != last:
            with suppress(StokerError):
                self._accesses.hand_over(run, machine, request)

    async def _bring_start(self, run: Run, attempt: Member) -> None:
        """Before a machine is requested: copying takes time, but then costs no money."""
        if run.start is None or run.id in self._brought:
            return
        self.copying[attempt.key] = run.start.name
        try:
            await asyncio.to_thread(self._bring, run)
            self._brought.add(run.id)
        finally:
            del self.copying[attempt.key]

    def _orders(self, run: Run, attempt: Member) -> Orders:
        here = self._providers[run.job.on].features.shares_files
        return Orders(
            run_id=run.id,
            run_name=run.name,
            attempt=attempt.number,
            node=attempt.node,
            key=attempt.key,
            job=replace(run.job, env={**run.here, **run.job.env}) if here and run.here else run.job,
            snapshot=run.snapshot,
            python=run.python if here else "",
            software=None if here else run.software,
            data=run.data,
            inputs=run.inputs,
            nodes=len(_attempt(run).members),
            widths=run.widths,
            evictions_per_hour=rate_per_hour(run),
            terminal=run.terminal,
            shelf=self._accesses.shelf(run),
            rung=rung_of(run),
        )

    async def _renew_lease(self, run: Run, attempt: Member, lease_s: float) -> None:
        """The node reads it from its store; nothing waits for the cloud, which only records it as well."""
        await call(self._leases.renew, run, attempt, lease_s)
        self._background(f"mark {attempt.key}", call_far(self._leases.mark, run, attempt, lease_s))

    async def _cut_lease(self, key: str) -> None:
        """Tells a node that cannot be released now, through its store, to leave soon."""
        run = next((one for one in self._ledger.open if key.startswith(f"{one.id}-")), None)
        attempt = next((one for one in run.members if one.key == key), None) if run else None
        if run and attempt and attempt.state.over and self._leases.is_due(attempt, self._leases.idle_s(run)):
            await call(self._leases.renew, run, attempt, self._leases.idle_s(run))

    def _has_news(self, run: Run, attempt: Member) -> bool:
        """Writes nothing if nothing has changed."""
        return self._wished(run, attempt) != self._wishes.get(attempt.key) or (
            run.wish is Wish.CANCEL and attempt.key not in self.told
        )

    async def _tell(self, run: Run, attempt: Member) -> None:
        wishes = self._wished(run, attempt)
        key = layout.wishes(run.id, attempt.number, attempt.node)
        if attempt.key not in self._wishes:
            self._wishes[attempt.key] = await call(self._said, run, attempt, key)
        if wishes != self._wishes[attempt.key]:
            fuse = wishes.fuse and wishes.fuse.at(self._clock.now())  # the store may have failed since it was computed
            await call(self._put, run, attempt, key, replace(wishes, fuse=fuse))
            self._wishes[attempt.key] = wishes
        if wishes.wish is Wish.CANCEL:
            self.told.setdefault(attempt.key, self._clock.steady())

    def _note_fuse(self, key: str, fuse: Fuse | None) -> None:
        """A node counts by itself: its fuse is written again only if it has changed or was removed."""
        said = self._fuses.get(key)
        if fuse and is_news(said, fuse):
            self._fuses[key] = fuse
        elif fuse is None and said and said.stop_at_usd != UNLIMITED:
            self._fuses[key] = replace(said, stop_at_usd=UNLIMITED, as_of=self._clock.now())

    def _wished(self, run: Run, attempt: Member) -> Wishes:
        return replace(_wishes(run, attempt), visits=self._visits.of(attempt.key), fuse=self._fuses.get(attempt.key))

    def _put(self, run: Run, attempt: Member, key: str, told: Orders | Wishes) -> None:
        self._stores.of(run).put(key, self._accesses.signed(run, attempt, key, wire.dump(told)))

    def _said(self, run: Run, attempt: Member, key: str) -> Wishes | None:
        """What an earlier server may have written for the agent. Its node can write there, too."""
        try:
            data = untrusted.fetch_bytes(self._stores.of(run), key, untrusted.SMALL_BYTES)
            return untrusted.load(Wishes, self._accesses.opened(run, attempt, key, data), self._clock.now())
        except Missing:
            return Wishes()
        except (Malformed, Corrupt):
            return None

    async def _stop(self, provider: str, key: str) -> None:
        try:
            await call(self._providers[provider].stop, key)
        except Exception as error:
            known = error if isinstance(error, StokerError) else unexpected(error)
            log.warning("stopping %s: %s", key, known.message, exc_info=None if known is error else error)
            self.stuck[key] = known
            self._tries[key] = self._tries.get(key, 0) + 1
            with suppress(StokerError):
                await self._cut_lease(key)
            # It is requested again as long as the node is seen.
            await asyncio.sleep(min(_PAUSE_S * 2 ** (self._tries[key] - 1), _LONGEST_PAUSE_S))
            return
        self.stuck.pop(key, None)
        self._tries.pop(key, None)
        self.told.pop(key, None)
        self._wishes.pop(key, None)
        self._fuses.pop(key, None)
        self.trouble.pop(key, None)
        self._surprises.pop(key, None)
        self._store_trouble.pop(key, None)
        self.unasked.pop(key, None)
        self._requested.pop(key, None)
        self._accesses.forget(key)
        self._leases.forget(key)

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


def _wishes(run: Run, member: Member) -> Wishes:
    """A machine knows the notice that its cloud gave it; its peers get it from here."""
    gang = _attempt(run)
    notices = [one.notice for one in gang.members if one.notice and (one.notice.drill or one.node != member.node)]
    broken = "another node of its gang has ended" if gang.broken_at else ""
    cancelled = "cancelled" if run.wish is Wish.CANCEL else ""
    nearest = min(notices, key=lambda one: one.deadline, default=None)
    return Wishes(run.wish, cancelled, nearest, broken=broken, hung=hanging.restarts(run))
