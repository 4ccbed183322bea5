"""Keeps it true: look, let the engine decide, save, then act; again and again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from stoker.engine import alone
from stoker.engine.actions import Action, StopNode
from stoker.engine.decision import Decision
from stoker.engine.fuse import release_s
from stoker.engine.keys import spare_key
from stoker.engine.lease import idle, longest
from stoker.engine.leftovers import GRACE_S, claimed, release_leftovers
from stoker.engine.placement import why_waiting
from stoker.engine.receipt import with_effort
from stoker.engine.resuming import spared
from stoker.engine.rounds import untouched
from stoker.engine.sighting import Sighting
from stoker.errors import StokerError, StoreFailed
from stoker.model.lease import LAST_WORDS_S
from stoker.model.node import Need, NodeSight, NodeState
from stoker.model.orders import Wish
from stoker.model.report import Phase, Report
from stoker.model.run import Run, RunState
from stoker.providers import Provider
from stoker.server.clock import Clock
from stoker.server.deciding import Deciding, Scene
from stoker.server.ledger import Ledger
from stoker.server.limits import LimitBook
from stoker.server.lookout import Lookout, Sights
from stoker.server.offers import Offers
from stoker.server.performer import Performer
from stoker.server.reports import Reports
from stoker.server.stores import Stores
from stoker.stores.pacing import NEAR, pacing

log = logging.getLogger(__name__)

IDLE_S = 5.0  # between rounds when no run needs a node
TROUBLE_S = 1.0  # after a round that failed
SILENT_S = 10.0  # an agent that has said nothing for this long, and for as many beats as this, has a reason
_BEATS = 5


class Reconciler:
    def __init__(
        self,
        ledger: Ledger,
        stores: Stores,
        providers: Mapping[str, Provider],
        performer: Performer,
        clock: Clock,
        limits: LimitBook,
    ) -> None:
        self._ledger = ledger
        self._stores = stores
        self._providers = providers
        self._performer = performer
        self._clock = clock
        self._limits = limits
        limits.wake = self.wake
        self._woken = asyncio.Event()
        self._reports = Reports(stores, clock, self.wake)
        self._lookout = Lookout(providers, clock, self.wake)
        self._offers = Offers(providers, clock, self.wake)
        self._deciding = Deciding(clock, self._reports.drop)
        self._gone: dict[str, set[str]] = {}  # by provider: keys of nodes that were gone when it was last looked at
        self._occupied: set[str] = set()  # providers that had a node when they were last looked at
        self._unclaimed: dict[str, float] = {}  # by node key: since when

    def wake(self) -> None:
        """Something changed: do not wait for the next round."""
        self._woken.set()

    @property
    def stuck(self) -> Mapping[str, StokerError]:
        """Node key to why it could not be released: tried again and again."""
        return self._performer.stuck

    @property
    def troubled(self) -> Mapping[str, str]:
        """Run id to why nobody knows how the run is: what its node says cannot be used, or nothing can be decided."""
        return {run.id: why for run in self._ledger.open if (why := self._trouble_of(run))}

    def _trouble_of(self, run: Run) -> str:
        if trouble := self._deciding.trouble.get(run.id):
            return trouble.text
        why = self._reports.of(run.attempt.key).unusable if run.attempt else ""
        return f"its node's report cannot be used: {why}" if why else ""

    def live(self, run: Run) -> Run:
        """The run with what is true only now: what its agent last reported, or what it waits for. The database learns
        of metrics when the run has ended. One that fails is shown as it was saved: it is one of many in a list."""
        try:
            shown, trouble = self._live(run), self._trouble_of(run)
        except Exception as error:
            log.warning("how %s is cannot be told: %s", run.name, error, exc_info=error)
            shown, trouble = run, f"how it is now cannot be told ({type(error).__name__}: {error})"
        shown = replace(shown, alone=self._alone(run))
        if trouble and not run.state.ended:
            return replace(shown, reason=trouble, hint=f"stoker cancel {run.name}")
        return shown

    def _alone(self, run: Run) -> str:
        """What becomes of it while this server is away."""
        provider = self._providers.get(run.job.on)
        if provider is None:
            return ""
        limits = self._limits.over(run.person)
        return alone.words(run.job, provider.features, run.budget, run.state, limits=limits)

    def _live(self, run: Run) -> Run:
        if run.state is RunState.QUEUED and (asking := self._offers.trouble.get(run.job.on)):
            return replace(run, reason=asking.message, hint=asking.hint)
        if run.state is RunState.QUEUED and not run.reason:
            return replace(run, reason=why_waiting(run, self._ledger.open, self._slots()))
        key = run.attempt.key if run.attempt else ""
        if source := self._performer.copying.get(key):
            return replace(run, reason=f"copies the checkpoint of {source}")
        seen = self._reports.of(key)
        if run.state.ended:
            return run
        if looking := self._lookout.trouble.get(run.job.on):
            run = replace(run, reason=f"{looking.message}; until then nobody can see its node", hint=looking.hint)
        if trouble := self._performer.waiting.get(key) or seen.trouble:
            if away := self._offers.trouble.get(run.job.on):  # a cloud that is away says more than its store
                return replace(run, reason=away.message, hint=away.hint)
            return replace(run, reason=f"its store cannot be used: {trouble}")
        if seen.report is None:
            return run
        reason = run.reason
        if self._silent(run):
            reason = f"no heartbeat from its agent for {seen.silent_s:.0f} s{self._why_silent(run)}"
        if seen.report.phase is Phase.STAGING and not reason:
            reason = _staging(seen.report)
        run = with_effort(run, seen.report, under_way=True)
        packages = seen.report.packages or run.packages
        return replace(
            run, metrics=seen.report.metrics, data_figures=seen.report.data, packages=packages, reason=reason
        )

    def _silent(self, run: Run) -> bool:
        seen = self._reports.of(run.attempt.key if run.attempt else "")
        beats_s = _BEATS * pacing(self._stores.of(run)).beat_s
        return seen.silent_s > max(SILENT_S, beats_s)

    def _why_silent(self, run: Run) -> str:
        """The store is the only way in which an agent can speak. A far one is not asked while somebody waits."""
        store = self._stores.of(run)
        if pacing(store) is not NEAR:
            return ""
        try:
            store.put("probe", b"?")
            store.delete("probe")
        except StoreFailed as error:
            return f": {error.message.split(': could not')[0]}; {error.hint}" if error.hint else f": {error.message}"
        return ""

    async def run(self) -> None:
        while True:
            try:
                wait_s = await self.round()
            except Exception as error:
                log.warning("a round failed: %s", error, exc_info=_unless_known(error))
                wait_s = TROUBLE_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), wait_s)
            self._woken.clear()

    async def round(self) -> float:
        """One look, decide, save, act. Returns how long to wait for the next."""
        self._deciding.begin()
        sights = await self._lookout.look(self._busy())
        for name, some in sights.items():
            self._gone[name] = {sight.key for sight in some if sight.state is NodeState.GONE}
            self._gone[name] |= self._vanished(name, some)
        await self._reports.look(self._ledger.open, set().union(*self._gone.values()))
        async with self._ledger.lock:
            decisions = await self._decide(sights)
        for action in [*(action for one in decisions for action in one.actions), *self._leftovers(sights)]:
            await self._perform(action)
        for run in self._out_of_sight(sights):
            await self._speak_to(run)
        self._occupied = {name for name in self._occupied if name not in sights} | {
            name for name, some in sights.items() if any(not one.server for one in some)
        }
        there = [self._providers[name] for name in self._busy() if name in self._providers]
        return min((provider.features.look_every_s for provider in there), default=IDLE_S)

    async def _decide(self, sights: Sights) -> list[Decision]:
        """What is decided and saved. A run that fails here is left as it is, for a while; the others are not."""
        market, unknown = self._offers.market(self._ledger.open)
        runs = {run.id: run for run in self._ledger.open if run.id not in unknown}
        seen = self._sightings([run for run in runs.values() if run.job.on in sights and not untouched(run)], sights)
        now = self._clock.now()
        decisions = self._deciding.decide(runs, seen, Scene(self._slots(), now, market, self._limits.current(now)))
        for run_id in seen:
            if (attempt := runs[run_id].attempt) and run_id not in self._deciding.trouble:
                self._reports.accept(attempt.key)
        return await self._save(runs, decisions)

    def _sightings(self, runs: Sequence[Run], sights: Sights) -> dict[str, Sighting]:
        found: dict[str, Sighting] = {}
        for run in runs:
            try:
                found[run.id] = self._sighting(run, sights[run.job.on])
            except Exception as error:
                self._deciding.note(run, "it cannot be looked at", error)
        return found

    async def _save(self, runs: Mapping[str, Run], decisions: list[Decision]) -> list[Decision]:
        """All in one transaction; where that fails, each by itself. What was not saved is not carried out."""
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
                raise first  # the database is in trouble, and no run of it
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
        """Providers that have a node, or whose runs are about to have one or just had."""
        return self._occupied | {run.job.on for run in self._ledger.open if not untouched(run) and not run.at_rest}

    def _out_of_sight(self, sights: Sights) -> list[Run]:
        """Runs whose provider cannot be asked, as without a login: their nodes hear from us through the store, and go
        on. One that has said how it ended may go."""
        blind = self._lookout.trouble.keys() - sights.keys()
        there = [run for run in self._ledger.open if run.job.on in blind and run.attempt]
        return [run for run in there if run.attempt and run.attempt.key in claimed([run]) and self._goes_on(run)]

    def _goes_on(self, run: Run) -> bool:
        """Its agent was heard, and has not said how it ended. A kept one has, and may stay for its time."""
        report = self._reports.of(run.attempt.key if run.attempt else "").report
        is_kept = run.kept_until is not None and self._clock.now() < run.kept_until
        return report is not None and (report.outcome is None or is_kept)

    def _slots(self) -> dict[str, int | None]:
        """By provider: how many nodes it has room for. One that cannot say has none, for now."""
        found: dict[str, int | None] = {}
        for name, provider in self._providers.items():
            try:
                found[name] = _room(provider)
            except Exception as error:
                log.warning("the room of %s is not known: %s", name, error, exc_info=_unless_known(error))
                found[name] = 0
        return found

    def _sighting(self, run: Run, sights: list[NodeSight]) -> Sighting:
        attempt = run.attempt
        if attempt is None:
            return Sighting()
        spare = spare_key(run)
        mine = {sight.key: sight for sight in sights if sight.key.startswith(f"{run.id}-") and sight.key != spare}
        waiting = attempt.key not in claimed([run])
        current = None if waiting else mine.pop(attempt.key, None)
        if attempt.key in self._gone[run.job.on] and current is None and not waiting:
            current = NodeSight(attempt.key, NodeState.GONE, "its node is no longer there", still=True)
        if current and current.state is NodeState.GONE and not self._heard_out(run, attempt.key):
            current = replace(current, state=NodeState.UP)  # it may have said how it ended: first hear that
        nodes = [sight for sight in sights if sight.key.startswith(f"{run.id}-")]
        if current and current.state is not NodeState.GONE and current.key not in {one.key for one in nodes}:
            nodes.append(current)  # when it went is said in its last words
        said = self._reports.of(attempt.key)
        told, trouble = self._performer.told.get(attempt.key), self._performer.trouble.get(attempt.key)
        waits = self._performer.unasked.get(attempt.key)
        steady = self._clock.steady()
        return Sighting(
            node=current,
            report=said.report,
            spare=self._spare(spare, sights),
            leftovers=tuple(mine),
            nodes=tuple(nodes),
            refused=said.unusable,
            refused_s=steady - said.refused_since if said.refused_since else 0.0,
            still=tuple(key for key, sight in mine.items() if sight.still),
            silent_s=said.silent_s,
            deaf=said.is_deaf(steady),
            patience_s=self._providers[run.job.on].features.patience_s,
            outlives_s=self._outlives_s(run),
            lingers_s=self._lingers_s(run),
            said_at=said.said_at,
            wished_s=steady - told if told else 0.0,
            unasked=(*self._performer.unasked, *self._performer.copying),
            waits=waits.message if waits else "",
            waits_hint=waits.hint if waits else "",
            trouble=trouble.message if trouble else "",
            trouble_hint=trouble.hint if trouble else "",
            trouble_code=trouble.code if trouble else "",
        )

    def _heard_out(self, run: Run, key: str) -> bool:
        """Nothing more is to be heard of a node that is gone. Nobody waits for a store that is away to end a run."""
        ending = run.wish is Wish.CANCEL and bool(self._reports.of(key).trouble)
        return ending or self._reports.heard_last(key)

    def _vanished(self, provider: str, sights: list[NodeSight]) -> set[str]:
        """Keys of nodes that were there, and of which there is no trace."""
        keys = {sight.key for sight in sights}
        mine = [run for run in self._ledger.open if run.job.on == provider and run.attempt]
        return {
            spell.key
            for run in mine
            for spell in run.spells
            if spell.until is None and spell.seen_at and spell.key not in keys
        }

    def _outlives_s(self, run: Run) -> float:
        limited = run.budget is not None or bool(self._limits.over(run.person))
        lease_s = longest(run.job, self._providers[run.job.on].features, budget=limited)
        return lease_s + LAST_WORDS_S + release_s(run) if lease_s else 0.0

    def _lingers_s(self, run: Run) -> float:
        """Behind the last report of its agent."""
        kept_s = run.job.keep_failed or 0.0
        return kept_s + idle(self._providers[run.job.on].features) + LAST_WORDS_S + release_s(run)

    def _spare(self, key: str, sights: list[NodeSight]) -> NodeSight | None:
        """What was seen of the node that was asked for ahead; one that could not be asked for is as good as gone."""
        if not key:
            return None
        if trouble := self._performer.trouble.get(key):
            return NodeSight(key, NodeState.GONE, trouble.message, trouble.code)
        return next((sight for sight in sights if sight.key == key), None)

    def _leftovers(self, sights: Sights) -> list[Action]:
        every = [sight for some in sights.values() for sight in some]
        seen = {sight.key for sight in every}
        needed = claimed(self._ledger.open) | spared(self._ledger.open, every)
        steady = self._clock.steady()
        self._unclaimed = {key: self._unclaimed.get(key, steady) for key in seen - needed}
        ages = {key: steady - since for key, since in self._unclaimed.items()}
        return [
            stop
            for name, some in sights.items()
            for stop in release_leftovers(name, some, needed, ages, self._grace_s(name))
        ]

    def _grace_s(self, provider: str) -> float:
        return 0.0 if self._providers[provider].features.lease_s else GRACE_S


def _staging(report: Report) -> str:
    """How far the data has come, in tenths: whoever follows the run gets a line for each."""
    read = sum(one.read_bytes for one in report.data.values())
    total = sum(one.size_bytes - one.cached_bytes for one in report.data.values())
    if total <= 0:
        return "brings its data"
    return f"brings its data: {min(10 * read // total, 10)}0 % of {total / 1e6:,.0f} MB"


def _unless_known(error: Exception) -> Exception | None:
    """What is worth a traceback: an error that nobody expected is a bug."""
    return None if isinstance(error, StokerError) else error


def _room(provider: Provider) -> int | None:
    if provider.features.market:
        return None
    offers = provider.offers(Need())
    return offers[0].slots if offers else 0
