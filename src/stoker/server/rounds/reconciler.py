"""The main loop: look, let the engine decide, save, then act."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from stoker.engine import looking, showing
from stoker.engine.decision import Action, Decision, Sighting, StopNode
from stoker.engine.looking import Requests
from stoker.engine.nodes import nodes
from stoker.engine.queue import clusters
from stoker.engine.queue.clusters import ClusterFacts
from stoker.engine.queue.order import NOTHING_KNOWN, QueueFacts
from stoker.engine.queue.placement import ahead, busy_slots, turns, why_waiting
from stoker.engine.rounds import Scene, untouched
from stoker.engine.showing import Beside
from stoker.engine.sweeps.budget import at_rungs, beyond, parallel_words
from stoker.errors import StokerError
from stoker.model.cause import Cause
from stoker.model.node import Need, NodeSight
from stoker.model.orders import Wish
from stoker.model.run.report import Report
from stoker.model.run.run import Run, RunState, Turn
from stoker.providers import Provider
from stoker.server.rounds.books import Books
from stoker.server.rounds.ledger import Ledger
from stoker.server.rounds.lookout import Deciding, Lookout, Offers, Probing, Sights
from stoker.server.rounds.outside import Clock
from stoker.server.rounds.performer import Performer
from stoker.server.rounds.reports import Reports
from stoker.server.stores.stores import StoreDirectory
from stoker.stores import pacing

log = logging.getLogger(__name__)

IDLE_S = 5.0  # between rounds when no run needs a node
TROUBLE_S = 1.0  # after a round that failed
AHEAD_S = 1.0  # for which the order of the queue is remembered


class Reconciler:
    def __init__(
        self,
        ledger: Ledger,
        stores: StoreDirectory,
        providers: Mapping[str, Provider],
        performer: Performer,
        clock: Clock,
        books: Books,
    ) -> None:
        self._ledger = ledger
        self._stores = stores
        self._providers = providers
        self._performer = performer
        self._clock = clock
        self._limits, self._clusters = books.limits, books.clusters
        self._book, self._sweeps = books.queue, books.sweeps
        self._limits.wake = self._clusters.wake = self.wake
        self._woken = asyncio.Event()
        self._reports = Reports(stores, clock, self.wake)
        self._lookout = Lookout(providers, clock, self.wake)
        self._probing = Probing(clock)
        self._offers = Offers(providers, clock, self.wake)
        self._deciding = Deciding(clock, self._reports.drop)
        self._gone: dict[str, set[str]] = {}  # by provider: keys of nodes that were gone when it was last looked at
        self._occupied: set[str] = set()  # providers that had a node when they were last looked at
        self._ahead: dict[str, int] = {}  # by run id: how many start before it
        self._slots_busy: Mapping[str, int] = {}  # slots, by provider
        self._nodes_free: Mapping[str, int] = {}  # nodes, by cluster
        self._beyond: Collection[str] = ()  # ids of trials that wait for others of their sweep
        self._ahead_at = 0.0
        self._unclaimed: dict[str, dict[str, float]] = {}  # by provider, by node key: since when

    def wake(self) -> None:
        """Something changed: do not wait for the next round."""
        self._woken.set()

    @property
    def stuck(self) -> Mapping[str, StokerError]:
        """Node key to why it could not be released yet. Stoker keeps trying."""
        return self._performer.stuck

    @property
    def troubled(self) -> Mapping[str, str]:
        """Run id to why its state is unknown: the reports of its node are unusable, or the engine failed on it."""
        return {run.id: why for run in self._ledger.open if (why := self._trouble_of(run)[0])}

    def _trouble_of(self, run: Run) -> tuple[str, str]:
        """In words, and as a cause."""
        if trouble := self._deciding.trouble.get(run.id):
            return trouble.text, Cause.UNDECIDED
        why = self._reports.of(run.attempt.key).unusable if run.attempt else ""
        return (f"its node's report cannot be used: {why}", Cause.REPORT_UNUSABLE) if why else ("", "")

    async def live(self, run: Run) -> Run:
        """The run with its current progress: what its agent last reported, or what it waits for. If that fails, the run
        as it was saved, so that a list still shows all the others."""
        try:
            shown, (trouble, cause) = showing.shown(run, await self._beside(run)), self._trouble_of(run)
        except Exception as error:
            log.warning("the current state of %s is unknown: %s", run.name, error, exc_info=error)
            shown, cause = run, Cause.UNDECIDED
            trouble = f"its current state is unknown ({type(error).__name__}: {error})"
        shown = replace(shown, alone=self._alone(run))
        if trouble and not run.state.ended:
            return replace(shown, reason=trouble, cause=cause, hint=f"stoker cancel {run.name}")
        return shown

    def _alone(self, run: Run) -> str:
        """What happens to the run while this server is down."""
        provider = self._providers.get(run.job.on)
        if provider is None:
            return ""
        limits = self._limits.over(run.person)
        return showing.when_alone(run.job, provider.features, run.budget, run.state, limits=limits)

    async def _beside(self, run: Run) -> Beside:
        if run.state.ended:
            return Beside()
        on, key = run.job.on, run.attempt.key if run.attempt else ""
        heard = self._reports.heard(key)
        waits, waits_cause = self._why_waiting(run) if run.state is RunState.QUEUED else ("", "")
        beside = Beside(
            heard=heard,
            offers=self._offers.trouble.get(on),
            looks=self._lookout.trouble.get(on),
            waits=waits,
            waits_cause=waits_cause,
            copying=self._performer.copying.get(key, ""),
            store=self._performer.waiting.get(key, ""),
        )
        if heard.report is None or heard.trouble:
            return beside
        store = await self._stores.reach(run.store)
        beat_s = pacing(store).beat_s
        silence = await self._probing.why(store) if showing.is_silent(heard, beat_s) else ""
        others = (self._reports.of(peer.key).report for peer in (run.attempt.peers if run.attempt else ()))
        return replace(beside, beat_s=beat_s, silence=silence, peers=tuple(one for one in others if one))

    def _why_waiting(self, run: Run) -> tuple[str, str]:
        """In words, and as a cause."""
        before = self._before(run)
        if run.trial and run.trial.paused:
            return "", ""  # the run itself says why
        if run.id in self._beyond:
            return parallel_words(run, self._sweeps.facts()), Cause.MAX_PARALLEL
        if not run.cluster:
            why = why_waiting(run, before, self._slots_busy.get(run.job.on, 0), self._slots())
            return why, Cause.NO_ROOM if why else ""
        why, hint, cause = clusters.why_waiting(run, before, self._nodes_free.get(run.cluster, 0), self._pools)
        return f"{why}: `{hint}`" if hint else why, cause

    def _before(self, run: Run) -> int:
        """How many start before it. A list of many runs asks for each of them: what all have in common is computed once
        a second."""
        steady = self._clock.steady()
        if run.id not in self._ahead or not 0 <= steady - self._ahead_at < AHEAD_S:
            now, runs = self._clock.now(), self._in_queue()
            self._ahead = ahead(runs, self._rooms, now, self._queue_facts(now))
            self._slots_busy, self._nodes_free = busy_slots(runs, self._slots()), clusters.free(runs, self._pools)
            self._beyond = beyond(runs, self._sweeps.facts())
            self._ahead_at = steady
        return self._ahead.get(run.id, 0)

    @property
    def _pools(self) -> ClusterFacts:
        return ClusterFacts({one.name: one for one in self._clusters.all})

    @property
    def _rooms(self) -> dict[str, int | None]:
        return {**self._slots(), **clusters.rooms(self._pools)}

    async def run(self) -> None:
        woken = True
        while True:
            try:
                wait_s = await self.round(woken=woken)
            except Exception as error:
                log.warning("a round failed: %s", error, exc_info=_unless_known(error))
                wait_s = TROUBLE_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()
            woken = self._woken.is_set()
            self._woken.clear()

    async def round(self, *, woken: bool = True) -> float:
        """Looks, decides, saves and acts. Returns the seconds until the next round. If nothing has woken it and a
        request is pending, it only looks: the answer wakes the next round, which decides."""
        sights = await self._lookout.look(self._busy())
        for name, some in sights.items():
            self._gone[name] = looking.gone_keys([run for run in self._ledger.open if run.job.on == name], some)
        await self._reports.look(self._ledger.open, set().union(*self._gone.values()))
        if woken or sights or not self._lookout.has_sent:
            await self._decide_and_act(sights)
        there = [self._providers[name] for name in self._busy() if name in self._providers]
        return min((provider.features.look_every_s for provider in there), default=IDLE_S)

    async def _decide_and_act(self, sights: Sights) -> None:
        self._deciding.begin()
        async with self._ledger.lock:
            decisions = await self._decide(sights)
        for action in [*(action for one in decisions for action in one.actions), *self._unneeded(sights)]:
            await self._perform(action)
        for run in self._out_of_sight(sights):
            await self._speak_to(run)
        self._occupied = {name for name in self._occupied if name not in sights} | {
            name for name, some in sights.items() if any(not one.server for one in some)
        }

    async def _decide(self, sights: Sights) -> list[Decision]:
        """The decisions, saved. A run that fails here is left as it is for a while; the others proceed."""
        market, unknown = self._offers.market(self._ledger.open)
        runs = {run.id: self._reports.with_points(run) for run in self._ledger.open if run.id not in unknown}
        known = [run for run in runs.values() if run.job.on in sights and not untouched(run)]
        seen = self._sightings(known, sights)
        now = self._clock.now()
        limits = self._limits.current(now)
        pools = self._clusters.facts(self._ledger.open, limits, now)
        said, facts = self._last_words(runs.values()), self._queue_facts(now)
        scene = Scene(self._slots(), now, market, limits, said, pools, facts, self._sweeps.facts())
        decisions = self._deciding.decide(runs, seen, scene)
        for run_id in seen:
            if (attempt := runs[run_id].attempt) and run_id not in self._deciding.trouble:
                for member in attempt.members:
                    self._reports.accept(member.key)
        return await self._save(runs, decisions)

    def _queue_facts(self, now: datetime) -> QueueFacts:
        """Read only if a run waits."""
        waits = any(run.state is RunState.QUEUED for run in self._ledger.open)
        return self._book.current(now) if self._book and waits else NOTHING_KNOWN

    def queue(self) -> list[Turn]:
        """Every waiting run, in starting order, with what it waits for."""
        now, pools, runs = self._clock.now(), self._pools, {run.name: run for run in self._in_queue()}
        found: list[Turn] = []
        for turn in turns(runs.values(), self._rooms, now, self._queue_facts(now)):
            run = runs[turn.name]
            if run.cluster and (closed := clusters.blocked(run, pools)):
                found.append(replace(turn, waits_for=closed.why, starts_at=None, unknown=f"`{closed.hint}`"))
            else:
                found.append(turn)
        return found

    def _in_queue(self) -> list[Run]:
        """The open runs without those that wait for the decision of a search, and for no room."""
        held = at_rungs(self._ledger.open)
        return [run for run in self._ledger.open if run.id not in held]

    def _last_words(self, runs: Collection[Run]) -> dict[str, Report]:
        """What the nodes of runs that are cancelled have said: enough to end them where their provider is not seen."""
        wanted = [run for run in runs if run.wish is Wish.CANCEL and run.attempt]
        said = {run.id: self._reports.of(run.attempt.key).report for run in wanted if run.attempt}
        return {run_id: report for run_id, report in said.items() if report}

    def _sightings(self, runs: Sequence[Run], sights: Sights) -> dict[str, Sighting]:
        found: dict[str, Sighting] = {}
        began = {run.job.on: self._lookout.began.get(run.job.on, 0.0) for run in runs}
        requests = {on: self._performer.requests(looked_at) for on, looked_at in began.items()}
        for run in runs:
            try:
                found[run.id] = self._sighting(run, sights.get(run.job.on, []), requests[run.job.on])
            except Exception as error:
                self._deciding.note(run, "it cannot be looked at", error)
        return found

    async def _save(self, runs: Mapping[str, Run], decisions: list[Decision]) -> list[Decision]:
        """All in one transaction, or, if that fails, one by one. Actions of a run that was not saved are dropped."""
        changed = [one for one in decisions if one.run != runs[one.run.id]]
        failed: dict[str, tuple[Run, Exception]] = {}
        try:
            saved = await self._ledger.save(changed)
        except Exception as first:
            saved = []
            for one in changed:
                try:
                    saved += await self._ledger.save([one])
                except Exception as error:
                    failed[one.run.id] = one.run, error
            if not saved:
                raise first  # the database is the cause, not one of the runs
        for run, why in failed.values():
            self._deciding.note(run, "it cannot be saved", why)
        for run in saved:
            if run.state.ended:
                self._performer.forget_secrets(run)
        return [one for one in decisions if one.run.id not in failed]

    async def _perform(self, action: Action) -> None:
        try:
            await self._performer.perform(action)
        except Exception as error:
            if isinstance(action, StopNode):
                log.warning("stopping %s: %s", action.key, error, exc_info=_unless_known(error))
            else:
                self._deciding.note(action.run, "what it needs could not be done", error, acting=True)

    async def _speak_to(self, run: Run) -> None:
        try:
            await self._performer.speak_to(run)
        except Exception as error:
            self._deciding.note(run, "its node could not be spoken to", error, acting=True)

    def _busy(self) -> set[str]:
        """Providers that have a node, or whose runs will soon have one or just had one."""
        return self._occupied | {run.job.on for run in self._ledger.open if not untouched(run) and not run.at_rest}

    def _out_of_sight(self, sights: Sights) -> list[Run]:
        """Runs whose provider cannot be reached, for example without a login. Their nodes are kept alive through the
        store, unless they have reported their end."""
        blind = self._lookout.trouble.keys() - sights.keys()
        there = [(run, run.attempt.key) for run in self._ledger.open if run.job.on in blind and run.attempt]
        mine = [(run, self._reports.of(key).report) for run, key in there if key in nodes.claimed([run])]
        return [run for run, report in mine if looking.goes_on(run, report, self._clock.now())]

    def _slots(self) -> dict[str, int | None]:
        """By provider: how many more nodes it can start. If it cannot say, none for now."""
        found: dict[str, int | None] = {}
        for name, provider in self._providers.items():
            try:
                found[name] = _room(provider)
            except Exception as error:
                log.warning("the room of %s is not known: %s", name, error, exc_info=_unless_known(error))
                found[name] = 0
        return found

    def _sighting(self, run: Run, sights: list[NodeSight], requests: Requests) -> Sighting:
        on, limited = run.job.on, bool(self._limits.over(run.person))
        heard = {one.key: self._reports.heard(one.key) for one in (run.attempt.members if run.attempt else ())}
        features = self._providers[on].features
        return looking.sighting(run, sights, self._gone.get(on, ()), heard, requests, features, limited=limited)

    def _unneeded(self, sights: Sights) -> Sequence[Action]:
        """For a provider that was not asked in this round, the last answer still holds."""
        needed, steady = nodes.needed(self._ledger.open, sights), self._clock.steady()
        for name, some in sights.items():
            before = self._unclaimed.get(name, {})
            self._unclaimed[name] = {one.key: before.get(one.key, steady) for one in some if one.key not in needed}
        ages = {key: steady - since for name in sights for key, since in self._unclaimed[name].items()}
        leased = {name for name in sights if self._providers[name].features.lease_s}
        return nodes.release_unneeded(sights, needed, ages, leased)


def _unless_known(error: Exception) -> Exception | None:
    """Whether to log a traceback: an unexpected error is a bug."""
    return None if isinstance(error, StokerError) else error


def _room(provider: Provider) -> int | None:
    if provider.features.market or provider.features.own_queue:
        return None
    offers = provider.offers(Need())
    return offers[0].slots if offers else 0
