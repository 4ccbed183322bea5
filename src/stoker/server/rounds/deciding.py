"""Lets the engine decide about all runs at once. Where that fails, it finds out whose run it is: the others go on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from stoker.engine.decision import Decision
from stoker.engine.lifecycle import give_up
from stoker.engine.rounds import Scene, decide
from stoker.engine.sighting import Sighting
from stoker.errors import StokerError
from stoker.model.node.orders import Wish
from stoker.model.run.run import Run
from stoker.server.rounds.outside import Clock

log = logging.getLogger(__name__)

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
        """A run that is in trouble has no decision, until it is given up."""
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
