"""What a round begins with: the nodes and offers of providers, why an agent is silent, and the engine's decisions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from stoker.engine.decision import Decision, Sighting
from stoker.engine.lifecycle import give_up
from stoker.engine.offers.market import Market, needs
from stoker.engine.rounds import Scene, decide
from stoker.errors import NotSetUp, ProviderFailed, StokerError, StoreFailed
from stoker.model.node import Need, NodeSight, Offer
from stoker.model.orders import Wish
from stoker.model.run.run import Run, RunState
from stoker.providers import Provider
from stoker.server.rounds.outside import Clock, call, call_far
from stoker.stores import NEAR, Store, pacing

log = logging.getLogger(__name__)

NEAR_S = 0.5  # a provider that is worth looking at more often than this answers at once
RETRY_S, MOST_RETRY_S = 1.0, 10.0  # before a provider that failed is asked again: longer each time
_LONGER = 1.5

Sights = Mapping[str, list[NodeSight]]  # by provider


class Lookout:
    def __init__(self, providers: Mapping[str, Provider], clock: Clock, wake: Callable[[], None]) -> None:
        self._providers = providers
        self._clock = clock
        self._wake = wake
        self._fresh: dict[str, list[NodeSight]] = {}
        self._looked: dict[str, float] = {}  # by provider: when it was last asked
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._retry_s: dict[str, float] = {}  # by provider that failed: without a login, each look starts programs
        self.began: dict[str, float] = {}  # by provider: when the last look that it answered began, in steady seconds
        self.has_sent = False  # the last look has asked a provider that answers later, with a wake
        self.trouble: dict[str, StokerError] = {}  # by provider: why it could not be asked

    async def look(self, busy: set[str]) -> Sights:
        """What was seen since the last look. A provider that is not in it was not asked: nothing can be concluded from
        its silence. `busy` are those that have something to be looked at; the others are asked now and then."""
        self.has_sent = False
        for name, provider in self._providers.items():
            if provider.features.look_every_s < NEAR_S:
                await self._ask(name, provider)
            elif name not in self._under_way and self._is_due(name, provider, name in busy):
                self._under_way[name] = asyncio.create_task(self._ask_far(name, provider), name=f"look {name}")
                self.has_sent = True
        fresh, self._fresh = self._fresh, {}
        return fresh

    def _is_due(self, name: str, provider: Provider, busy: bool) -> bool:
        pause_s = provider.features.look_every_s if busy else provider.features.look_idle_s
        pause_s = max(pause_s, self._retry_s.get(name, 0.0))
        return name not in self._looked or self._clock.steady() - self._looked[name] >= pause_s

    async def _ask_far(self, name: str, provider: Provider) -> None:
        try:
            await self._ask(name, provider)
        finally:
            self._under_way.pop(name, None)
            self._looked[name] = self._clock.steady()
        self._wake()

    async def _ask(self, name: str, provider: Provider) -> None:
        began = self._clock.steady()
        try:
            self._fresh[name] = await call(provider.look)
            self.began[name] = began
            self.trouble.pop(name, None)
            self._retry_s.pop(name, None)
        except Exception as error:
            known = error if isinstance(error, StokerError) else ProviderFailed(f"{type(error).__name__}: {error}")
            if name not in self.trouble or self.trouble[name].message != known.message:
                log.warning("looking at %s: %s", name, known.message, exc_info=None if known is error else error)
            self.trouble[name] = known
            self._retry_s[name] = min(_LONGER * self._retry_s.get(name, RETRY_S), MOST_RETRY_S)


KEEP_S = 60.0

Ask = tuple[str, Need]


class Offers:
    def __init__(self, providers: Mapping[str, Provider], clock: Clock, wake: Callable[[], None]) -> None:
        self._providers = providers
        self._clock = clock
        self._wake = wake
        self._known: dict[Ask, tuple[float, list[Offer]]] = {}
        self._under_way: dict[Ask, asyncio.Task[None]] = {}
        self._retry_s: dict[Ask, float] = {}
        self.trouble: dict[str, StokerError] = {}  # by provider: why it could not be asked

    def market(self, runs: Collection[Run]) -> tuple[Market, set[str]]:
        """The offers for those that may need a node, and the ids of runs for which they are not known yet."""
        market: dict[Ask, list[Offer]] = {}
        unknown: set[str] = set()
        for run in runs:
            for ask in self._asks(run):
                if ask in self._known:
                    market[ask] = self._known[ask][1]
                elif run.state is RunState.QUEUED and run.wish is Wish.GO_ON:
                    unknown.add(run.id)
                if ask not in self._known or self._clock.steady() - self._known[ask][0] > KEEP_S:
                    self._send_for(ask)
        return market, unknown

    def _asks(self, run: Run) -> list[Ask]:
        provider = self._providers.get(run.job.on)
        if provider is None or not provider.features.market or run.state.ended or run.at_rest:
            return []
        return [(run.job.on, need) for need in needs(run.job, run.pool)]

    def _send_for(self, ask: Ask) -> None:
        if ask not in self._under_way:
            self._under_way[ask] = asyncio.create_task(self._ask(ask), name=f"offers of {ask[0]}")

    async def _ask(self, ask: Ask) -> None:
        name, need = ask
        is_news = True  # a provider that failed is asked again in the next round
        try:
            offers = await call(self._providers[name].offers, need)
            if unready := next((offer.unready for offer in offers if offer.unready), ""):
                raise NotSetUp(unready)
            is_news = name in self.trouble or ask not in self._known or self._known[ask][1] != offers
            self._known[ask] = (self._clock.steady(), offers)
            self.trouble.pop(name, None)
            self._retry_s.pop(ask, None)
        except Exception as error:
            known = error if isinstance(error, StokerError) else ProviderFailed(f"{type(error).__name__}: {error}")
            if str(self.trouble.get(name)) != str(known):
                log.warning("the offers of %s: %s", name, known.message, exc_info=None if known is error else error)
            self.trouble[name] = known
            pause_s = self._retry_s.get(ask, RETRY_S)
            self._retry_s[ask] = min(_LONGER * pause_s, MOST_RETRY_S)
            await asyncio.sleep(pause_s)
        finally:
            self._under_way.pop(ask, None)
        if is_news:
            self._wake()


PATIENCE_S = 1.0  # the longest that a request about a run waits for this
_KEEP_S = 5.0  # a list of a hundred silent runs probes their store once


class Probing:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, tuple[float, str]] = {}  # by URL: when it was probed, and the result
        self._under_way: dict[str, asyncio.Task[None]] = {}

    async def why(self, store: Store) -> str:
        """What is wrong with the store, as the end of a sentence; empty where nothing is, or it is not known yet. A
        remote one is not probed while a client waits."""
        if pacing(store) is not NEAR:
            return ""
        at, why = self._known.get(store.url, (float("-inf"), ""))
        if self._clock.steady() - at < _KEEP_S:
            return why
        if store.url not in self._under_way:
            self._under_way[store.url] = asyncio.create_task(self._ask(store), name=f"probe {store.url}")
        await asyncio.wait([self._under_way[store.url]], timeout=PATIENCE_S)
        return self._known.get(store.url, (0.0, ""))[1]

    async def _ask(self, store: Store) -> None:
        try:
            why = await call_far(_probe, store)
        except StokerError as error:
            why = f": {error.message}"
        finally:
            self._under_way.pop(store.url, None)
        self._known[store.url] = self._clock.steady(), why


def _probe(store: Store) -> str:
    try:
        store.put("probe", b"?")
        store.delete("probe")
    except StoreFailed as error:
        return f": {error.message.split(': could not')[0]}; {error.hint}" if error.hint else f": {error.message}"
    return ""


GIVE_UP_S = 60.0  # of failing to decide about a run; one that is to be cancelled is given up at once

Seen = Mapping[str, Sighting]  # by run id


@dataclass(frozen=True, slots=True)
class Trouble:
    text: str
    since: float  # by the steady clock
    acting: bool  # what was decided about it could not be done


class Deciding:
    def __init__(self, clock: Clock, refuse: Callable[[str, str], None]) -> None:
        """`refuse` is told the key of a node whose report nothing could be decided upon, and why."""
        self._clock = clock
        self._refuse = refuse
        self._fresh: set[str] = set()  # ids of runs whose trouble was noted in this round
        self.trouble: dict[str, Trouble] = {}  # by run id: why it could not be looked at, decided about or tended

    def begin(self) -> None:
        """A new round: what did not happen again in the last one is over."""
        self.trouble = {run_id: trouble for run_id, trouble in self.trouble.items() if run_id in self._fresh}
        self._fresh = set()

    def decide(self, runs: Mapping[str, Run], seen: Seen, scene: Scene) -> list[Decision]:
        """A run about which the engine raises an error gets no decision until it is given up."""
        try:
            decisions = decide(runs.values(), seen, scene)
        except Exception as error:
            decisions = self._one_by_one(runs, seen, scene, error)
        given_up = self._given_up(runs, scene.now)
        return [*(one for one in decisions if one.run.id not in given_up), *given_up.values()]

    def note(self, run: Run, what: str, error: Exception, *, acting: bool = False) -> None:
        """Something about this one run failed: said once in the log, and shown as its reason as long as it does."""
        text = error.message if isinstance(error, StokerError) else f"{type(error).__name__}: {error}"
        text = f"{what}: {text}"
        known = self.trouble.get(run.id)
        if known is None or known.text != text:
            log.warning("%s: %s", run.name, text, exc_info=None if isinstance(error, StokerError) else error)
        self.trouble[run.id] = Trouble(text, known.since if known else self._clock.steady(), acting)
        self._fresh.add(run.id)

    def _one_by_one(self, runs: Mapping[str, Run], seen: Seen, scene: Scene, first: Exception) -> list[Decision]:
        fit = dict(seen)
        failed: set[str] = set()
        for run_id, run in runs.items():
            sighting = seen.get(run_id)
            try:
                decide([run], {run_id: sighting} if sighting else {}, scene)
            except Exception as error:
                if sighting and sighting.report and (unsaid := self._without_report(run, sighting, scene, error)):
                    fit[run_id] = unsaid
                    continue
                self.note(run, "nothing can be decided about it", error)
                fit.pop(run_id, None)
                failed.add(run_id)
        if fit == seen and not failed:
            raise first  # it takes several runs to fail
        try:  # what is in trouble still takes its place, and its money
            return [one for one in decide(runs.values(), fit, scene) if one.run.id not in failed]
        except Exception as error:
            log.warning("decided without the runs in trouble: %s", error, exc_info=error)
            return decide([run for run in runs.values() if run.id not in failed], fit, scene)

    def _without_report(self, run: Run, sighting: Sighting, scene: Scene, error: Exception) -> Sighting | None:
        """What was seen, without what the node said: that is refused if nothing else is wrong with the run."""
        why = f"nothing can be decided upon it ({type(error).__name__}: {error})"
        unsaid = replace(sighting, report=None, refused=why)
        try:
            decide([run], {run.id: unsaid}, scene)
        except Exception:
            return None
        log.warning("the report of %s is not used: %s", run.name, why, exc_info=error)
        if run.attempt:
            self._refuse(run.attempt.key, why)
        return unsaid

    def _given_up(self, runs: Mapping[str, Run], now: datetime) -> dict[str, Decision]:
        steady, found = self._clock.steady(), {}
        for run_id, trouble in self.trouble.items():
            run, lasts = runs.get(run_id), run_id in self._fresh or trouble.acting
            if run and lasts and (run.wish is Wish.CANCEL or steady - trouble.since > GIVE_UP_S):
                found[run_id] = give_up(run, trouble.text, now)
        return found
